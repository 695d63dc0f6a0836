"""Recipes of the systems that the papers compare with: what is known of their settings.

The comment "not given" marks a value that was not found; choose it by validation classes.
"""

from collections.abc import Mapping
from typing import Any

#: What most recipes share. The papers print the best result on the test classes.
SHARED = {
    "resize": 256,
    "resize_mode": "square",
    "schedule": "constant",
    "evaluate_every": 1_000,
    "checkpoint_every": 1_000,
    "validation": 0.0,
}
_GOOGLENET = {**SHARED, "model": "googlenet", "normalize": True, "size": 224, "sampler": "class_balanced"}
_BN_INCEPTION = {**_GOOGLENET, "model": "bn_inception", "size": 227}
_SGD = {"optimizer": "sgd", "momentum": 0.9}
# The released run on SOP; the settings of the other benchmarks are not given.
_BIER = {
    **_GOOGLENET,
    "loss": "bier",
    "model_options": {"heads": [96, 160, 256], "part_weights": [96, 160, 256]},
    "dim": 512,
    "batch_size": 128,
    "per_class": 2,
    "optimizer": "adam",
    "lr": 1e-5,
    "head_lr_scale": 10.0,
    "weight_decay": 4e-4,  # the authors add 2e-4 · Σ w², without the half that is usual
    "schedule": "step",
    "decay_every": 25_000,
    "decay_factor": 0.5,
    "steps": 100_000,
}

COMPARED_RECIPES: dict[str, Mapping[str, Any]] = {
    # Yi, Lei, Liao, Li 2014: Learning Face Representation from Scratch, on CASIA-WebFace; tested on LFW.
    "casia": {
        **_SGD,
        "loss": "sum",
        "loss_options": {
            "parts": [{"loss": "softmax"}, {"loss": "contrastive", "weight": 0.05, "margin": 1.0}]  # both not given
        },
        "model": "casianet",
        "weights": None,
        "dim": None,
        "normalize": "eval",  # not given
        "size": 100,
        "resize": 100,
        "resize_mode": "square",
        "sampler": "class_balanced",
        "batch_size": 128,  # not given
        "per_class": 2,  # not given
        "lr": 1e-2,  # not given
        "loss_lr_scale": 1.0,
        "schedule": "step",
        "decay_every": 80_000,  # not given
        "steps": 240_000,  # that of Sohn 2016
        "evaluate_every": 5_000,
        "checkpoint_every": 5_000,
        "test_share": 0.02,  # LFW is the test
        "validation": 0.02,  # not given
    },
    # Huang, Loy, Tang 2016: Local Similarity-Aware Deep Feature Embedding.
    "pddm": {
        **_GOOGLENET,
        **_SGD,
        "loss": "pddm",
        "dim": 128,
        "batch_size": 64,  # not given
        "per_class": 4,  # not given: random images
        "lr": 1e-4,  # of a port
        "head_lr_scale": 10.0,  # not given
        "loss_lr_scale": 10.0,  # not given
        "weight_decay": 5e-4,  # of a port
        "steps": 20_000,  # not given
    },
    # Oh Song, Jegelka, Rathod, Murphy 2017: Deep Metric Learning via Facility Location.
    "facility_location": {
        **_BN_INCEPTION,
        "loss": "facility_location",
        "loss_options": {"gamma": 10.0, "decay": 0.94},  # the first γ is not given
        "dim": 64,
        "batch_size": 128,
        "per_class": 4,
        "optimizer": "adam",  # RMSProp
        "lr": 1e-5,  # not given
        "head_lr_scale": 10.0,  # not given
        "steps": 10_000,  # not given
        "on": {"sop": {"per_class": 2}},  # the authors have 96 classes in 128 examples
    },
    # Law, Urtasun, Zemel 2017: Deep Spectral Clustering Learning.
    "spectral_clustering": {
        **_BN_INCEPTION,
        "loss": "spectral_clustering",
        "dim": 512,
        "batch_size": 1_260,
        "per_class": 70,
        "micro_batch_size": 60,
        "freeze_batchnorm": True,
        "optimizer": "adam",  # not given
        "lr": 1e-5,  # not given
        "head_lr_scale": 10.0,  # not given
        "steps": 1_000,  # not given
        "evaluate_every": 100,
        "checkpoint_every": 100,
        "on": {"sop": {"per_class": 4}, "inshop": {"per_class": 4}},  # not given: their classes are small
    },
    # Yuan, Yang, Zhang 2017: Hard-Aware Deeply Cascaded Embedding; the authors' solvers.
    "hdc": {
        **_GOOGLENET,
        **_SGD,
        "loss": "hdc",
        "model_options": {
            "ends": ["inception4a", "inception4d", "inception5b"],
            "head_hidden": 1024,
            "part_weights": [1, 2, 3],
        },
        "dim": 128,
        "levels": "LMH",
        "augment": {"mirror": 0.0},
        "batch_size": 100,
        "per_class": 10,
        "lr": 1e-2,
        "head_lr_scale": 10.0,
        "weight_decay": 2e-4,
        "schedule": "step",
        "decay_every": 10_000,
        "steps": 20_000,
        "on": {
            "cub200": {
                "model_options": {
                    "ends": ["inception4a", "inception4d", "inception5b"],
                    "head_hidden": 1024,
                    "part_weights": [1, 1, 2],
                },
                "lr": 1e-4,
                "decay_every": 60_000,  # not given
                "steps": 60_000,
            },
            "sop": {
                "model_options": {"ends": ["inception4a", "inception4d", "inception5b"], "head_hidden": 1024},
                "per_class": 5,  # the examples of a product; the authors take all
                "decay_every": 20_000,
                "decay_factor": 0.96,
                "steps": 60_000,
            },
        },
    },
    # Harwood et al. 2017: Smart Mining for Deep Metric Learning.
    "smart_mining": {
        **_GOOGLENET,
        **_SGD,  # the momentum is not given
        "loss": "sum",
        "loss_options": {
            "parts": [
                {"loss": "triplet_ratio", "margin": 0.2, "mining": "disjoint"},
                {"loss": "global", "margin": 0.01, "mining": "disjoint"},  # its weight is not given
            ]
        },
        "dim": 64,
        "sampler": "smart_triplet",
        "batch_size": 120,  # not given
        "lr": 0.1,
        "head_lr_scale": 10.0,
        "weight_decay": 5e-4,
        "schedule": "step",
        "decay_every": 150,  # three epochs
        "decay_factor": 0.5,
        "steps": 1_000,  # twenty epochs
        "evaluate_every": 100,
        "checkpoint_every": 100,
        "on": {"cars196": {"decay_every": 200, "steps": 1_340}},
    },
    # Ge, Huang, Dong, Scott 2018: Deep Metric Learning with Hierarchical Triplet Loss.
    "htl": {
        **_BN_INCEPTION,
        "loss": "hierarchical_triplet",
        "loss_options": {"beta": 0.1},
        "dim": 512,
        "sampler": "anchor_neighbor",
        "sampler_options": {"neighbors": 4, "levels": 16},  # the neighbours are not given
        "batch_size": 128,  # not given
        "per_class": 4,  # not given
        "optimizer": "adam",  # not given
        "lr": 1e-5,  # not given
        "head_lr_scale": 10.0,  # not given
        "steps": 10_000,  # not given
    },
    # Opitz et al. 2017: BIER, Boosting Independent Embeddings Robustly.
    "bier": _BIER,
    # Opitz et al. 2018: Deep Metric Learning with BIER.
    "a_bier": {**_BIER, "loss_options": {"adversarial": True}, "loss_lr_scale": 10.0},
    # Kim et al. 2018: Attention-based Ensemble for Deep Metric Learning, ABE-8.
    "abe": {
        **_GOOGLENET,
        **_SGD,
        "loss": "abe",
        "model_options": {"attention": 8},
        "dim": 64,
        "resize_mode": "longer",
        "batch_size": 64,
        "per_class": 4,  # 16 positive and 16 negative pairs
        "lr": 1e-3,  # not given
        "head_lr_scale": 10.0,  # not given
        "steps": 20_000,  # not given
    },
}
