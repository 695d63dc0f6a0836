"""What the papers vary, and runs that ask why some rows are below the papers' numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from methods import DATASETS, LITE_NETWORKS, VTHM


@dataclass(frozen=True)
class Ablation:
    """An option that a paper varies, or a question about a row and the runs that answer it.

    Attributes:
        title: the option, for the page of results.
        method: the method of which it is an option.
        changes: the options of each value.
        printed: Recall@1 in per cent as the paper prints it.
        source: where the paper prints it.
        datasets: where it is measured.
    """

    title: str
    method: str
    changes: Mapping[str, Mapping[str, Any]]
    printed: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    datasets: tuple[str, ...] = tuple(DATASETS)


def _loss_options(option: str, values: tuple[float, ...], **others: float) -> dict[str, dict[str, Any]]:
    return {f"{value:g}": {"loss_options": {**others, option: value}} for value in values}


#: Measured with the options of the tables and half their steps.
ABLATIONS = {
    "angular_alpha": Ablation(
        "α of NL&AL, in degrees",
        "npair_angular",
        _loss_options("alpha", (36.0, 42.0, 45.0, 48.0, 55.0)),
        {"36": 69.9, "42": 70.7, "45": 71.4, "48": 71.3, "55": 69.0},
        "Angular 2017, table 4, Cars196",
    ),
    "angular_alone_alpha": Ablation(
        "α of AL, in degrees",
        "angular",
        _loss_options("alpha", (36.0, 45.0)),
        {"36": 67.9, "45": 66.4},
        "Angular 2017, table 5, SOP",
    ),
    "rll_alpha": Ablation(
        "α of RLL",
        "rll_h",
        _loss_options("alpha", (1.0, 1.2, 1.4), margin=0.4, temperature=10.0),
        {"1": 78.7, "1.2": 79.8, "1.4": 76.2},
        "Ranked list 2019, table 3, SOP, (L,M,H)",
    ),
    "rll_margin": Ablation(
        "m of RLL",
        "rll_h",
        _loss_options("margin", (0.0, 0.2, 0.4, 0.6, 1.2), alpha=1.2, temperature=10.0),
        {"0": 76.1, "0.2": 79.0, "0.4": 79.8, "0.6": 79.2, "1.2": 79.1},
        "Ranked list 2019, table 4, SOP, (L,M,H)",
    ),
    "rll_temperature": Ablation(
        "T of RLL",
        "rll_h",
        _loss_options("temperature", (0.0, 5.0, 10.0, 15.0, 20.0), alpha=1.2, margin=0.4),
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
    "rll_batch": Ablation(
        "classes × 3 examples of a batch, RLL",
        "rll_h",
        {f"{classes}": {"batch_size": 3 * classes} for classes in (40, 50, 55, 60, 65)},
        {"40": 79.2, "50": 79.5, "55": 79.7, "60": 79.8, "65": 79.8},
        "Ranked list 2019, table 7, SOP, (L,M,H)",
    ),
    "nra_alpha": Ablation(
        "α of NRA",
        "nra",
        _loss_options("alpha", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)),
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

_AS_IT_IS: dict[str, Mapping[str, Any]] = {"as in the table": {}}
_MORE_PIXELS = {"size": 384, "resize": 416, "augment": {"area": [0.25, 1.0], "size": 288}}
_LITE0 = {**LITE_NETWORKS["lite0"], "freeze_to": None}
_VIT = {
    "model": "vit_small_patch14_dinov2",
    "weights": "vit_small_patch14_dinov2_focus",
    "pooling": "class",
    "freeze_to": None,
}
#: A network so small that a CPU trains it in minutes.
_SMALL = {
    **_LITE0, "size": 64, "resize": 72, "stored_size": 72, "steps": 300, "precision": "float32",
}  # fmt: skip
_SMALL_ABE = {**_SMALL, "model_options": {"attention": 4}, "batch_size": 32}
_SMALL_MARGIN = {**_SMALL, "batch_size": 60}
_VALID = VTHM["mining"]
_LIMITS: dict[str, Mapping[str, Any]] = {
    **_AS_IT_IS,
    "eight times the steps": {"steps": 2400},
    "384 pixels": _MORE_PIXELS,
    "EfficientNet-Lite0": _LITE0,
    "ViT-S/14": _VIT,
}

#: Why rows are below their papers' numbers. Measured like `ABLATIONS`; each has a paragraph on the page of results.
CAUSES = {
    "raw_vthm_limit": Ablation(
        "RAW+VTHM: budget, pixels or network?",
        "raw_vthm",
        _LIMITS,
        datasets=("cub200",),
    ),
    "nra_limit": Ablation(
        "NRA: budget, pixels or network?",
        "nra",
        _LIMITS,
        datasets=("cub200",),
    ),
    "vthm_reduction": Ablation(
        "VTHM: sums or means?",
        "vthm",
        {
            **_AS_IT_IS,
            # With flat slopes the gradient of a binomial deviance is that of a mean over the pairs of a kind.
            "means over kept pairs": {
                "loss": "binomial_deviance", "loss_options": {"alpha": 0.1, "beta": 0.1, "mining": _VALID}
            },
        },
    ),
    "binomial_vthm_balance": Ablation(
        "Binomial+VTHM: the balance of its two terms?",
        "binomial_vthm",
        {
            **_AS_IT_IS,
            "α = β = 2": {"loss_options": {"alpha": 2.0, "beta": 2.0, "mining": _VALID}},
            "α = β = 10": {"loss_options": {"alpha": 10.0, "beta": 10.0, "mining": _VALID}},
            "α = β = 50": {"loss_options": {"alpha": 50.0, "beta": 50.0, "mining": _VALID}},
        },
        datasets=("cub200",),
    ),
    "margin_limit": Ablation(
        "Margin: β, mining or the learning rate?",
        "margin",
        {
            **_AS_IT_IS,
            "β learned": {"loss_options": {"learn_beta": True}},
            "all pairs": {"loss_options": {"mining": None}},
            "semi-hard": {"loss_options": {"mining": "semi_hard"}},
            "head at 1 × lr": {"head_lr_scale": 1.0},
        },
        datasets=("cars196",),
    ),
    "margin_small": Ablation(
        "Margin with an EfficientNet-Lite0 at 64 pixels: the dimension?",
        "margin",
        {
            "512 dimensions": _SMALL_MARGIN,
            "128 dimensions": {**_SMALL_MARGIN, "dim": 128},
            "32 dimensions": {**_SMALL_MARGIN, "dim": 32},
            "512 dimensions, semi-hard": {**_SMALL_MARGIN, "loss_options": {"mining": "semi_hard"}},
        },
        datasets=("cars196",),
    ),
    "hdc_limit": Ablation(
        "HDC: its hidden layers or the learning rate?",
        "hdc",
        {
            **_AS_IT_IS,
            "no hidden layers": {"model_options": {"part_weights": [1, 2, 3]}},
            "a tenth of the lr": {"lr": 1e-5},
            "a tenth of the lr, head at 10 ×": {"lr": 1e-5, "head_lr_scale": 10.0},
            "negatives weighted as positives": {"loss_options": {"weight": 1.0}},
        },
        datasets=("cars196",),
    ),
    "pddm_limit": Ablation(
        "PDDM: one quadruplet a batch, or the learning rate?",
        "pddm",
        {
            **_AS_IT_IS,
            # The same number of images, in batches that hold one quadruplet each.
            "batches of 24, five times the steps": {"batch_size": 24, "steps": 4500},
            "five times the lr": {"lr": 1e-4},
        },
        datasets=("cars196",),
    ),
    "htl_limit": Ablation(
        "HTL: its margins, its batches or the learning rate?",
        "htl",
        {
            **_AS_IT_IS,
            "five times the lr": {"lr": 1e-4},
            "one margin of 0.2": {"loss": "triplet", "loss_options": {}},
            "one margin of 0.2, random classes": {
                "loss": "triplet",
                "loss_options": {},
                "sampler": "class_balanced",
                "sampler_options": {},
            },
        },
        datasets=("cars196",),
    ),
    "abe_limit": Ablation(
        "ABE-8: its divergence or the learning rate?",
        "abe",
        {
            **_AS_IT_IS,
            # 64 images and 28 pairs of learners.
            "a mean of divergences": {"loss_options": {"weight": 1 / (64 * 28)}},
            "a tenth of the lr": {"lr": 1e-5},
            # Half of the authors' pairs are positive; of all pairs of 16 classes × 4 it is a twentieth.
            "4 classes × 16": {"per_class": 16},
            "4 classes × 16, a mean over the images": {"per_class": 16, "loss_options": {"weight": 1 / 64}},
        },
        datasets=("cars196",),
    ),
    "abe_small": Ablation(
        "ABE-4 with an EfficientNet-Lite0 at 64 pixels: a sum or a mean of divergences?",
        "abe",
        {
            "a sum": _SMALL_ABE,
            "a mean over the images": {**_SMALL_ABE, "loss_options": {"weight": 1 / 32}},
        },
        datasets=("cars196",),
    ),
}  # fmt: skip
