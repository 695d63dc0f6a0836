"""The papers' settings.

A recipe is a dictionary of options (`tuplet.training.Settings`). The comment "not given" marks a value that is not
in the paper. `on` holds the options that a paper changes for one of its datasets. The package has none of the papers'
ImageNet weights: set `weights`, and another `model` if you do not have the weights of the paper's model. The papers
print the best result on the test classes, so their recipes set `validation` to 0.
"""

from collections.abc import Mapping
from typing import Any

from tuplet.data import Dataset
from tuplet.errors import OptionError, did_you_mean
from tuplet.training.compared_recipes import COMPARED_RECIPES, SHARED
from tuplet.training.papers import benchmark

RECIPES: dict[str, Mapping[str, Any]] = {
    # Wang et al. 2017: Deep Metric Learning with Angular Loss, section 4.4.
    "npair_angular": {
        **SHARED,
        "loss": "npair_angular",
        "loss_options": {"alpha": 45.0, "weight": 2.0},
        "model": "googlenet",
        "dim": 512,
        "normalize": "eval",  # the test normalization is not given
        "size": 227,  # not given: "standard random crop"
        "sampler": "npair",
        "batch_size": 128,
        "optimizer": "sgd",
        "momentum": 0.9,  # not given
        "lr": 1e-4,
        "head_lr_scale": 10.0,
        "steps": 20_000,
        "on": {"cub200": {"lr": 1e-5}, "sop": {"loss_options": {"alpha": 36.0, "weight": 2.0}}},
    },
    # Sohn 2016: Improved Deep Metric Learning with Multi-class N-pair Loss Objective, section 4.2.
    "npair": {
        **SHARED,
        "loss": "npair",
        "loss_options": {"norm_penalty": 0.003},  # not given
        "model": "googlenet",
        "dim": 64,
        "normalize": "eval",
        "size": 224,  # not given: "random crops"
        "sampler": "npair",
        "batch_size": 120,
        "optimizer": "adam",
        "lr": 1e-4,  # not given: cross-validated
        "head_lr_scale": 10.0,
        "steps": 20_000,
        "on": {"sop": {"dim": 512}},
    },
    # Sohn 2016, section 4.3: faces, trained on CASIA-WebFace and tested on LFW.
    "npair_faces": {
        "loss": "npair",
        "loss_options": {"norm_penalty": 0.003},  # not given
        "model": "casianet",
        "weights": None,
        "dim": None,
        "normalize": "eval",
        "size": 100,
        "resize": 110,  # not given: "random crops"
        "resize_mode": "square",
        "sampler": "npair",
        "batch_size": 384,  # their best result: 640
        "optimizer": "adam",
        "lr": 3e-4,
        "schedule": "step",
        "decay_start": 160_000,
        "decay_every": 40_000,
        "decay_factor": 0.316,  # to 1e-4 and 3e-5
        "steps": 240_000,
        "evaluate_every": 5_000,
        "checkpoint_every": 5_000,
        "test_share": 0.02,  # LFW is the test
        "validation": 0.02,  # not given
    },
    # A Unified View of Deep Metric Learning via Gradient Analysis, 2019, section 6.
    "raw_vthm": {
        **SHARED,
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
        "sampler": "class_balanced",
        "batch_size": 120,  # not given
        "per_class": 5,
        "optimizer": "adam",
        "lr": 1e-5,
        "head_lr_scale": 1.0,
        "steps": 10_000,  # not given
        "evaluate_every": 500,
        "checkpoint_every": 500,
        "on": {"sop": {"per_class": 4}, "inshop": {"per_class": 4}},
    },
    # Schall et al. 2019: Deep Metric Learning using Similarities from Nonlinear Rank Approximations, section IV-C.
    "nra": {
        **SHARED,
        "loss": "nra",
        "loss_options": {"alpha": 4.0},
        "model": "googlenet",
        "dim": 512,
        "normalize": "eval",
        "size": 224,
        "resize_mode": "longer",
        "sampler": "ngroup",
        "batch_size": 128,
        "per_class": 8,
        "optimizer": "sgd",
        "momentum": 0.9,
        "lr": 1e-4,
        "head_lr_scale": 1.0,
        "steps": 20_000,  # not given
        "on": {"cars196": {"lr": 5e-4}, "sop": {"lr": 1e-3, "per_class": 4}},
    },
    # Wang et al. 2019: Ranked List Loss for Deep Metric Learning, sections 3.4 and 4.1: RLL-(L,M,H).
    "ranked_list": {
        **SHARED,
        "loss": "ranked_list",
        "loss_options": {"alpha": 1.2, "margin": 0.4, "temperature": 10.0},
        "model": "bn_inception",
        "dim": 512,
        "levels": "LMH",
        "normalize": True,
        "size": 227,
        "sampler": "class_balanced",
        "batch_size": 180,
        "per_class": 3,
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "lr": 1e-2,
        "head_lr_scale": 10.0,
        "steps": 10_000,
        "evaluate_every": 500,
        "checkpoint_every": 500,
        "on": {"cub200": {"lr": 1e-3}, "sop": {"steps": 16_000}},
    },
    **COMPARED_RECIPES,
    # Not from a paper: for `data.glyphs`; takes half a minute on one core.
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
        "lr": 2e-3,
        "head_lr_scale": 1.0,
        "schedule": "cosine",
        "warmup": 100,  # without it the embeddings collapse
        "steps": 400,
        "evaluate_every": 100,
    },
}


def recipe_for(name: str, data: Dataset) -> dict[str, Any]:
    """Return the options of a recipe, with the paper's own values if the dataset is one of the paper's.

    >>> from tuplet.data import from_features
    >>> import torch
    >>> recipe_for("ranked_list", from_features(torch.zeros(4, 2), [0, 0, 1, 1]))["lr"]
    0.01
    """
    if name not in RECIPES:
        raise OptionError(f"there is no recipe {name!r}; {did_you_mean(name, RECIPES)}")
    options = dict(RECIPES[name])
    by_benchmark = options.pop("on", {})
    return {**options, **by_benchmark.get(benchmark(data), {})}
