"""Import torchvision, timm and transformers, also beside a torch that they were not built for."""

import importlib
import importlib.util

import pytest
import torch

from tuplet import extras

_LIBRARIES = []


def foreign(module):
    """Return the module, or skip the test or the file if it cannot be imported."""
    if importlib.util.find_spec("torchvision") is not None and not _LIBRARIES:
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            # Its compiled part does not load beside this torch, and it fails on the two operators that it describes
            # when it is imported. The comparisons need neither.
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _LIBRARIES.append(library)
    try:
        return extras.need(module, extra="timm", purpose="this comparison")
    except ImportError as error:
        pytest.skip(str(error), allow_module_level=True)
