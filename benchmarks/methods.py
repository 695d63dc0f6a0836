"""The methods of the five papers' tables, the options that they share, and the data that they are measured on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bench:
    """Data to train and test on: what `tuplet train` opens, below $TUPLET_DATA, and the options that all methods share.

    `length` is the number of steps of a run of the tables; trials of the search and ablations are shorter.
    """

    title: str
    source: str
    options: Mapping[str, Any]
    length: int
    short: int


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
    "compile": True,
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
    "cub200": Bench("CUB-200-2011", "$TUPLET_DATA/cub200.csv", _PHOTOGRAPHS, length=1200, short=600),
    "cars196": Bench("Cars196", "$TUPLET_DATA/cars196.csv", _PHOTOGRAPHS, length=1200, short=600),
    # A rehearsal of all of it in minutes, on characters that are drawn on the spot.
    "glyphs": Bench("drawn glyphs", "glyphs", _GLYPHS, length=6, short=3),
}


@dataclass(frozen=True)
class Method:
    """A row of the tables: its loss with the paper's numbers, and batches of 120 built as its paper builds them.

    `family`: methods of a family share their learning rate. `own`: a method of the five papers, not a baseline of
    theirs. `target`: the first rows to be measured.
    """

    title: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    target: bool = False


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
    "lifted_structure": Method("Lifted structure", "unit", {"loss": "lifted_structure", **_GROUPS}),
    "generalized_lifted": Method("Lifted, generalised", "unit", {"loss": "generalized_lifted", **_balanced(5)}),
    "npair": Method(
        "N-pair-mc", "free", {"loss": "npair", "loss_options": {"norm_penalty": 0.003}, **_PAIRS}, own=True, target=True
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
    "angular": Method("Angular (AL)", "free", {"loss": "angular", **_PAIRS}, own=True),
    "npair_angular": Method("NL&AL", "free", {"loss": "npair_angular", **_PAIRS}, own=True, target=True),
    "binomial": Method("Binomial", "unit", {"loss": "binomial_deviance", **_balanced(5)}),
    "vthm": Method("VTHM", "unit", {"loss": "cosine_contrastive", "loss_options": _VTHM, **_balanced(5)}, own=True),
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
        "RAW+VTHM", "unit", {"loss": "raw", "loss_options": _VTHM, **_balanced(5)}, own=True, target=True
    ),
    "margin": Method("Margin, distance-weighted", "unit", {"loss": "margin", **_balanced(5)}),
    "histogram": Method("Histogram", "unit", {"loss": "histogram", **_balanced(5)}),
    "proxy_nca": Method("Proxy-NCA", "proxy", {"loss": "proxy_nca", **_balanced(4)}),
    "proxy_anchor": Method("Proxy-Anchor", "proxy", {"loss": "proxy_anchor", **_balanced(4)}),
    "nra": Method("NRA", "rank", {"loss": "nra", **_GROUPS}, own=True, target=True),
    "rll_h": Method("RLL-H", "unit", {"loss": "ranked_list", **_balanced(3)}, own=True, target=True),
    "rll_lmh": Method(
        "RLL-(L,M,H)", "unit", {"loss": "ranked_list", "levels": "LMH", **_balanced(3)}, own=True, target=True
    ),
}  # fmt: skip

#: What is searched for first in each family, and with which of its methods.
FAMILIES = {"unit": "raw_vthm", "free": "npair_angular", "rank": "nra", "proxy": "proxy_anchor"}
