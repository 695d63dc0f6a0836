"""The papers' settings, and the best ones that were found with Tuplet.

A recipe is a dictionary of options (`tuplet.training.Settings`). The comment "not given" marks a value that is not
in the paper: choose it by validation classes. `on` holds the options that a paper changes for one of its datasets. The
package has none of the papers' ImageNet weights: set `weights`, and another `model` if you do not have the weights of
the paper's model. The papers print the best result on the test classes, so their recipes set `validation` to 0.
"""

from collections.abc import Mapping
from typing import Any

from tuplet.data import Dataset
from tuplet.errors import OptionError, did_you_mean
from tuplet.training.papers import benchmark

#: What most recipes share.
_GOOGLENET = {
    "model": "googlenet",
    "normalize": True,
    "size": 224,
    "resize": 256,
    "resize_mode": "square",
    "sampler": "class_balanced",
    "schedule": "constant",
    "evaluate_every": 1_000,
    "checkpoint_every": 1_000,
    "validation": 0.0,
}
_BN_INCEPTION = {**_GOOGLENET, "model": "bn_inception", "size": 227}
_SGD = {"optimizer": "sgd", "momentum": 0.9}
#: Faces: trained on CASIA-WebFace, tested on LFW.
_FACES = {
    "model": "casianet",
    "weights": None,
    "dim": None,
    "normalize": "eval",  # not given by Yi et al.
    "size": 100,
    "resize_mode": "square",
    "schedule": "step",
    "steps": 240_000,  # not given by Yi et al.
    "evaluate_every": 5_000,
    "checkpoint_every": 5_000,
    "test_share": 0.02,  # LFW is the test
    "validation": 0.02,  # not given
}
#: The released run on SOP; the settings of the other benchmarks are not given.
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
#: What the best recipes of docs/results.md share. They were chosen on validation classes of CUB-200-2011 and Cars196,
#: with batches of 120. The size of batches is left to the number of classes and the device.
_BEST: dict[str, Any] = {
    "loss": "proxy_anchor",
    "dim": 512,
    "resize_mode": "shorter",
    "augment": {"area": [0.25, 1.0]},
    "sampler": "class_balanced",
    "precision": "bfloat16",
    "head_steps": 100,
    "steps": 600,
}
_STRONG = {"area": [0.08, 1.0], "brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
_HDC_HEADS = {"ends": ["inception4a", "inception4d", "inception5b"], "head_hidden": 1024}

RECIPES: dict[str, Mapping[str, Any]] = {
    "best_resnet50": {
        **_BEST,
        "model": "resnet50",
        "dim": 2048,
        "size": 384,
        "resize": 416,
        "augment": {**_BEST["augment"], "size": 288},
        "pooling": "mean+max",
        "freeze_to": "L",
        "lr": 5e-5,
        "on": {
            "cars196": {
                "dim": 512,
                "augment": {**_STRONG, "size": 288},
                "levels": "MH",
                "freeze_to": None,
                "lr": 2e-4,
                "ema": 0.995,
                "steps": 1_800,
            }
        },
    },
    "best_vit": {
        **_BEST,
        "model": "vit_small_patch14_dinov2",
        "size": 336,
        "resize": 384,
        "augment": {**_BEST["augment"], "size": 224},
        "pooling": "class+mean",
        "lora": 16,
        "lora_layers": "all",
        "lr": 3e-4,
        "loss_lr_scale": 10.0,
        "steps": 1_200,
        "on": {
            "cars196": {
                "augment": _STRONG,
                "pooling": "class",
                "lora": 0,
                "lora_layers": "attention",
                "lr": 3e-5,
                "head_lr_scale": 10.0,
                "loss_lr_scale": 100.0,
                "ema": 0.995,
            }
        },
    },
    # Wang et al. 2017: Deep Metric Learning with Angular Loss, section 4.4.
    "npair_angular": {
        **_GOOGLENET,
        **_SGD,  # the momentum is not given
        "loss": "npair_angular",
        "loss_options": {"alpha": 45.0, "weight": 2.0},
        "dim": 512,
        "normalize": "eval",  # the test normalization is not given
        "size": 227,  # not given: "standard random crop"
        "sampler": "npair",
        "batch_size": 128,
        "lr": 1e-4,
        "head_lr_scale": 10.0,
        "steps": 20_000,
        "on": {"cub200": {"lr": 1e-5}, "sop": {"loss_options": {"alpha": 36.0, "weight": 2.0}}},
    },
    # Sohn 2016: Improved Deep Metric Learning with Multi-class N-pair Loss Objective, section 4.2.
    "npair": {
        **_GOOGLENET,
        "loss": "npair",
        "loss_options": {"norm_penalty": 0.003},  # not given
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
    # Sohn 2016, section 4.3.
    "npair_faces": {
        **_FACES,
        "loss": "npair",
        "loss_options": {"norm_penalty": 0.003},  # not given
        "resize": 110,  # not given: "random crops"
        "sampler": "npair",
        "batch_size": 384,  # their best result: 640
        "optimizer": "adam",
        "lr": 3e-4,
        "decay_start": 160_000,
        "decay_every": 40_000,
        "decay_factor": 0.316,  # to 1e-4 and 3e-5
    },
    # A Unified View of Deep Metric Learning via Gradient Analysis, 2019, section 6.
    "raw_vthm": {
        **_BN_INCEPTION,
        "loss": "raw",
        "loss_options": {
            "alpha": 2.0,
            "beta": 50.0,
            "threshold": 0.5,
            "mining": {"name": "valid_triplet", "epsilon": 0.1},
        },
        "dim": 512,
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
        **_GOOGLENET,
        **_SGD,
        "loss": "nra",
        "loss_options": {"alpha": 4.0},
        "dim": 512,
        "normalize": "eval",
        "resize_mode": "longer",
        "sampler": "ngroup",
        "batch_size": 128,
        "per_class": 8,
        "lr": 1e-4,
        "head_lr_scale": 1.0,
        "steps": 20_000,  # not given
        "on": {"cars196": {"lr": 5e-4}, "sop": {"lr": 1e-3, "per_class": 4}},
    },
    # Wang et al. 2019: Ranked List Loss for Deep Metric Learning, sections 3.4 and 4.1: RLL-(L,M,H).
    "ranked_list": {
        **_BN_INCEPTION,
        **_SGD,
        "loss": "ranked_list",
        "loss_options": {"alpha": 1.2, "margin": 0.4, "temperature": 10.0},
        "dim": 512,
        "levels": "LMH",
        "batch_size": 180,
        "per_class": 3,
        "weight_decay": 1e-5,
        "lr": 1e-2,
        "head_lr_scale": 10.0,
        "steps": 10_000,
        "evaluate_every": 500,
        "checkpoint_every": 500,
        "on": {"cub200": {"lr": 1e-3}, "sop": {"steps": 16_000}},
    },
    # The systems that these papers compare with: what is known of their settings.
    # Yi, Lei, Liao, Li 2014: Learning Face Representation from Scratch.
    "casia": {
        **_FACES,
        **_SGD,
        "loss": "sum",
        "loss_options": {
            "parts": [{"loss": "softmax"}, {"loss": "contrastive", "weight": 0.05, "margin": 1.0}]  # both not given
        },
        "resize": 100,
        "sampler": "class_balanced",
        "batch_size": 128,  # not given
        "per_class": 2,  # not given
        "lr": 1e-2,  # not given
        "loss_lr_scale": 1.0,
        "decay_every": 80_000,  # not given
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
        "model_options": {**_HDC_HEADS, "part_weights": [1, 2, 3]},
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
                "model_options": {**_HDC_HEADS, "part_weights": [1, 1, 2]},
                "lr": 1e-4,
                "decay_every": 60_000,  # not given
                "steps": 60_000,
            },
            "sop": {
                "model_options": _HDC_HEADS,
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
        "lr": 2e-3,
        "warmup": 100,  # without it the embeddings collapse
        "steps": 400,
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
