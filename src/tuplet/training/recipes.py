"""The papers' settings as data."""

from collections.abc import Mapping
from typing import Any

RECIPES: dict[str, Mapping[str, Any]] = {
    "demo": {
        "model": "convnet",
        "model_options": {"size": 32, "channels": 3},
        "dim": 64,
        "loss": "multi_similarity",
        "augment": {"mirror": 0.0},
        "batch_size": 128,
        "per_class": 4,
        "optimizer": "adamw",
        "rate": 1e-3,
        "head_rate": 1.0,
        "schedule": "cosine",
        "steps": 300,
        "evaluate_every": 100,
    },
}
