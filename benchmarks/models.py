"""Check published weights on the images of CUB-200-2011, by two figures for each network.

- The share of all images whose most probable ImageNet class is a bird: a wrong mean, a wrong channel order or a stride
  in the wrong place shows here at once.
- Recall@1 of the normalised pooled features on the test classes: the value before any training.

    TUPLET_DATA=folder python benchmarks/models.py [--device cuda] [--limit 300] [--lite0 weights.pth]

A run writes benchmarks/results/models_DEVICE.json and the table of docs/models.md; with --limit it only prints.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import common
from tuplet import data, models
from tuplet.data.files import TorchItem, read_bytes
from tuplet.evaluation import recall_at_k
from tuplet.models.find_weights import find_file
from tuplet.models.weights import read

#: The classes of ImageNet that are birds.
BIRDS = torch.tensor([*range(7, 25), *range(80, 101), *range(127, 147)])


def read_images(table: Path, limit: int | None) -> tuple[list[bytes], Tensor, Tensor]:
    """Return the bytes of the files, their labels and a mask of the test classes; `limit` takes evenly spread ones."""
    opened = data.open(table)
    if limit:
        opened = opened.select(range(0, len(opened), max(1, len(opened) // limit))[:limit])
    test = torch.tensor([split == "test" for split in opened.splits or ()])
    return (
        [read_bytes(location) for location in opened.images or () if not isinstance(location, TorchItem)],
        opened.labels,
        test,
    )


def measure(
    architecture: str, weights: str, images: list[bytes], labels: Tensor, test: Tensor, device: str
) -> dict[str, Any]:
    embedder = models.create(architecture, dim=None, normalize=False, weights=weights).to(device)
    start = time.perf_counter()
    features = embedder.embed(images)
    seconds = time.perf_counter() - start
    file = embedder.backbone.translate(read(find_file(weights, architecture)[0]))
    layer = [file[f"{embedder.backbone.classifier}.{part}"].float() for part in ("weight", "bias")]
    top = torch.nn.functional.linear(features, *layer).argmax(1)
    unit = torch.nn.functional.normalize(features[test])
    return {
        "network": architecture,
        "weights": Path(weights).stem,
        "features": features.shape[1],
        "images": len(images),
        "bird_share": torch.isin(top, BIRDS).double().mean().item(),
        "test_images": int(test.sum()),
        "recall_at_1": recall_at_k(unit, labels[test], ks=(1,))[1],
        "images_per_second": len(images) / seconds,
    }


def table(rows: list[dict[str, Any]], device: str) -> str:
    head = ["network, weights", "features", "top-1 is a bird", "Recall@1, test classes", f"images/s ({device})"]
    cells = []
    for row in rows:
        values = [f"{row['bird_share']:.1%}", f"{100 * row['recall_at_1']:.1f}", f"{row['images_per_second']:,.0f}"]
        cells.append([f"{row['network']}, {row['weights']}", str(row["features"]), *values])
    return common.table(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="only this many images; nothing is written")
    parser.add_argument("--lite0", default="efficientnet_lite0_imagenet", help="name or file of its weights")
    arguments = parser.parse_args()
    if "TUPLET_DATA" not in os.environ:
        parser.error("set TUPLET_DATA to the folder with cub200.csv, cub200_train.tar and cub200_test.tar")
    images, labels, test = read_images(Path(os.environ["TUPLET_DATA"], "cub200.csv"), arguments.limit)
    rows = []
    for architecture, weights in (("resnet50", "resnet50_v1_imagenet"), ("efficientnet_lite0", arguments.lite0)):
        rows.append(measure(architecture, weights, images, labels, test, arguments.device))
        print(json.dumps(rows[-1], indent=2))
    device = common.machine(arguments.device)
    print(text := table(rows, device))
    if arguments.limit:
        return
    kind = arguments.device.split(":")[0]
    common.save(f"models_{kind}", {"device": device, "versions": common.versions("pillow"), "rows": rows})
    common.write_between("models.md", "models", text)


if __name__ == "__main__":
    main()
