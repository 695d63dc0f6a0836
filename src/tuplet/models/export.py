"""An embedder as ONNX, for runtimes without PyTorch."""

import copy
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tuplet.extras import need
from tuplet.models.embedder import Embedder


def export_onnx(embedder: Embedder, path: str | os.PathLike[str], example: torch.Tensor | None = None) -> None:
    """Write one .onnx file, its folder too where that is missing: input `images`, output `embeddings`, any batch size.

    The input is uint8 RGB (N, 3, size, size), since mean and deviation are inside; an embedder without preprocessing
    needs `example`, an input of its own kind. The file's metadata holds the preprocessing and the fingerprint.
    Needs `pip install 'tuplet[onnx]'`.
    """
    for package in ("onnx", "onnxscript"):
        need(package, extra="onnx", purpose="exporting to ONNX")
    if example is None:
        if embedder.preprocessing is None:
            raise ValueError("this embedder has no preprocessing to know its input by; give example=")
        size = embedder.preprocessing.size
        example = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    if any(p.dtype == torch.bfloat16 for p in embedder.parameters()):
        raise ValueError(
            "the embedder's weights are torch.bfloat16, which ONNX runtimes do not run; export embedder.float()"
        )
    # Before the export, which takes long.
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file in it, such as {path / 'embedder.onnx'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    network = copy.deepcopy(embedder).cpu().eval()
    with _quietly():
        program = torch.onnx.export(
            network,
            (example.cpu(),),
            dynamo=True,
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props["tuplet"] = json.dumps(
        {"config": embedder.config.stored(), "fingerprint": embedder.fingerprint()}
    )
    program.save(path, external_data=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's exporter says of packages that no embedder needs, and of its own code's age."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.setLevel(before)
