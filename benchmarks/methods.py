"""The methods of the five papers' tables, the options that they share, and the data that they are measured on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bench:
    """Data to train and test on: what `tuplet train` opens, below $TUPLET_DATA, and the options that all methods share.

    `short` is the number of steps of a trial of the search, `levels` those that the network has.
    """

    title: str
    source: str
    options: Mapping[str, Any]
    short: int
    levels: str = "LMH"


#: ResNet-50 v1, 512-d, crops of 224² in true proportions. What is not here is searched for on validation classes.
_PHOTOGRAPHS = {
    "model": "resnet50",
    "weights": "resnet50_v1_imagenet",
    "dim": 512,
    "size": 224,
    "resize": 256,
    "fit": "shorter",
    "stored_size": 256,
    "batch_size": 120,
    "precision": "bfloat16",
}
_GLYPHS = {
    "model": "convnet",
    "model_options": {"size": 24, "channels": 1},
    "dim": 16,
    "resize": 26,
    "stored_size": 32,
    "batch_size": 120,
}

BENCHES = {
    "cub200": Bench("CUB-200-2011", "$TUPLET_DATA/cub200.csv", _PHOTOGRAPHS, short=400),
    "cars196": Bench("Cars196", "$TUPLET_DATA/cars196.csv", _PHOTOGRAPHS, short=400),
    # A rehearsal of all of it in minutes, on characters that are drawn on the spot.
    "glyphs": Bench("drawn glyphs", "glyphs", _GLYPHS, short=3, levels="H"),
}
#: What `tuplet train` is given for each, and for the maps in two dimensions.
SOURCES = {name: bench.source for name, bench in BENCHES.items()} | {"fashion_mnist": "$TUPLET_DATA/fashion-mnist"}


@dataclass(frozen=True)
class Method:
    """A row of the tables: its loss with the paper's numbers, and batches of 120 built as its paper builds them.

    `family`: methods of a family share their rates. `own`: a method of the five papers, not a baseline of theirs.
    """

    title: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False


def _balanced(per_class: int) -> dict[str, Any]:
    return {"sampler": "class_balanced", "per_class": per_class}


_PAIRS = {"sampler": "npair"}
_GROUPS = {"sampler": "ngroup", "per_class": 8}
_VTHM = {"mining": {"name": "valid_triplet", "epsilon": 0.1}}

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
    "lifted_structure": Method(
        "Lifted structure", "free", {"loss": "lifted_structure", "normalize": "eval", **_GROUPS}
    ),
    "generalized_lifted": Method("Lifted, generalised", "unit", {"loss": "generalized_lifted", **_balanced(5)}),
    "npair": Method(
        "N-pair-mc", "free", {"loss": "npair", "loss_options": {"norm_penalty": 0.003}, **_PAIRS}, own=True
    ),
    "npair_ovo": Method(
        "N-pair-ovo", "free", {"loss": "npair", "loss_options": {"variant": "ovo", "norm_penalty": 0.003}, **_PAIRS},
        own=True,
    ),
    "npair_hard": Method(
        "N-pair-mc, hard classes",
        "free",
        {"loss": "npair", "loss_options": {"norm_penalty": 0.003}, "sampler": "hard_class", "candidates": 100},
        own=True,
    ),
    "nca": Method("NCA, several positives", "free", {"loss": "nca", **_balanced(5)}, own=True),
    "npair_all": Method("N-pair (NL)", "free", {"loss": "npair_all", **_PAIRS}),
    "angular": Method("Angular (AL)", "angular", {"loss": "angular", **_PAIRS}, own=True),
    "npair_angular": Method("NL&AL", "angular", {"loss": "npair_angular", **_PAIRS}, own=True),
    "binomial": Method("Binomial", "unit", {"loss": "binomial_deviance", **_balanced(5)}),
    "vthm": Method("VTHM", "equal", {"loss": "cosine_contrastive", "loss_options": _VTHM, **_balanced(5)}, own=True),
    "binomial_vthm": Method(
        "Binomial+VTHM", "unit", {"loss": "binomial_deviance", "loss_options": _VTHM, **_balanced(5)}, own=True
    ),
    "raw": Method("RAW", "unit", {"loss": "raw", **_balanced(5)}, own=True),
    "raw_dw": Method(
        "RAW+DW", "unit", {"loss": "raw", "loss_options": {"mining": "distance_weighted"}, **_balanced(5)}, own=True
    ),
    "raw_semi_hard": Method(
        "RAW+SemiHard", "unit", {"loss": "raw", "loss_options": {"mining": "semi_hard"}, **_balanced(5)}, own=True
    ),
    "raw_vthm": Method(
        "RAW+VTHM", "unit", {"loss": "raw", "loss_options": _VTHM, **_balanced(5)}, own=True
    ),
    "margin": Method("Margin, distance-weighted", "margin", {"loss": "margin", **_balanced(5)}),
    "histogram": Method("Histogram", "unit", {"loss": "histogram", **_balanced(5)}),
    "proxy_nca": Method("Proxy-NCA", "nearest proxy", {"loss": "proxy_nca", **_balanced(4)}),
    "proxy_anchor": Method("Proxy-Anchor", "proxy", {"loss": "proxy_anchor", **_balanced(4)}),
    "nra": Method("NRA", "rank", {"loss": "nra", **_GROUPS}, own=True),
    "rll_h": Method("RLL-H", "unit", {"loss": "ranked_list", **_balanced(3)}, own=True),
    "rll_lmh": Method(
        "RLL-(L,M,H)", "unit", {"loss": "ranked_list", "levels": "LMH", **_balanced(3)}, own=True
    ),
}  # fmt: skip

#: The rows that are measured first: Recall@1 in per cent that each method's paper prints, and what the best recipe is
#: to reach.
TARGETS = {
    "npair": {"cub200": 51.0, "cars196": 71.1},
    "npair_angular": {"cub200": 54.7, "cars196": 71.4},
    "raw_vthm": {"cub200": 66.9, "cars196": 83.7},
    "nra": {"cub200": 64.3, "cars196": 82.1},
    "rll_h": {"cub200": 57.4, "cars196": 74.0},
    "rll_lmh": {"cub200": 61.3, "cars196": 82.1},
    "best": {"cub200": 70.0, "cars196": 88.0},
}

#: The families of methods whose vectors or weights are of one kind, and the method that chooses for each.
FAMILIES = {
    "unit": "raw_vthm",
    "rank": "nra",
    "angular": "npair_angular",
    "free": "npair",
    "proxy": "proxy_anchor",
    "equal": "vthm",
    "margin": "margin",
    "nearest proxy": "proxy_nca",
}


@dataclass(frozen=True)
class Ablation:
    """What a paper varies: a method, the values of one of its options, and Recall@1 in per cent as printed there."""

    title: str
    method: str
    changes: Mapping[str, Mapping[str, Any]]
    printed: Mapping[str, float]
    where: str


def _losses(option: str, values: tuple[float, ...], **others: float) -> dict[str, dict[str, Any]]:
    return {f"{value:g}": {"loss_options": {**others, option: value}} for value in values}


#: Measured with the rates and the augmentation of the tables at half their steps.
ABLATIONS = {
    "angular_alpha": Ablation(
        "α of NL&AL, in degrees",
        "npair_angular",
        _losses("alpha", (36.0, 42.0, 45.0, 48.0, 55.0)),
        {"36": 69.9, "42": 70.7, "45": 71.4, "48": 71.3, "55": 69.0},
        "Angular 2017, table 4, Cars196",
    ),
    "rll_alpha": Ablation(
        "α of RLL",
        "rll_h",
        _losses("alpha", (1.0, 1.2, 1.4), margin=0.4, temperature=10.0),
        {"1": 78.7, "1.2": 79.8, "1.4": 76.2},
        "Ranked list 2019, table 3, SOP, (L,M,H)",
    ),
    "rll_margin": Ablation(
        "m of RLL",
        "rll_h",
        _losses("margin", (0.0, 0.2, 0.4, 0.6, 1.2), alpha=1.2, temperature=10.0),
        {"0": 76.1, "0.2": 79.0, "0.4": 79.8, "0.6": 79.2, "1.2": 79.1},
        "Ranked list 2019, table 4, SOP, (L,M,H)",
    ),
    "rll_temperature": Ablation(
        "T of RLL",
        "rll_h",
        _losses("temperature", (0.0, 5.0, 10.0, 15.0, 20.0), alpha=1.2, margin=0.4),
        {"0": 78.8, "5": 79.1, "10": 79.8, "15": 79.3, "20": 78.6},
        "Ranked list 2019, table 5, SOP, (L,M,H)",
    ),
    "rll_levels": Ablation(
        "levels of RLL",
        "rll_h",
        {levels: {"levels": levels} for levels in ("L", "M", "H", "LMH")},
        {"L": 76.1, "M": 76.9, "H": 76.1, "LMH": 79.8},
        "Ranked list 2019, table 6, SOP",
    ),
    "nra_alpha": Ablation(
        "α of NRA",
        "nra",
        _losses("alpha", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)),
        {},
        "Nonlinear rank approximation 2019, figure 3, Cars196: best at 4, as a curve without numbers",
    ),
    "nca_batch": Ablation(
        "classes × examples of a batch, NCA",
        "nca",
        {f"{120 // each} × {each}": {"sampler": "class_balanced", "per_class": each} for each in (2, 4, 12)},
        {"60 × 2": 71.12, "30 × 4": 69.30, "10 × 12": 65.49},
        "N-pair 2016, table 4, Cars196",
    ),
}

#: Whose progress is drawn beside each other, as in figure 3 of N-pair 2016.
CURVES = ("triplet_2", "npair_ovo", "npair")
#: Of the papers' own methods; baselines have the first alone.
SEEDS = (0, 1, 2)
