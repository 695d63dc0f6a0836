"""Measure published weights without training, on the test classes of CUB-200-2011 and Cars196.

- Recall@1 of the normalised pooled features: the value before any training.
- The share of the CUB-200-2011 images whose most probable ImageNet class is a bird, for networks with a classifier: a
  wrong mean, a wrong channel order or a stride in the wrong place shows here at once.

    TUPLET_DATA=folder python benchmarks/models.py [--device cuda] [--names efficientnet_lite0_imagenet] [--limit 300]

A run adds its networks to benchmarks/results/models.json and writes the table of docs/models.md; with --limit it only
prints.
"""

import argparse
import json
import os
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

import common
from methods import DATASETS
from tuplet import data, models
from tuplet.embedding import embed_store
from tuplet.evaluation import recall_at_k
from tuplet.models.find_weights import find_file
from tuplet.models.weights import read

NAMES = (
    *(f"efficientnet_lite{i}_imagenet" for i in range(3)),
    "resnet50_v1_imagenet",
    "vit_small_patch14_dinov2_focus",
)
MEASURED = ("cub200", "cars196")
#: The classes of ImageNet that are birds.
BIRDS = torch.tensor([*range(7, 25), *range(80, 101), *range(127, 147)])


def measure(name: str, device: str, limit: int | None) -> dict[str, Any]:
    """Embed the test classes of both datasets with the weights of this name; `limit` takes evenly spread images."""
    architecture = models.KNOWN[name].architecture
    embedder = models.create(architecture, dim=None, normalize=False, weights=name).to(device)
    assert embedder.preprocessing is not None
    row: dict[str, Any] = {"network": architecture, "weights": name, "size": embedder.preprocessing.size}
    for dataset in MEASURED:
        test = data.open(os.path.expandvars(DATASETS[dataset].source)).test_part()
        test = test.select(range(0, len(test), max(1, len(test) // (limit or len(test)))))
        features = embed_store(embedder, data.load(test, crop=embedder.preprocessing.crop)).float().cpu()
        row["features"] = features.shape[1]
        row[dataset] = recall_at_k(normalize(features), test.labels, ks=(1,))[1]
        if dataset == "cub200" and (layer := classifier(embedder, name)) is not None:
            row["bird_share"] = torch.isin(linear(features, *layer).argmax(1), BIRDS).double().mean().item()
    return row


def classifier(embedder: models.Embedder, name: str) -> tuple[Tensor, Tensor] | None:
    """Return the weight and the bias of the ImageNet classifier in the file, if it has one."""
    file = embedder.backbone.translate(read(find_file(name, embedder.config.architecture)[0]))
    names = [f"{embedder.backbone.classifier}.{part}" for part in ("weight", "bias")]
    return (file[names[0]].float(), file[names[1]].float()) if all(each in file for each in names) else None


def table(rows: list[dict[str, Any]]) -> str:
    head = ["weights", "pixels", "features", *(f"R@1, {DATASETS[name].title}" for name in MEASURED), "top-1 is a bird"]
    cells = []
    for row in rows:
        recalls = [f"{100 * row[name]:.1f}" for name in MEASURED]
        birds = f"{row['bird_share']:.1%}" if "bird_share" in row else "–"
        cells.append([f"`{row['weights']}`", f"{row['size']}²", str(row["features"]), *recalls, birds])
    return common.table(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--limit", type=int, help="only this many images of each dataset; nothing is written")
    arguments = parser.parse_args()
    if "TUPLET_DATA" not in os.environ:
        parser.error("set TUPLET_DATA to the folder with the datasets")
    path = common.results_file("models")
    stored = {row["weights"]: row for row in json.loads(path.read_text())["rows"]} if path.is_file() else {}
    for name in arguments.names:
        row = measure(name, arguments.device, arguments.limit)
        print(json.dumps(row), flush=True)
        if arguments.limit is None:
            versions = common.versions("pillow")
            stored[name] = {**row, "device": common.machine(arguments.device), "versions": versions}
            rows = [stored[each] for each in NAMES if each in stored]
            common.save("models", {"rows": rows})
            common.write_between("models.md", "models", table(rows))


if __name__ == "__main__":
    main()
