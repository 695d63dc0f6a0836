"""Measure the path from image files to batches, beside Pillow, and its cost in training.

    python benchmarks/data.py [--device cuda]

On a CPU: images per second of decoding, caching and augmenting in one thread, beside the same step in Pillow.
On a GPU: the throughput of training a ResNet-50 on augmented batches from the device cache, relative to training on one
constant batch. Images are those of CUB-200-2011 if TUPLET_DATA has them, else noise; both are first written as JPEG of
500 × 375, the usual size of a CUB image. A run writes benchmarks/results/data_DEVICE.json and docs/pipeline.md.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

import common
from tuplet import data as tuplet_data
from tuplet.data import Augment, Dataset
from tuplet.sampling import ClassBalancedSampler

CROP = Augment(size=224, resize=256, resize_mode="square")
FULL = Augment(size=224, area=(0.1, 1.0), brightness=0.4, contrast=0.4, saturation=0.4)


def write_images(folder: Path, count: int) -> Dataset:
    """Write JPEG files of 500 × 375, eight for each class, and return them as a dataset."""
    real = tuplet_data.open(Path(os.environ["TUPLET_DATA"], "cub200.csv")) if "TUPLET_DATA" in os.environ else None
    rng = np.random.default_rng(0)
    for number in range(count):
        if real is not None:
            image = real.image(number * len(real) // count)
        else:
            image = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        image.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number:05d}.jpg", quality=90)
    names = tuple(str(c) for c in range(count // 8))
    return Dataset(torch.arange(count) // 8, names, images=[str(path) for path in sorted(folder.glob("*.jpg"))])


def rates(count: int, *runs: Callable[[], object]) -> list[float]:
    """Return the images per second of each run: the best of seven, alternating, after one to warm up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(8):
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(time.perf_counter() - start)
    return [count / min(own[1:]) for own in times]


def decode_with_pillow(paths: list[str]) -> Tensor:
    images = [Image.open(path).convert("RGB").resize((256, 256), Image.Resampling.BICUBIC) for path in paths]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images])


def crop_with_pillow(images: list[Image.Image], rng: np.random.Generator) -> Tensor:
    out = []
    for image in images:
        left, top = rng.integers(0, 33, 2).tolist()
        part = image.crop((left, top, left + 224, top + 224))
        out.append(torch.from_numpy(np.array(ImageOps.mirror(part) if rng.random() < 0.5 else part)))
    return torch.stack(out).permute(0, 3, 1, 2).float()


def augment_with_pillow(images: list[Image.Image], rng: np.random.Generator) -> Tensor:
    out = []
    for image in images:
        side = 256 * float(np.sqrt(rng.uniform(0.1, 1.0)))
        left, top = (rng.random(2) * (256 - side)).tolist()
        part = image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        part = ImageOps.mirror(part) if rng.random() < 0.5 else part
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            part = change(part).enhance(rng.uniform(0.6, 1.4))
        out.append(torch.from_numpy(np.array(part)))
    return torch.stack(out).permute(0, 3, 1, 2).float()


def measure_on_cpu(folder: Path) -> Iterator[dict[str, Any]]:
    data = write_images(folder, 240)
    paths = [data.path(i) for i in range(len(data))]
    workers = len(os.sched_getaffinity(0))
    pillow, *decoded = rates(
        len(data),
        lambda: decode_with_pillow(paths),
        lambda: tuplet_data.load(data, workers=0),
        lambda: tuplet_data.load(data, workers=workers),
    )
    for ours, where in zip(decoded, ("in this process", f"in {workers} workers"), strict=True):
        yield {"step": f"decode and resize to 256², {where}", "ours": ours, "pillow": pillow}
    store = tuplet_data.load(data, folder=folder / "cache", workers=0)
    order = torch.randperm(len(data)).split(60)
    (read,) = rates(len(data), lambda: [store.values[index] for index in order])
    yield {"step": "read shuffled batches from the cache on disk", "ours": read, "pillow": pillow}
    index = torch.arange(60)
    batch = store.values[index]
    images = [data.image(i).resize((256, 256)) for i in range(60)]
    rng = np.random.default_rng(0)
    ours, theirs = rates(60, lambda: CROP(batch, index, 0), lambda: crop_with_pillow(images, rng))
    yield {"step": "random crop and mirror", "ours": ours, "pillow": theirs}
    ours, theirs = rates(60, lambda: FULL(batch, index, 0), lambda: augment_with_pillow(images, rng))
    yield {"step": "random resized crop, mirror and colour jitter", "ours": ours, "pillow": theirs}


def training_step(device: str) -> Callable[[Tensor, Tensor], None]:
    """Return a function that trains a ResNet-50 in bfloat16 for one step."""
    from tuplet import losses, models

    embedder = models.create("resnet50", dim=512, weights=None).to(device).train()
    optimiser = torch.optim.AdamW(embedder.parameters(), lr=1e-5, fused=True)
    loss = losses.MultiSimilarityLoss()

    def step(images: Tensor, labels: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            vectors = embedder(images.contiguous(memory_format=torch.channels_last))
        loss(vectors.float(), labels).backward()
        optimiser.step()

    return step


def measure_on_cuda(folder: Path, steps: int, rounds: int) -> Iterator[dict[str, Any]]:
    data = write_images(folder, 2_400)
    start = time.perf_counter()
    store = tuplet_data.load(data)
    decoded = time.perf_counter()
    store = store.to("cuda")
    torch.cuda.synchronize()
    copied = time.perf_counter()
    yield {"figure": "filling: decode and resize to 256²", "unit": "images/s", "value": len(data) / (decoded - start)}
    yield {"figure": "filling: copy to the device", "unit": "images/s", "value": len(data) / (copied - decoded)}
    step = training_step("cuda")
    sampler = ClassBalancedSampler(data.labels, classes=24, per_class=5, batches=steps)
    first = next(tuplet_data.batches(store, sampler, "cuda"))
    constant = FULL(first.values, first.index, 0, first.aspects)

    def on_constant() -> None:
        for _ in range(steps):
            step(constant, first.labels)

    def on_data() -> None:
        for number, batch in enumerate(tuplet_data.batches(store, sampler, "cuda")):
            step(FULL(batch.values, batch.index, number, batch.aspects), batch.labels)

    def on_data_alone() -> None:
        for number, batch in enumerate(tuplet_data.batches(store, sampler, "cuda")):
            FULL(batch.values, batch.index, number, batch.aspects)

    def seconds(run: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    runs = {"constant": on_constant, "data": on_data, "alone": on_data_alone}
    for run in runs.values():
        run()
    torch.cuda.set_sync_debug_mode("error")  # fail if the data path synchronises with the device
    on_data_alone()
    torch.cuda.set_sync_debug_mode("default")
    # Alternate the runs, so that a machine that slows down affects all of them.
    times = [{name: seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    middle = {name: median(each[name] for each in times) for name in runs}
    yield {"figure": "training on a constant batch of 120", "unit": "images/s", "value": 120 / middle["constant"]}
    yield {"figure": "training from the device cache, augmented", "unit": "images/s", "value": 120 / middle["data"]}
    ratio = median(each["constant"] / each["data"] for each in times)
    yield {"figure": "the second over the first", "unit": "", "value": ratio}
    yield {"figure": "batch and augmentation alone", "unit": "ms a batch of 120", "value": 1e3 * middle["alone"]}


def report(rows: list[dict[str, Any]], device: str, versions: dict[str, str]) -> str:
    head, cells = ["figure", "value"], []
    if device == "cpu":
        head = ["step", "images/s", "Pillow's own way", "ratio"]
        for row in rows:
            ours, pillow = row["ours"], row["pillow"]
            cells.append([row["step"], f"{ours:,.0f}", f"{pillow:,.0f}", f"{ours / pillow:.2f}"])
    else:
        for row in rows:
            digits = 3 if row["value"] < 10 else 0
            cells.append([row["figure"], f"{row['value']:,.{digits}f} {row['unit']}"])
    made_with = f"torch {versions['torch']}, Pillow {versions['pillow']}."
    return f"### {common.machine(device)}\n\n{made_with}\n\n{common.table(head, cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=40, help="training steps of a round, on a GPU")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, on a GPU")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.device == "cpu":
            torch.set_num_threads(1)
            rows = list(measure_on_cpu(Path(folder)))
        else:
            rows = list(measure_on_cuda(Path(folder), arguments.steps, arguments.rounds))
    versions = common.versions("pillow")
    print(text := report(rows, arguments.device, versions))
    facts = {"machine": common.machine(arguments.device), "versions": versions, "rows": rows}
    common.save(f"data_{arguments.device}", facts)
    common.write_between("pipeline.md", f"data on {arguments.device}", text)


if __name__ == "__main__":
    main()
