"""Draw the papers' figures from our own runs and losses: weights, maps, nearest images, curves.

    TUPLET_DATA=folder python benchmarks/figures.py

It draws docs/images/results_* from the files in benchmarks/results; images are read from TUPLET_DATA. figure_runs.py
makes those files that protocols.py does not make.
"""

import os
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch import Tensor

from figure_runs import CURVES, GRID, MAPS
from methods import DATASETS, METHODS, NEAREST
from results_data import read
from results_page import IMAGES
from tuplet import data, losses

_RIGHT, _WRONG = "#2a9d4a", "#d1495b"


def draw_maps(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw test examples in the plane, one colour for each class, with mAP."""
    found = [results[f"map_{method}"] for method in MAPS if f"map_{method}" in results]
    if not found:
        return
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 4.2), squeeze=False)
    for axis, result in zip(axes[0], found, strict=True):
        x, y = zip(*result["points"], strict=True)
        axis.scatter(x, y, c=result["labels"], cmap="tab10", s=3, linewidths=0)
        title = METHODS[result["method"]].title
        axis.set_title(f"{title}: mAP {100 * result['metrics']['mean_average_precision']:.1f}")
        axis.set_aspect("equal", "datalim")
        axis.tick_params(labelsize=7)
    _save(figure, "maps.png")


def draw_curves(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the 60-pair loss and the 60-way accuracy on training classes against the step, as figure 3 of Sohn 2016."""
    found = [results[f"curve_omniglot_{method}"] for method in CURVES if f"curve_omniglot_{method}" in results]
    if not found:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for result in found:
        title = METHODS[result["method"]].title
        steps, values, accuracies = zip(*result["points"], strict=True)
        left.plot(steps, values, marker=".", label=title)
        right.plot(steps, [100 * value for value in accuracies], marker=".", label=title)
    left.set(xlabel="step", ylabel="60-pair loss", yscale="log")
    right.set(xlabel="step", ylabel="60-way accuracy, %")
    right.legend()
    _save(figure, "curves.png")


def draw_nearest(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw queries with their five nearest by each method; a green frame is the query's class, a red one is not."""
    for dataset in ("cub200", "cars196"):
        found = [results[f"row_{dataset}_{m}_0"] for m in NEAREST if f"row_{dataset}_{m}_0" in results]
        if len(found) < len(NEAREST) or "TUPLET_DATA" not in os.environ:
            continue
        opened = data.open(os.path.expandvars(DATASETS[dataset].source))
        rows = [line for lines in zip(*(result["nearest"] for result in found), strict=True) for line in lines]
        figure, axes = plt.subplots(len(rows), 6, figsize=(7.2, 1.25 * len(rows)))
        for number, line in enumerate(rows):
            for column, index in enumerate(line):
                axis = axes[number][column]
                axis.imshow(opened.image(index), aspect=1 / _aspect(opened, index))
                axis.set(xticks=[], yticks=[])
                right = opened.labels[index] == opened.labels[line[0]]
                colour = "black" if column == 0 else _RIGHT if right else _WRONG
                for side in axis.spines.values():
                    side.set(color=colour, linewidth=0 if column == 0 else 2.5)
            axes[number][0].set_ylabel(METHODS[NEAREST[number % len(NEAREST)]].title, fontsize=8)
        _save(figure, f"nearest_{dataset}.jpg")


def draw_tsne(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw test images where t-SNE puts their vectors, as figure 6 of Wang et al. 2017."""
    for dataset in DATASETS:
        if f"tsne_{dataset}" not in results or "TUPLET_DATA" not in os.environ:
            continue
        opened, side = data.open(os.path.expandvars(DATASETS[dataset].source)), 32
        canvas = Image.new("RGB", (GRID[0] * side, GRID[1] * side), "white")
        for column, row, index in results[f"tsne_{dataset}"]["cells"]:
            canvas.paste(_square(opened, index, side), (column * side, row * side))
        canvas.save(IMAGES / f"results_tsne_{dataset}.jpg", quality=80)


def _square(opened: data.Dataset, index: int, side: int) -> Image.Image:
    """Return the centre of an image in its true proportions."""
    aspect = _aspect(opened, index)
    size = (max(side, round(side * aspect)), max(side, round(side / aspect)))
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    return (
        opened.image(index)
        .convert("RGB")
        .resize(size, Image.Resampling.BICUBIC)
        .crop((left, top, left + side, top + side))
    )


#: Losses whose weights are drawn, with the scales that unit vectors need.
WEIGHTS: dict[str, losses.RowLoss] = {
    "Contrastive": losses.CosineContrastiveLoss(),
    "Triplet": losses.TripletLoss(),
    "Lifted, generalised": losses.GeneralizedLiftedLoss(scale=16.0),
    "N-pair": losses.NPairAllLoss(scale=16.0),
    "Binomial": losses.BinomialDevianceLoss(),
    "RAW": losses.RAWLoss(),
    "RAW+VTHM": losses.MultiSimilarityLoss(),
    "Ranked list": losses.RankedListLoss(),
    "Margin": losses.MarginLoss(mining=None),
}


def pair_weights(loss: losses.RowLoss, similarities: Tensor) -> tuple[Tensor, Tensor]:
    """Return |∂ loss / ∂ similarity| of one query with positives, and with negatives, at these similarities."""
    angle = similarities.double().arccos()
    others = torch.stack([angle.cos(), angle.sin()], 1)
    x = torch.cat([torch.tensor([[1.0, 0.0]], dtype=torch.float64), others, others])
    labels = torch.tensor([0] + [0] * len(angle) + [1] * len(angle))
    weights = loss.weights(x, labels)[0, 1:].abs()
    if loss.geometry == "euclidean":  # those are weights of distances, and d = √(2 − 2s)
        weights = weights / (x[0] - x[1:]).norm(dim=1)
    positives, negatives = weights.split(len(angle))
    return positives, negatives


def draw_weights() -> None:
    """Draw the weight of a pair against its similarity, as figure 1 of the unified view (2019)."""
    similarities = torch.linspace(-0.5, 0.98, 75)
    figure, axes = plt.subplots(3, 3, figsize=(9, 7.5), sharex=True)
    for axis, (title, loss) in zip(axes.flat, WEIGHTS.items(), strict=True):
        positives, negatives = pair_weights(loss, similarities)
        axis.plot(similarities, positives / positives.max(), color="#2a9d4a", label="positive pairs")
        axis.plot(similarities, negatives / negatives.max(), color="#3366aa", linestyle=":", label="negative pairs")
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("cosine similarity of the pair")
    axes[0, 0].legend(fontsize=8)
    figure.supylabel("weight, as a share of the largest of its kind")
    _save(figure, "weights.png")


def draw_rank_transfer(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the transfer function of NRA, its loss and Recall@1 by α, as figure 3 of Schall et al. 2019."""
    ranks = torch.linspace(0, 1, 201)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4))
    for alpha in range(1, 7):
        transfer = losses.NRALoss(alpha=alpha).transfer(ranks)
        left.plot(ranks, transfer, label=f"α = {alpha}")
        middle.plot(ranks, -torch.log(1 - transfer + 1e-4))
    left.set(xlabel="normalised rank r", ylabel="w(r; α)")
    middle.set(xlabel="normalised rank r", ylabel="−log(1 − w(r; α) + ε)")
    left.legend(fontsize=8)
    for dataset in ("cub200", "cars196"):
        runs = [r for r in results.values() if (r.get("ablation"), r.get("dataset")) == ("nra_alpha", dataset)]
        points = sorted((float(run["value"]), 100 * run["metrics"]["recall_at_1"]) for run in runs)
        if points:
            right.plot(*zip(*points, strict=True), marker=".", label=DATASETS[dataset].title)
            right.legend(fontsize=8)
    right.set(xlabel="α", ylabel="Recall@1, %")
    _save(figure, "rank_transfer.png")


def _aspect(opened: data.Dataset, index: int) -> float:
    return 1.0 if opened.aspects is None else float(opened.aspects[index])


def _save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / f"results_{name}", dpi=110)
    plt.close(figure)


def main() -> None:
    results = read()
    draw_weights()
    for draw in (draw_rank_transfer, draw_maps, draw_curves, draw_nearest, draw_tsne):
        draw(results)


if __name__ == "__main__":
    main()
