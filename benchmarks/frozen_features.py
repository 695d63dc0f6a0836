"""Train a linear head on the features of a frozen network, with the whole training set as one batch.

    TUPLET_DATA=folder python benchmarks/frozen_features.py [--device cuda] [--names resnet50_v1_imagenet]

Each network embeds the images of CUB-200-2011 and Cars196 once. A linear layer of 512 outputs then learns from all
training vectors at once: the exact loss of every pair of the training set, in each step. Loss, learning rate and number
of steps are chosen on the middle third of the training classes over three seeds; the test classes are measured once. A
run adds its rows to benchmarks/results/frozen_features.json, which `make results` draws as a table.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import common
from methods import DATASETS, SEEDS
from tuplet import data, losses, models
from tuplet.embedding import embed_store
from tuplet.evaluation import map_at_r, recall_at_k

WEIGHTS = (
    "resnet50_v1_imagenet",
    "vit_small_patch14_dinov2_focus",
    *(f"efficientnet_lite{n}_imagenet" for n in range(3)),
)
DIM = 512
LOSSES: dict[str, Callable[[int], nn.Module]] = {
    "multi_similarity": lambda classes: losses.MultiSimilarityLoss(),
    "supcon": lambda classes: losses.SupConLoss(),
    "proxy_anchor": lambda classes: losses.ProxyAnchorLoss(classes, DIM),
}
LRS = (1e-4, 3e-4, 1e-3)
#: The steps after which a head is measured.
STEPS = (25, 50, 100, 200)


class Recipe(NamedTuple):
    """What is chosen on validation classes."""

    loss: str
    lr: float
    steps: int


def heads(
    features: Tensor, labels: Tensor, loss: str, lr: float, seed: int, last: int
) -> Iterator[tuple[int, nn.Module]]:
    """Yield the head after each number of steps in `STEPS`, up to the last; a step sees all vectors."""
    torch.manual_seed(seed)
    _, numbers = labels.unique(return_inverse=True)
    head = nn.Linear(features.shape[1], DIM, bias=False).to(features.device)
    objective = LOSSES[loss](int(numbers.max()) + 1).to(features.device)
    groups: list[dict[str, Any]] = [{"params": head.parameters()}, {"params": objective.parameters(), "lr": 100 * lr}]
    optimizer = torch.optim.AdamW(groups, lr=lr)
    for step in range(1, last + 1):
        optimizer.zero_grad()
        objective(nn.functional.normalize(head(features)), numbers).backward()
        optimizer.step()
        if step in STEPS:
            yield step, head


@torch.no_grad()
def recall(vectors: Tensor, labels: Tensor) -> float:
    """Return Recall@1 of the vectors, made unit."""
    return recall_at_k(nn.functional.normalize(vectors), labels, ks=(1,))[1]


def choose(features: Tensor, labels: Tensor) -> Recipe:
    """Return the recipe with the highest mean Recall@1 over seeds on the middle third of the classes."""
    classes = labels.unique()
    third = len(classes) // 3
    held_out = torch.isin(labels, classes[third : 2 * third])
    scores: dict[Recipe, list[float]] = {}
    for loss, lr, seed in itertools.product(LOSSES, LRS, SEEDS):
        for steps, head in heads(features[~held_out], labels[~held_out], loss, lr, seed, STEPS[-1]):
            with torch.no_grad():
                found = recall(head(features[held_out]), labels[held_out])
            scores.setdefault(Recipe(loss, lr, steps), []).append(found)
    return max(scores, key=lambda recipe: fmean(scores[recipe]))


def measure(name: str, dataset: str, device: str, cache: Path | None) -> dict[str, Any]:
    """Embed a dataset with a frozen network, choose a recipe, train heads of three seeds and test them."""
    known = models.KNOWN[name]
    embedder = models.create(known.architecture, dim=None, normalize=False, weights=name).to(device)
    assert embedder.preprocessing is not None
    opened = data.open(os.path.expandvars(DATASETS[dataset].source))
    store = data.load(opened, folder=cache, crop=embedder.preprocessing.crop)
    began = time.perf_counter()
    features = nn.functional.normalize(embed_store(embedder, store).float())
    embedded = time.perf_counter() - began
    test = torch.tensor([split == "test" for split in opened.splits or ()], device=features.device)
    labels = opened.labels.to(features.device)
    train = (features[~test], labels[~test])
    recipe = choose(*train)
    trained, seconds = [], []
    for seed in SEEDS:
        began = time.perf_counter()
        head = next(
            head for steps, head in heads(*train, recipe.loss, recipe.lr, seed, recipe.steps) if steps == recipe.steps
        )
        with torch.no_grad():
            vectors = nn.functional.normalize(head(features[test]))
            seconds.append(time.perf_counter() - began)
            trained.append({"recall_at_1": recall(vectors, labels[test]), "map_at_r": map_at_r(vectors, labels[test])})
    return {
        "weights": name,
        "dataset": dataset,
        "features": features.shape[1],
        "recipe": recipe._asdict(),
        "frozen": recall(features[test], labels[test]),
        "trained": trained,
        "embedding_seconds": round(embedded, 2),
        "training_seconds": round(fmean(seconds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--names", nargs="+", default=WEIGHTS)
    parser.add_argument("--dataset", nargs="+", choices=("cub200", "cars196"), default=("cub200", "cars196"))
    parser.add_argument("--cache", type=Path, help="a folder that keeps the decoded images")
    arguments = parser.parse_args()
    about = {"device": common.machine(arguments.device), "versions": common.versions()}
    path = common.results_file("frozen_features")
    stored = json.loads(path.read_text())["rows"] if path.is_file() else []
    rows = {(row["weights"], row["dataset"]): row for row in stored}
    for name, dataset in itertools.product(arguments.names, arguments.dataset):
        row = rows[name, dataset] = measure(name, dataset, arguments.device, arguments.cache) | about
        found = fmean(each["recall_at_1"] for each in row["trained"])
        print(f"{name}, {dataset}: {100 * row['frozen']:.1f} → {100 * found:.1f}", row, flush=True)
        common.save("frozen_features", {"kind": "frozen", "rows": list(rows.values())})


if __name__ == "__main__":
    main()
