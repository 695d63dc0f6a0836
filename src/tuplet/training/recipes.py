"""The papers' settings as data: everything that a paper says, and what it leaves open filled in and marked.

A recipe is a dictionary of options (`tuplet.training.Settings`); whatever a caller says himself takes precedence. Where
a paper has other numbers for another dataset, `on` holds them. None of the papers' ImageNet weights come with this
package: give `weights=`, and another `model=` where the paper's is not at hand.
"""

from collections.abc import Mapping
from typing import Any

from tuplet.data import Dataset
from tuplet.training.published import benchmark
from tuplet.training.settings import nearest

RECIPES: dict[str, Mapping[str, Any]] = {
    # Wang et al. 2017: Deep Metric Learning with Angular Loss, section 4.4.
    "npair_angular": {
        "loss": "npair_angular",
        "loss_options": {"alpha": 45.0, "weight": 2.0},
        "model": "googlenet",
        "dim": 512,
        "normalize": "eval",  # free in training; that testing compares directions is left open
        "size": 227,  # left open beyond "standard random crop"
        "resize": 256,
        "fit": "square",
        "sampler": "npair",
        "batch_size": 128,
        "optimizer": "sgd",
        "momentum": 0.9,  # left open
        "rate": 1e-4,
        "head_rate": 10.0,
        "schedule": "constant",
        "steps": 20_000,
        "evaluate_every": 1_000,
        "checkpoint_every": 1_000,
        "on": {"cub200": {"rate": 1e-5}, "sop": {"loss_options": {"alpha": 36.0, "weight": 2.0}}},
    },
    # Sohn 2016: Improved Deep Metric Learning with Multi-class N-pair Loss Objective, section 4.2.
    "npair": {
        "loss": "npair",
        "loss_options": {"norm_penalty": 0.003},  # the weight of the penalty is left open
        "model": "googlenet",
        "dim": 64,
        "normalize": "eval",
        "size": 224,  # left open beyond "random crops"
        "resize": 256,
        "fit": "square",
        "sampler": "npair",
        "batch_size": 120,
        "optimizer": "adam",
        "rate": 1e-4,  # cross-validated, and not printed
        "head_rate": 10.0,
        "schedule": "constant",
        "steps": 20_000,
        "evaluate_every": 1_000,
        "checkpoint_every": 1_000,
        "on": {"sop": {"dim": 512}},
    },
    # A Unified View of Deep Metric Learning via Gradient Analysis, 2019, section 6.
    "raw_vthm": {
        "loss": "raw",
        "loss_options": {
            "alpha": 2.0,
            "beta": 50.0,
            "threshold": 0.5,
            "mining": {"name": "valid_triplet", "epsilon": 0.1},
        },
        "model": "bn_inception",
        "dim": 512,
        "normalize": True,
        "size": 227,
        "resize": 256,
        "fit": "square",
        "sampler": "class_balanced",
        "batch_size": 120,  # left open
        "per_class": 5,
        "optimizer": "adam",
        "rate": 1e-5,
        "head_rate": 1.0,
        "schedule": "constant",
        "steps": 10_000,  # left open
        "evaluate_every": 500,
        "checkpoint_every": 500,
        "on": {"sop": {"per_class": 4}, "inshop": {"per_class": 4}},
    },
    # Schall et al. 2019: Deep Metric Learning using Similarities from Nonlinear Rank Approximations, section IV-C.
    "nra": {
        "loss": "nra",
        "loss_options": {"alpha": 4.0},
        "model": "googlenet",
        "dim": 512,
        "normalize": "eval",
        "size": 224,
        "resize": 256,
        "fit": "longer",
        "sampler": "ngroup",
        "batch_size": 128,
        "per_class": 8,
        "optimizer": "sgd",
        "momentum": 0.9,
        "rate": 1e-4,
        "head_rate": 1.0,
        "schedule": "constant",
        "steps": 20_000,  # left open
        "evaluate_every": 1_000,
        "checkpoint_every": 1_000,
        "on": {"cars196": {"rate": 5e-4}, "sop": {"rate": 1e-3, "per_class": 4}},
    },
    # Wang et al. 2019: Ranked List Loss for Deep Metric Learning, sections 3.4 and 4.1: RLL-(L,M,H).
    "ranked_list": {
        "loss": "ranked_list",
        "loss_options": {"alpha": 1.2, "margin": 0.4, "temperature": 10.0},
        "model": "bn_inception",
        "dim": 512,
        "levels": "LMH",
        "normalize": True,
        "size": 227,
        "resize": 256,
        "fit": "square",
        "sampler": "class_balanced",
        "batch_size": 180,
        "per_class": 3,
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "rate": 1e-2,
        "head_rate": 10.0,
        "schedule": "constant",
        "steps": 10_000,
        "evaluate_every": 500,
        "checkpoint_every": 500,
        "on": {"cub200": {"rate": 1e-3}, "sop": {"steps": 16_000}},
    },
    # Not of a paper: for the glyphs that are drawn on the spot, half a minute on one core.
    "demo": {
        "loss": "multi_similarity",
        "model": "convnet",
        "model_options": {"size": 24, "channels": 1},
        "dim": 64,
        "resize": 26,
        "stored_size": 32,
        "augment": {"mirror": 0.0},
        "batch_size": 96,
        "per_class": 4,
        "optimizer": "adamw",
        "rate": 2e-3,
        "head_rate": 1.0,
        "schedule": "cosine",
        "warmup": 100,  # at the full rate from the start, all vectors become one
        "steps": 400,
        "evaluate_every": 100,
    },
}


def recipe_for(name: str, data: Dataset) -> dict[str, Any]:
    """The options of a recipe for a dataset: a paper's own numbers where it is one of the paper's datasets.

    >>> from tuplet.data import from_features
    >>> import torch
    >>> recipe_for("ranked_list", from_features(torch.zeros(4, 2), [0, 0, 1, 1]))["rate"]
    0.01
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; {nearest(name, RECIPES)}")
    options = dict(RECIPES[name])
    by_benchmark = options.pop("on", {})
    return {**options, **by_benchmark.get(benchmark(data), {})}
