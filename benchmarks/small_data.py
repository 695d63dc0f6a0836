"""Train with the default settings on small folders of birds, cars and characters, and compare with the start.

    python benchmarks/small_data.py --out /tmp/small --size 128

Each folder has few classes of few images, cut from CUB-200-2011, Cars196 or Omniglot in the folder TUPLET_DATA. Half of
its classes are for testing. The settings are those of `tuplet train FOLDER`, on a CPU with efficientnet_lite0.
"""

import argparse
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import common
import tuplet


@dataclass(frozen=True)
class Folder:
    """Classes `first` to `first + classes` of a tar in TUPLET_DATA, each with its first `each` images."""

    tar: str
    first: int
    classes: int
    each: int

    @property
    def name(self) -> str:
        """The dataset, its first class, and the numbers of classes and images."""
        return f"{self.tar.partition('.')[0]}_{self.first}_{self.classes}x{self.each}"

    def extract(self, place: Path) -> Path:
        """Write the images in folders by class, unless they are there."""
        folder = place / self.name
        if not folder.exists():
            part = place / f"{self.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            for name, content in self._images():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).write_bytes(content)
            part.rename(folder)
        return folder

    def _images(self) -> Iterator[tuple[str, bytes]]:
        with tarfile.open(Path(os.environ["TUPLET_DATA"]) / self.tar) as tar:
            by_class: dict[str, list[tarfile.TarInfo]] = {}
            for member in tar.getmembers():
                if member.isfile() and member.name.endswith((".webp", ".png")):
                    by_class.setdefault(str(Path(member.name).parent), []).append(member)
            for folder in sorted(by_class)[self.first : self.first + self.classes]:
                for member in sorted(by_class[folder], key=lambda each: each.name)[: self.each]:
                    file = tar.extractfile(member)
                    assert file is not None
                    # Of Omniglot the class is the alphabet and the character.
                    yield "/".join(Path(member.name).parts[-3 if "omniglot" in self.tar else -2 :]), file.read()


FOLDERS = (
    Folder("cub200_test.tar", 0, 30, 20),
    Folder("cub200_test.tar", 40, 24, 10),
    Folder("cub200_train.tar", 0, 40, 8),
    Folder("cub200_train.tar", 50, 16, 16),
    Folder("cars196_test.tar", 0, 30, 12),
    Folder("cars196_test.tar", 40, 24, 10),
    Folder("cars196_train.tar", 0, 40, 8),
    Folder("omniglot.tar.gz", 0, 30, 20),
    Folder("omniglot.tar.gz", 300, 24, 10),
    Folder("omniglot.tar.gz", 700, 40, 8),
)


def measure(folder: Folder, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train on a folder and return the metrics of the start and of the result on validation and test classes."""
    began = time.perf_counter()
    run = tuplet.train(folder.extract(out / "folders"), out / "runs" / folder.name, device="cpu", **options)
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["event"] in ("evaluation", "wise_ft")]
    best = max(found, key=lambda event: event["map_at_r"])
    return {
        "folder": folder.name,
        "validation": [found[0], best],
        "test": [run.metrics["start"], run.metrics],
        "gain": run.metrics["gain"],
        "chosen": f"step {run.metrics['step']}, share of the start {run.metrics.get('average_with_start', 0.0):.1f}",
        "seconds": time.perf_counter() - began,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results in Markdown, and how often the result is better than the start."""
    head = ["folder", "validation MAP@R", "validation R@1", "test MAP@R", "test R@1", "gain of test R@1, 95 %"]
    cells = []
    for row in rows:
        changes = [_change(row[part], name) for part in ("validation", "test") for name in ("map_at_r", "recall_at_1")]
        low, high = (100 * value for value in row["gain"]["interval"])
        gain = f"{100 * row['gain']['recall_at_1']:+.1f} ({low:+.1f} to {high:+.1f})"
        cells.append([row["folder"], *changes, gain, row["chosen"], f"{row['seconds']:.0f}"])
    lines = [common.table([*head, "chosen", "s"], cells)]
    for part in ("validation", "test"):
        for name, title in (("map_at_r", "MAP@R"), ("recall_at_1", "Recall@1")):
            gains = [100 * (row[part][1][name] - row[part][0][name]) for row in rows]
            better, mean = sum(gain > 0 for gain in gains), sum(gains) / len(gains)
            lines.append(
                f"\n{title} on {part} classes: better in {better} of {len(rows)}, mean {mean:+.1f}, "
                f"worst {min(gains):+.1f} points."
            )
    return "\n".join(lines)


def _change(pair: list[dict[str, float]], name: str) -> str:
    return " → ".join(f"{100 * each[name]:.1f}" for each in pair)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for images and runs; finished runs are kept")
    parser.add_argument("--size", type=int, help="pixels, to be quicker than with those of the weights")
    parser.add_argument("--folders", type=int, nargs="+", default=range(len(FOLDERS)), help="numbers of folders [all]")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    options = {"size": arguments.size, "resize": round(arguments.size * 8 / 7)} if arguments.size else {}
    rows = []
    for number in arguments.folders:
        rows.append(measure(FOLDERS[number], arguments.out, options))
        print(table(rows[-1:]).splitlines()[2], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
