"""Export an embedder to ONNX, OpenVINO or a program of `torch.export`, for runtimes without this package."""

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from tuplet.errors import OptionError, did_you_mean, opt
from tuplet.extras import need
from tuplet.models.embedder import Embedder

Format: TypeAlias = Literal["onnx", "openvino", "torch_export"]
Precision: TypeAlias = Literal["fp32", "fp16", "int8"]
ENDINGS: dict[str, str] = {"onnx": ".onnx", "openvino": ".xml", "torch_export": ".pt2"}
#: The images at a time that int8 measures the range of activations with.
CALIBRATION_BATCH = 8
_ANY_BATCH = ({0: torch.export.Dim("batch")},)


def export_model(
    embedder: Embedder,
    path: str | os.PathLike[str],
    format: Format = "onnx",
    precision: Precision = "fp32",
    calibration: Tensor | None = None,
) -> None:
    """Write an embedder of images for another runtime, with any batch size.

    The input is uint8 RGB (N, 3, size, size), as `preprocessing.image` returns it; mean and standard deviation are
    inside. The file holds the configuration and the fingerprint as JSON, under the name "tuplet". `open_exported` runs
    it; `tuplet export` also compares it with the embedder on images.

    Args:
        embedder: the embedder; it stays as it is.
        path: the file, which ends in .onnx, .xml (OpenVINO; its weights go into a .bin beside it) or .pt2.
        format: "onnx" and "openvino" need the extra of that name; "torch_export" is a program for torch.
        precision: of the weights and activations. fp16 halves the file. int8 quarters it, and is two to four times as
            fast on a CPU with instructions for it.
        calibration: for int8, some hundred images as the input takes them, similar to those of later use.

    Raises:
        OptionError: the combination does not exist, or int8 has no calibration images.

    >>> import tempfile
    >>> from tuplet import models
    >>> embedder, file = models.create("convnet", dim=4), f"{tempfile.mkdtemp()}/small.pt2"
    >>> export_model(embedder, file, "torch_export")
    >>> images = torch.zeros(3, 3, 28, 28, dtype=torch.uint8)
    >>> torch.allclose(open_exported(file)(images), embedder.embed(images), atol=1e-5)
    True
    """
    for option, value, choices in (("format", format, get_args(Format)), ("precision", precision, get_args(Precision))):
        if value not in choices:
            raise OptionError(f"{opt(option)} is {value!r}; {did_you_mean(value, choices)}")
    path = Path(path)
    if path.suffix != ENDINGS[format]:
        raise OptionError(f"{opt('out')} is {path.name}; the ending of {format} is {ENDINGS[format]}")
    if embedder.preprocessing is None:
        raise ValueError("this embedder takes feature vectors, not images; export it with models.export_onnx(example=)")
    if precision == "int8":
        if format == "torch_export":
            raise OptionError(f"{opt('precision', 'int8')} is for onnx and openvino; give one of these formats")
        if calibration is None or not len(calibration):
            raise OptionError(f"{opt('precision', 'int8')} needs images to calibrate it; give some hundred")
    if precision == "fp16":
        embedder = copy.deepcopy(embedder).half()
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "torch_export":
        with torch.no_grad():
            program = torch.export.export(_for_export(embedder), (_example(embedder),), dynamic_shapes=_ANY_BATCH)
        with warnings.catch_warnings():
            # Of torch, about weights that are stored channels last: they are written whole.
            warnings.filterwarnings("ignore", "No complete tensor found in the group")
            torch.export.save(program, path, extra_files={"tuplet": _about(embedder)})
        return
    openvino = need("openvino", extra="openvino", purpose="exporting to OpenVINO") if format == "openvino" else None
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        export_onnx(embedder, file)
        if calibration is not None and precision == "int8":
            file = _quantize(file, calibration)
        if openvino is None:
            path.write_bytes(file.read_bytes())
        else:
            model = openvino.convert_model(file)
            model.set_rt_info(_about(embedder), ["tuplet"])
            openvino.save_model(model, path, compress_to_fp16=precision == "fp16")


def open_exported(path: str | os.PathLike[str]) -> Callable[[Tensor], Tensor]:
    """Return a function that runs an exported file.

    Args:
        path: what `export_model` wrote.

    Returns:
        A function from uint8 images (N, 3, size, size) to embeddings (N, width), on the CPU.

    Raises:
        ValueError: the file has another ending.
    """
    path = Path(path)
    if path.suffix == ".pt2":
        program = torch.export.load(path).module()
        return lambda images: program(images).float()
    if path.suffix == ".onnx":
        runtime = need("onnxruntime", extra="onnx", purpose="running an ONNX file")
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]).float()
    if path.suffix == ".xml":
        openvino = need("openvino", extra="openvino", purpose="running an OpenVINO file")
        # Otherwise a CPU with bf16 units computes in bf16, whatever the file says.
        model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda images: torch.from_numpy(np.array(model(images.numpy())[0])).float()
    raise ValueError(f"{path} is no exported model; its ending must be one of {', '.join(ENDINGS.values())}")


def _about(embedder: Embedder) -> str:
    return json.dumps({"config": embedder.config.stored(), "fingerprint": embedder.fingerprint()})


def _for_export(embedder: Embedder) -> Embedder:
    return copy.deepcopy(embedder).cpu().eval()


def _example(embedder: Embedder) -> Tensor:
    """Return an input of an embedder of images."""
    if embedder.preprocessing is None:
        raise ValueError("this embedder has no preprocessing, so its input is not known; give example=")
    size = embedder.preprocessing.size
    return torch.zeros(2, 3, size, size, dtype=torch.uint8)


def _quantize(file: Path, images: Tensor) -> Path:
    """Return a file whose products and convolutions are int8, with the range of each activation from images."""
    tools = need("onnxruntime.quantization", extra="onnx", purpose="exporting int8")

    class Images(tools.CalibrationDataReader):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self._batches = iter(images.split(CALIBRATION_BATCH))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {"images": batch.numpy()}

    quantized = file.with_name("int8.onnx")
    with _quiet(logging.getLogger()):  # it advises to preprocess the file, which the exporter has done
        kinds = ["Conv", "Gemm", "MatMul"]
        tools.quantize_static(file, quantized, Images(), per_channel=True, op_types_to_quantize=kinds)
    return quantized


def export_onnx(embedder: Embedder, path: str | os.PathLike[str], example: Tensor | None = None) -> None:
    """Write an .onnx file with the input `images`, the output `embeddings` and any batch size.

    The input is uint8 RGB (N, 3, size, size), as `preprocessing.image` returns it; mean and standard deviation are
    inside. The metadata holds the configuration and the fingerprint. Needs `pip install 'tuplet[onnx]'`.

    Args:
        embedder: the embedder; it stays as it is.
        path: the file.
        example: an input; an embedder without preprocessing needs one.

    Raises:
        ValueError: the input is not known, or the weights are bfloat16, which runtimes do not run.
    """
    for package in ("onnx", "onnxscript"):
        need(package, extra="onnx", purpose="exporting to ONNX")
    example = _example(embedder) if example is None else example
    if any(p.dtype == torch.bfloat16 for p in embedder.parameters()):
        raise ValueError(
            "the embedder's weights are torch.bfloat16, which ONNX runtimes do not run; export embedder.float()"
        )
    # Checked before the export, which takes long.
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file in it, such as {path / 'embedder.onnx'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _quiet(logging.getLogger("torch.onnx")):  # notes about optional packages and its own deprecated code
        program = torch.onnx.export(
            _for_export(embedder),
            (example.cpu(),),
            dynamo=True,
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=_ANY_BATCH,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props["tuplet"] = _about(embedder)
    program.save(path, external_data=False)


@contextmanager
def _quiet(log: logging.Logger) -> Iterator[None]:
    """Silence the warnings of a log, and those about deprecated code."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.setLevel(before)
