"""Measure what the figures of docs/results_details.md show, on a CPU in minutes; figures.py draws them.

    python benchmarks/figure_runs.py --maps fashion-mnist-folder
    python benchmarks/figure_runs.py --curves omniglot-folder
    python benchmarks/figure_runs.py --vectors folder

- `--maps`: figure 4 of Schall et al. 2019, on Fashion-MNIST in place of MNIST: a convnet of two dimensions,
  four losses.
- `--curves`: figure 3 of Sohn 2016, on Omniglot in place of faces: three losses, measured on one scale.
- `--vectors`: figure 6 of Wang et al. 2017: t-SNE of the test images, from the vectors that protocols.py keeps in its
  --out (row_DATASET_best_0.safetensors).
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import common
import tuplet
from methods import DATASETS, MAPPED
from runs import RESULTS, Job, write
from tuplet import data, losses, sampling
from tuplet.data import Dataset
from tuplet.embedding import embed_store
from tuplet.training import Callback, Settings
from tuplet.training.split import split_examples

_CONVNET = {"model": "convnet", "model_options": {"size": 28, "channels": 1}, "batch_size": 120}
_SHARED = {
    **_CONVNET,
    "dim": 2,
    "normalize": False,
    "per_class": 12,
    "augment": {"mirror": 0.0},
    "lr": 1e-3,
    "head_lr_scale": 1.0,
    "loss_lr_scale": 1.0,
    "steps": 4000,
    "validation": 0.0,
    "evaluate_every": 4000,
    "checkpoint_every": 4000,
    "log_every": 100,
}
#: Vectors of any length, as in the paper; margin 1 for the two losses that have one.
MAPS: dict[str, dict[str, Any]] = {
    "softmax": {"loss": "softmax", "sampler": "class_balanced"},
    "triplet_semi_hard": {
        "loss": "triplet",
        "loss_options": {"mining": "semi_hard", "margin": 1.0},
        "sampler": "ngroup",
    },
    "lifted_structure": {"loss": "lifted_structure", "loss_options": {"margin": 1.0}, "sampler": "ngroup"},
    "nra": {"loss": "nra", "sampler": "ngroup"},
}
_POINTS = 2000
_CURVE = {
    **_CONVNET,
    "dim": 64,
    "sampler": "npair",
    "augment": {"mirror": 0.0},
    "lr": 1e-3,
    "steps": 1200,
    "evaluate_every": 100,
    "checkpoint_every": 1200,
}
CURVES: dict[str, dict[str, Any]] = {
    "smooth_triplet": {"loss": "smooth_triplet"},
    "npair_ovo": {"loss": "npair", "loss_options": {"variant": "ovo"}},
    "npair": {"loss": "npair"},
}
#: Columns and rows of the map of test images.
GRID = (40, 26)


def train_maps(folder: Path) -> None:
    """Train the four maps; store some of the test vectors of each, and the metrics of all."""
    opened = data.open(folder)
    for method, own in MAPS.items():
        job = Job(f"map_{method}", "map", "fashion_mnist", method, {**_SHARED, **own})
        with tempfile.TemporaryDirectory() as out:
            run = tuplet.train(opened, out, **job.options)
            saved = load_file(run.folder / "vectors.safetensors")
            metrics = run.metrics
        chosen = slice(0, None, max(1, len(saved["labels"]) // _POINTS))
        points = [[round(x, 4) for x in pair] for pair in saved["embeddings"][chosen].tolist()]
        _store(job, metrics=metrics, points=points, labels=saved["labels"][chosen].tolist())


def train_curves(folder: Path) -> None:
    """Train with three losses; store the 60-pair loss and the 60-way accuracy of each as training goes on."""
    opened = data.open(folder)
    for method, own in CURVES.items():
        job = Job(f"curve_omniglot_{method}", "curve", "omniglot", method, {**_CURVE, **own})
        with tempfile.TemporaryDirectory() as out:
            curve = PairCurve(Path(out), opened, job.options)
            run = tuplet.train(opened, out, callbacks=[curve], **job.options)
        _store(job, metrics=run.metrics, points=curve.points)


class PairCurve(Callback):
    """Measure the 60-pair loss and the 60-way accuracy of a network at each evaluation, whatever loss trains it.

    Both are means over batches of two images, cropped as for a test, of each of 60 training classes, or of all if there
    are fewer. An image is right if its dot product with the other image of its class is larger than those with the
    second images of all other classes. `points` has a triple (step, loss, accuracy) for each evaluation.
    """

    BATCHES = 20

    def __init__(self, folder: Path, examples: Dataset, options: Mapping[str, Any]) -> None:
        self.folder = folder
        self.points: list[tuple[int, float, float]] = []
        train = examples.select(split_examples(examples, Settings(**options)).train)
        pairs = min(60, len(train.labels.unique()))
        batches = list(sampling.NPairSampler(train.labels, pairs=pairs, seed=0, batches=self.BATCHES))
        self.labels = [train.labels[batch] for batch in batches]
        self.examples = train.select(torch.tensor(batches).flatten())

    def on_evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Embed the batches with the latest weights, without making the vectors unit."""
        if step == 0:  # no weights are saved yet
            return
        embedder = tuplet.load(self.folder / "last")
        embedder.config = replace(embedder.config, normalize=False)
        assert embedder.preprocessing is not None
        vectors = embed_store(embedder, data.load(self.examples, crop=embedder.preprocessing.crop))
        found = [_pair_metrics(x, y) for x, y in zip(vectors.chunk(self.BATCHES), self.labels, strict=True)]
        loss, accuracy = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
        self.points.append((step, round(loss, 5), round(accuracy, 5)))


def _pair_metrics(x: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the N-pair loss and the N-way accuracy of a batch of two vectors of each class.

    >>> _pair_metrics(3 * torch.eye(2)[[0, 0, 1, 1]], torch.tensor([5, 5, 7, 7]))[1]
    1.0
    """
    first, second = x[labels.argsort(stable=True)].unflatten(0, (-1, 2)).unbind(1)
    right = (first @ second.T).argmax(1) == torch.arange(len(first))
    return losses.NPairLoss()(x, labels).item(), right.double().mean().item()


def arrange(folder: Path, dataset: str) -> None:
    """Lay out test images by t-SNE of their vectors: in each cell of a grid, the image nearest to its centre."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    saved = load_file(folder / f"row_{dataset}_{MAPPED}_0.safetensors")
    vectors = PCA(50, random_state=0).fit_transform(saved["embeddings"].float().numpy())
    points = TSNE(init="pca", random_state=0).fit_transform(vectors)
    low, high = points.min(0), points.max(0)
    places = (points - low) / (high - low) * (np.array(GRID) - 1e-3)
    nearest: dict[tuple[int, int], tuple[float, int]] = {}
    for place, index in zip(places.tolist(), saved["indices"].tolist(), strict=True):
        column, row = int(place[0]), int(place[1])
        distance = (place[0] - column - 0.5) ** 2 + (place[1] - row - 0.5) ** 2
        nearest[column, row] = min(nearest.get((column, row), (1.0, -1)), (distance, index))
    cells = [[*cell, index] for cell, (_, index) in sorted(nearest.items())]
    about = {"kind": "tsne", "dataset": dataset, "row": MAPPED, "versions": common.versions("scikit-learn")}
    write(RESULTS / f"tsne_{dataset}.json", {**about, "cells": cells})


def _store(job: Job, **found: Any) -> None:
    """Write the result of a run."""
    about: dict[str, Any] = {"kind": job.kind, "dataset": job.dataset, "method": job.method, "command": job.command()}
    about |= {"options": dict(job.options), "device": common.machine(), "versions": common.versions()}
    write(RESULTS / f"{job.name}.json", {**about, **found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, help="folder of Fashion-MNIST")
    parser.add_argument("--curves", type=Path, help="folder of Omniglot")
    parser.add_argument("--vectors", type=Path, help="folder with the vectors of the best recipe's test images")
    arguments = parser.parse_args()
    if arguments.maps is not None:
        train_maps(arguments.maps)
    if arguments.curves is not None:
        train_curves(arguments.curves)
    for dataset in DATASETS if arguments.vectors is not None else ():
        if (arguments.vectors / f"row_{dataset}_{MAPPED}_0.safetensors").is_file():
            arrange(arguments.vectors, dataset)


if __name__ == "__main__":
    main()
