"""Do published weights work as published? Two figures for each network, on the photographs of CUB-200-2011.

- The share of all photographs whose most probable ImageNet class is a bird: a wrong mean, a wrong channel order or a
  stride in the wrong place shows here at once.
- Recall@1 of the pooled features, made unit, among the test classes: the start from which training must rise.

    TUPLET_DATA=folder python benchmarks/models.py [--device cuda] [--limit 300] [--lite0 weights.pth]

The full run writes benchmarks/results/models_DEVICE.json and the table of docs/models.md; with --limit it only prints.
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
from tuplet.data.files import read_bytes
from tuplet.evaluation import recall_at_k

#: ImageNet's birds.
BIRDS = torch.tensor([*range(7, 25), *range(80, 101), *range(127, 147)])


def photographs(table: Path, limit: int | None) -> tuple[list[bytes], Tensor, Tensor]:
    """The files' bytes, their labels and whether each is of a test class; with a limit, evenly spread ones."""
    opened = data.open(table)
    if limit:
        opened = opened.select(range(0, len(opened), max(1, len(opened) // limit))[:limit])
    test = torch.tensor([split == "test" for split in opened.splits or ()])
    return [read_bytes(location) for location in opened.images or ()], opened.labels, test


def measure(
    architecture: str, weights: str, pictures: list[bytes], labels: Tensor, test: Tensor, device: str
) -> dict[str, Any]:
    embedder = models.create(architecture, dim=None, normalize=False, weights=weights).to(device)
    start = time.perf_counter()
    features = embedder.embed(pictures)
    seconds = time.perf_counter() - start
    with torch.inference_mode():
        top = models.classifier(architecture, weights)(features).argmax(1)
    unit = torch.nn.functional.normalize(features[test])
    return {
        "network": architecture,
        "weights": Path(weights).stem,
        "features": features.shape[1],
        "photographs": len(pictures),
        "bird_share": torch.isin(top, BIRDS).double().mean().item(),
        "test_photographs": int(test.sum()),
        "recall_at_1": recall_at_k(unit, labels[test], ks=(1,))[1],
        "photographs_per_second": len(pictures) / seconds,
    }


def table(rows: list[dict[str, Any]], device: str) -> str:
    lines = [
        f"| network, weights | features | top-1 is a bird | Recall@1, test classes | photographs/s ({device}) |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r['network']}, {r['weights']} | {r['features']} | {r['bird_share']:.1%} | {100 * r['recall_at_1']:.1f} "
        f"| {r['photographs_per_second']:,.0f} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="this many photographs only, and nothing is written")
    parser.add_argument("--lite0", default="efficientnet_lite0_imagenet", help="name or file of its weights")
    arguments = parser.parse_args()
    if "TUPLET_DATA" not in os.environ:
        parser.error("set TUPLET_DATA to the folder with cub200.csv, cub200_train.tar and cub200_test.tar")
    pictures, labels, test = photographs(Path(os.environ["TUPLET_DATA"], "cub200.csv"), arguments.limit)
    rows = []
    for architecture, weights in (("resnet50", "resnet50_v1_imagenet"), ("efficientnet_lite0", arguments.lite0)):
        rows.append(measure(architecture, weights, pictures, labels, test, arguments.device))
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
