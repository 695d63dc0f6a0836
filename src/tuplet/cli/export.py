"""`tuplet export`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tuplet.atomic import explain_write_errors
from tuplet.cli.arguments import Model
from tuplet.cli.tables import percent

if TYPE_CHECKING:
    from torch import Tensor

    from tuplet.data import Dataset
    from tuplet.models import Preprocessing

#: The lowest cosine of an image's vectors, before and after, by precision.
LOWEST = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.9}


def export(
    model: Model,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Images to check it with. [the data of the run]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write. [the model's folder and name]")] = None,
    format: Annotated[Literal["onnx", "openvino", "torch_export"], typer.Option(help="The format.")] = "onnx",
    precision: Annotated[Literal["fp32", "fp16", "int8"], typer.Option(help="The type of the weights.")] = "fp32",
    images: Annotated[int, typer.Option(min=2, help="How many images to check, and to calibrate int8 with.")] = 256,
) -> None:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, checked on images before it is written.

    The file takes uint8 RGB images (N, 3, size, size); mean and standard deviation are inside, and its metadata
    describe how to resize and crop. On images of the test split the command compares its vectors with the model's. It
    writes nothing if they differ by more than the precision explains.

    Examples:
      tuplet export runs/photos
      tuplet export runs/photos --format openvino --precision int8
    """
    from torch.nn.functional import cosine_similarity

    from tuplet import evaluation, models
    from tuplet.cli.runs import load_image_embedder, open_data
    from tuplet.models.export import ENDINGS
    from tuplet.training.evaluate import choose_examples

    embedder = load_image_embedder(model, "cpu")
    assert embedder.preprocessing is not None
    opened = open_data(model, data, "export")
    out = out or (model if model.is_dir() else Path()) / f"{precision}{ENDINGS[format]}"
    calibration = None
    if precision == "int8":
        calibration, _ = _some(choose_examples(opened, "train"), images, embedder.preprocessing)
    pixels, labels = _some(choose_examples(opened, "test"), images, embedder.preprocessing)
    with explain_write_errors(out), TemporaryDirectory(dir=_made(out.parent)) as folder:
        written = Path(folder, out.name)
        models.export_model(embedder, written, format, precision, calibration)
        before, after = embedder.embed(pixels), _run(written, pixels)
        cosine = cosine_similarity(before, after)
        recalls = [evaluation.recall_at_k(x, labels, ks=(1,))[1] for x in (before, after)]
        if cosine.min() < LOWEST[precision]:
            raise ValueError(
                f"{format} in {precision} changes a vector to a cosine of {cosine.min():.4f}, below "
                f"{LOWEST[precision]}; nothing was written: choose another --precision"
            )
        for file in Path(folder).iterdir():
            file.replace(out.with_name(file.name))
    print(
        f"{out}: cosine {cosine.mean():.5f} on average, {cosine.min():.5f} at worst; "
        f"Recall@1 on {len(pixels):,} images {percent(recalls[0])} before, {percent(recalls[1])} after"
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _some(data: "Dataset", count: int, preprocessing: "Preprocessing") -> "tuple[Tensor, Tensor]":
    """Return up to `count` images of a dataset, evenly from all classes, and their labels; skip unreadable ones."""
    import torch

    from tuplet import data as datasets
    from tuplet.reports.projection import sample

    store = datasets.load(data.select(sample(data.labels, count)), unreadable="skip", crop=preprocessing.crop)
    return store.values[torch.arange(len(store))], store.data.labels


def _run(path: Path, pixels: "Tensor") -> "Tensor":
    import torch

    from tuplet import models

    run = models.open_exported(path)
    return torch.cat([run(batch) for batch in pixels.split(8)])
