"""Measure training data larger than memory: seconds to the first batch, images a second, and peak memory.

    python benchmarks/streaming.py [--images 200000] [--memory 0.5] [--steps 40]

Writes JPEG files of 500 × 400, opens them, and draws batches of 120 from a class-balanced sampler: streamed, streamed
from the cache on disk, and by a plain `DataLoader` with the same decoder and as many workers as streaming has threads;
each is a process of its own. For a part that fits into memory: streamed from its cache in memory beside the store in
memory, augmented, alternating in one process. A run writes benchmarks/results/streaming.json and docs/pipeline.md.
"""

import argparse
import io
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import common
from tuplet import data as tuplet_data
from tuplet.data import Augment, CentreCrop, Dataset
from tuplet.images.crop import to_tensor
from tuplet.sampling import ClassBalancedSampler

SQUARE = CentreCrop(256, 256, "square")
#: The images of a part that fits into memory.
PART = 2_400


def write_images(folder: Path, count: int) -> None:
    """Write JPEG files of 500 × 400, 20 in each class folder: 64 pictures, each file with another comment."""
    rng = np.random.default_rng(0)
    pool = []
    for _ in range(64):
        file = io.BytesIO()
        image = Image.fromarray(rng.integers(0, 256, (20, 25, 3), np.uint8))
        image.resize((500, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        pool.append(file.getvalue())
    for number in range(count):
        path = folder / f"{number // 20:06d}" / f"{number % 20:02d}.jpg"
        if number % 20 == 0:
            path.parent.mkdir(parents=True)
        comment = str(number).encode()
        content = pool[number * 7919 % 64]
        path.write_bytes(content[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + content[2:])


class Decoded(torch.utils.data.Dataset):
    """What a plain loader decodes."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __getitem__(self, index: int) -> torch.Tensor:
        return to_tensor(SQUARE.crop(self.data.image(index)))


def batches_of(way: str, data: Dataset, sampler: ClassBalancedSampler, memory: float, folder: str) -> Iterator[Any]:
    if way == "loader":
        return iter(DataLoader(Decoded(data), batch_sampler=sampler, num_workers=len(os.sched_getaffinity(0))))
    limit = round(memory * 2**30)
    store = tuplet_data.load(data, folder=folder if way == "disk" else None, stream=True, memory=limit)
    return tuplet_data.batches(store, sampler, "cpu")


def measure(way: str, folder: str, memory: float, steps: int) -> dict[str, float]:
    """Draw batches and return the figures, in this process. The first batches are ready when the clock begins."""
    torch.set_num_threads(1)
    begun, warm = time.perf_counter(), 8
    data = tuplet_data.open(Path(folder, "images"))
    sampler = ClassBalancedSampler(data.labels, classes=24, per_class=5, batches=steps + warm + 8)
    stream = batches_of(way, data, sampler, memory, str(Path(folder, "cache")))
    next(stream)
    first = time.perf_counter() - begun
    for _ in range(warm):
        next(stream)
    start = time.perf_counter()
    for _ in range(steps):
        next(stream)
    rate = 120 * steps / (time.perf_counter() - start)
    return {"first": first, "rate": rate, "memory": common.process_bytes("VmHWM") / 2**30}


def measure_part(folder: str, steps: int) -> dict[str, dict[str, float]]:
    """Augment batches of a part that fits into memory; the best of three rounds of each store, alternating."""
    torch.set_num_threads(1)
    data, augment = tuplet_data.open(Path(folder, "images")).select(range(PART)), Augment(size=224, resize=256)
    stores = {"in memory": tuplet_data.load(data, stream=False), "kept": tuplet_data.load(data, stream=True)}
    stores["kept"].values[torch.arange(PART)]
    times: dict[str, list[float]] = {way: [] for way in stores}
    for _ in range(3):
        for way, store in stores.items():
            sampler = ClassBalancedSampler(data.labels, classes=24, per_class=5, batches=steps)
            start = time.perf_counter()
            for step, batch in enumerate(tuplet_data.batches(store, sampler, "cpu")):
                augment(batch.values, batch.index, step, batch.aspects)
            times[way].append(time.perf_counter() - start)
    return {way: {"rate": 120 * steps / min(own)} for way, own in times.items()}


WAYS = {
    "streamed": "streamed, nothing decoded before",
    "disk": "streamed, from the cache on disk",
    "loader": "a plain DataLoader with the same decoder",
    "kept": f"{PART:,} images, augmented: streamed, from the cache in memory",
    "in memory": f"{PART:,} images, augmented: all decoded before, in memory",
}


def report(rows: dict[str, dict[str, float]], images: int, versions: dict[str, str]) -> str:
    columns = {"first": "{:.1f}", "rate": "{:,.0f}", "memory": "{:.2f}"}
    cells = [
        [title, *(form.format(rows[way][name]) if name in rows[way] else "" for name, form in columns.items())]
        for way, title in WAYS.items()
    ]
    found = common.table(["way", "first batch, s", "images/s", "peak memory, GiB"], cells)
    about = f"{images:,} JPEG files of 500 × 400; torch {versions['torch']}."
    return f"### {common.machine()}\n\n{about}\n\n{found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--memory", type=float, default=0.5, help="GiB of decoded images that are kept")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", help="where the files are, or are written; a temporary folder by default")
    arguments = parser.parse_args()
    alone = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if not Path(folder, "images").exists():
            write_images(Path(folder, "images"), arguments.images)
        rows = {}
        for way in ("streamed", "loader", "disk", "disk"):  # the first from disk fills it
            rows[way] = alone.submit(measure, way, folder, arguments.memory, arguments.steps).result()
            print(way, rows[way], flush=True)
        rows |= measure_part(folder, arguments.steps)
    torch.set_num_threads(1)
    versions = common.versions("pillow")
    print(text := report(rows, arguments.images, versions))
    common.save(
        "streaming", {"machine": common.machine(), "versions": versions, "images": arguments.images, "rows": rows}
    )
    common.write_between("pipeline.md", "streaming", text)


if __name__ == "__main__":
    main()
