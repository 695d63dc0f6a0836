"""Backbones, embedding heads on their levels, and weights that carry their preprocessing."""

from tuplet.models.architectures import ARCHITECTURES
from tuplet.models.backbone import Backbone
from tuplet.models.create import create, load
from tuplet.models.embedder import Embedder
from tuplet.models.export import export_onnx
from tuplet.models.preprocessing import Preprocessing
from tuplet.models.tuning import param_groups
from tuplet.models.weights import KNOWN, classifier

__all__ = [
    "ARCHITECTURES",
    "KNOWN",
    "Backbone",
    "Embedder",
    "Preprocessing",
    "classifier",
    "create",
    "export_onnx",
    "load",
    "param_groups",
]
