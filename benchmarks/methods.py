"""The methods of the five papers' tables, the systems that they compare with, and the datasets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Benchmark:
    """A dataset and the options that all methods share on it.

    Attributes:
        title: its name on the page of results.
        source: what `tuplet train` opens.
        options: keywords of `tuplet.train`.
        trial_steps: the steps of a trial of the hyper-parameter search.
        levels: the levels that the network has.
    """

    title: str
    source: str
    options: Mapping[str, Any]
    trial_steps: int
    levels: str = "LMH"


#: ResNet-50 v1, 512-d, crops of 224² in true proportions. All other options are searched on validation classes.
_RESNET50 = {
    "model": "resnet50",
    "weights": "resnet50_v1_imagenet",
    "dim": 512,
    "size": 224,
    "resize": 256,
    "resize_mode": "shorter",
    "stored_size": 256,
    "batch_size": 120,
    "precision": "bfloat16",
}
_CONVNET = {
    "model": "convnet",
    "model_options": {"size": 24, "channels": 1},
    "dim": 16,
    "resize": 26,
    "stored_size": 32,
    "batch_size": 120,
}

DATASETS = {
    "cub200": Benchmark("CUB-200-2011", "$TUPLET_DATA/cub200.csv", _RESNET50, trial_steps=400),
    "cars196": Benchmark("Cars196", "$TUPLET_DATA/cars196.csv", _RESNET50, trial_steps=400),
    # Handwritten characters, for recipes that were chosen on photographs.
    "omniglot": Benchmark("Omniglot", "$TUPLET_DATA/omniglot", _RESNET50, trial_steps=400),
    # Drawn characters: the whole protocol in minutes, to try it out.
    "glyphs": Benchmark("drawn glyphs", "glyphs", _CONVNET, trial_steps=3, levels="H"),
}
#: What `tuplet train` opens; Fashion-MNIST is for figures.
SOURCES = {name: dataset.source for name, dataset in DATASETS.items()}
SOURCES |= {"fashion_mnist": "$TUPLET_DATA/fashion-mnist"}


@dataclass(frozen=True)
class Method:
    """A row of the tables: a loss with its paper's hyper-parameters, and batches of 120 as in its paper.

    Attributes:
        title: its name on the page of results.
        family: methods of a family share the options that were searched.
        options: keywords of `tuplet.train`.
        proposed: one of the five papers proposes it; the others are baselines.
        steps: its share of the protocol's steps, for batches of another size.
    """

    title: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    proposed: bool = False
    steps: float = 1.0


def _balanced(per_class: int) -> dict[str, Any]:
    return {"sampler": "class_balanced", "per_class": per_class}


_PAIRS = {"sampler": "npair"}
_GROUPS = {"sampler": "ngroup", "per_class": 8}
_HARD = {"sampler": "hard_class", "candidates": 100}
#: The mining of the unified view.
VTHM = {"mining": {"name": "valid_triplet", "epsilon": 0.1}}
_64 = {"dim": 64}
#: Three heads on one level, as BIER has them.
_BIER = {
    "loss": "bier",
    "model_options": {"heads": [96, 160, 256], "part_weights": [96, 160, 256]},
    **_balanced(2),
}

#: In the order of the table: each paper's methods beside what it compares them with.
METHODS = {
    "softmax": Method("Softmax", "proxy", {"loss": "softmax", **_balanced(5)}),
    "contrastive": Method("Contrastive", "unit", {"loss": "contrastive", **_balanced(5)}),
    "triplet_1": Method(
        "Triplet-I", "unit", {"loss": "triplet", "loss_options": {"mining": "disjoint"}, "sampler": "triplet"}
    ),
    "triplet_2": Method("Triplet-II", "unit", {"loss": "triplet", **_PAIRS}),
    "triplet_semi_hard": Method(
        "Triplet, semi-hard", "unit", {"loss": "triplet", "loss_options": {"mining": "semi_hard"}, **_GROUPS}
    ),
    "triplet_semi_hard_64": Method(
        "Triplet, semi-hard, 64-d",
        "unit",
        {"loss": "triplet", "loss_options": {"mining": "semi_hard"}, **_GROUPS, **_64},
    ),
    "smooth_triplet": Method("Triplet, smooth", "free", {"loss": "smooth_triplet", **_PAIRS}),
    "smooth_triplet_hard": Method("Triplet, smooth, hard classes", "free", {"loss": "smooth_triplet", **_HARD}),
    "lifted_structure": Method(
        "Lifted structure", "free", {"loss": "lifted_structure", "normalize": "eval", **_GROUPS}
    ),
    "lifted_structure_64": Method(
        "Lifted structure, 64-d", "free", {"loss": "lifted_structure", "normalize": "eval", **_GROUPS, **_64}
    ),
    # Dot products of unit vectors stay below its margin unless they are scaled.
    "generalized_lifted": Method(
        "Lifted, generalised", "unit", {"loss": "generalized_lifted", "loss_options": {"scale": 16.0}, **_balanced(5)}
    ),
    "npair": Method(
        "N-pair-mc", "free", {"loss": "npair", "loss_options": {"norm_penalty": 0.003}, **_PAIRS}, proposed=True
    ),
    "npair_ovo": Method(
        "N-pair-ovo", "free", {"loss": "npair", "loss_options": {"variant": "ovo", "norm_penalty": 0.003}, **_PAIRS},
        proposed=True,
    ),
    "npair_64": Method(
        "N-pair-mc, 64-d", "free", {"loss": "npair", "loss_options": {"norm_penalty": 0.003}, **_PAIRS, **_64}
    ),
    "npair_ovo_hard": Method(
        "N-pair-ovo, hard classes",
        "free",
        {"loss": "npair", "loss_options": {"variant": "ovo", "norm_penalty": 0.003}, **_HARD},
    ),
    "npair_hard": Method(
        "N-pair-mc, hard classes",
        "free",
        {"loss": "npair", "loss_options": {"norm_penalty": 0.003}, **_HARD},
        proposed=True,
    ),
    "nca": Method("NCA, several positives", "free", {"loss": "nca", **_balanced(5)}, proposed=True),
    "npair_all": Method("N-pair (NL)", "free", {"loss": "npair_all", **_PAIRS}),
    "angular": Method("Angular (AL)", "angular", {"loss": "angular", **_PAIRS}, proposed=True),
    "npair_angular": Method("NL&AL", "angular", {"loss": "npair_angular", **_PAIRS}, proposed=True),
    "binomial": Method("Binomial", "unit", {"loss": "binomial_deviance", **_balanced(5)}),
    "vthm": Method(
        "VTHM", "equal", {"loss": "cosine_contrastive", "loss_options": VTHM, **_balanced(5)}, proposed=True
    ),
    "binomial_vthm": Method(
        "Binomial+VTHM", "unit", {"loss": "binomial_deviance", "loss_options": VTHM, **_balanced(5)}, proposed=True
    ),
    "raw": Method("RAW", "unit", {"loss": "raw", **_balanced(5)}, proposed=True),
    "raw_dw": Method(
        "RAW+DW", "unit", {"loss": "raw", "loss_options": {"mining": "distance_weighted"}, **_balanced(5)},
        proposed=True,
    ),
    "raw_semi_hard": Method(
        "RAW+SemiHard", "unit", {"loss": "raw", "loss_options": {"mining": "semi_hard"}, **_balanced(5)}, proposed=True
    ),
    "raw_vthm": Method(
        "RAW+VTHM", "unit", {"loss": "raw", "loss_options": VTHM, **_balanced(5)}, proposed=True
    ),
    "margin": Method("Margin, distance-weighted", "margin", {"loss": "margin", **_balanced(5)}),
    "histogram": Method("Histogram", "unit", {"loss": "histogram", **_balanced(5)}),
    "proxy_nca": Method("Proxy-NCA", "nearest proxy", {"loss": "proxy_nca", **_balanced(4)}),
    "proxy_anchor": Method("Proxy-Anchor", "proxy", {"loss": "proxy_anchor", **_balanced(4)}),
    "nra": Method("NRA", "rank", {"loss": "nra", **_GROUPS}, proposed=True),
    "nra_64": Method("NRA, 64-d", "rank", {"loss": "nra", **_GROUPS, **_64}),
    "rll_h": Method("RLL-H", "unit", {"loss": "ranked_list", **_balanced(3)}, proposed=True),
    "rll_lmh": Method(
        "RLL-(L,M,H)", "unit", {"loss": "ranked_list", "levels": "LMH", **_balanced(3)}, proposed=True
    ),
    # The systems that the papers compare with, each with its own batches and heads.
    "pddm": Method("PDDM+Quadruplet", "pddm", {"loss": "pddm", "loss_lr_scale": 10.0, **_balanced(4)}),
    "facility_location": Method(
        "Struct Clust", "facility_location",
        {"loss": "facility_location", "loss_options": {"gamma": 10.0, "decay": 0.94}, **_balanced(4)},
    ),
    "spectral_clustering": Method(
        "Spectral Clust", "spectral_clustering",
        {"loss": "spectral_clustering", "batch_size": 1260, "micro_batch_size": 60, **_balanced(70)}, steps=120 / 1260,
    ),
    "hdc": Method(
        "HDC", "hdc",
        {
            "loss": "hdc", "levels": "LMH", "dim": 128,
            "model_options": {"head_hidden": 1024, "part_weights": [1, 2, 3]},
            **_balanced(10),
        },
    ),
    "smart_mining": Method(
        "Smart mining", "smart_mining",
        {
            "loss": "sum",
            "loss_options": {
                "parts": [
                    {"loss": "triplet_ratio", "margin": 0.2, "mining": "disjoint"},
                    {"loss": "global", "margin": 0.01, "mining": "disjoint"},
                ]
            },
            "sampler": "smart_triplet",
        },
    ),
    "htl": Method(
        "HTL", "htl",
        {
            "loss": "hierarchical_triplet", "loss_options": {"beta": 0.1}, "sampler": "anchor_neighbor",
            "sampler_options": {"neighbors": 3}, "per_class": 4,
        },
    ),
    "bier": Method("BIER", "bier", _BIER),
    "a_bier": Method("A-BIER", "bier", {**_BIER, "loss_options": {"adversarial": True}, "loss_lr_scale": 10.0}),
    "abe": Method(
        "ABE-8, a third of the steps", "unit",
        {"loss": "abe", "model_options": {"attention": 8}, "dim": 64, "batch_size": 64, **_balanced(4)}, steps=1 / 3,
    ),
}  # fmt: skip

#: The systems that the papers compare with.
SYSTEMS = tuple(list(METHODS)[list(METHODS).index("pddm") :])

#: Small networks that share a recipe, which the first of them chooses.
LITE_NETWORKS = {
    f"lite{n}": {"model": f"efficientnet_lite{n}", "weights": f"efficientnet_lite{n}_imagenet"} for n in range(3)
}
#: The rows with any loss and any number of pixels, one for each network.
RECIPE_ROWS = {
    "best": "the best recipe, ResNet-50",
    "vit": "the best recipe, ViT-S/14",
    **{f"lite{n}": f"EfficientNet-Lite{n}" for n in range(3)},
}
#: The recipe of each such row.
RECIPES = {"best": "best", "vit": "vit", **dict.fromkeys(LITE_NETWORKS, "lite")}


def row_title(row: str) -> str:
    """Return the name of a row on the page of results: a method's, or that of a recipe."""
    return RECIPE_ROWS.get(row) or METHODS[row].title


#: The main rows: Recall@1 in per cent that each method's paper prints; for the recipes the highest number that we know
#: to be printed for such a network: ProxyNCA++ and AVSL for ResNet-50, VPTSP-G and HIER for ViT-S.
TARGETS = {
    "npair": {"cub200": 51.0, "cars196": 71.1},
    "npair_angular": {"cub200": 54.7, "cars196": 71.4},
    "raw_vthm": {"cub200": 66.9, "cars196": 83.7},
    "nra": {"cub200": 64.3, "cars196": 82.1},
    "rll_h": {"cub200": 57.4, "cars196": 74.0},
    "rll_lmh": {"cub200": 61.3, "cars196": 82.1},
    "best": {"cub200": 72.2, "cars196": 91.5},
    "vit": {"cub200": 86.6, "cars196": 91.3},
}

#: The method that chooses the options of each family.
FAMILIES = {
    "unit": "raw_vthm",
    "rank": "nra",
    "angular": "npair_angular",
    "free": "npair",
    "proxy": "proxy_anchor",
    "equal": "vthm",
    "margin": "margin",
    "nearest proxy": "proxy_nca",
    # A-BIER takes the learning rate of BIER, and ABE-8, whose trials are slow, that of the unit family.
    **{name: name for name in SYSTEMS if METHODS[name].family == name},
}

#: Methods whose nearest images are drawn, as in figure 5 of Angular 2017.
NEAREST = ("npair", "npair_angular")
#: The recipe whose test images are drawn as a map.
MAPPED = "best"
#: The seeds of methods that the papers propose; baselines have the first one only.
SEEDS = (0, 1, 2)
