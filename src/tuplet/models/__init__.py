"""Backbones, embedding heads, and weights with their preprocessing."""

from tuplet.models.architectures import ALIASES, ARCHITECTURES
from tuplet.models.backbone import Backbone
from tuplet.models.embedder import Embedder
from tuplet.models.export import export_model, export_onnx, open_exported
from tuplet.models.factory import create, load, pretrained
from tuplet.models.find_weights import AtHand, weights_at_hand
from tuplet.models.known_weights import KNOWN
from tuplet.models.parameter_groups import param_groups
from tuplet.models.preprocessing import Preprocessing
from tuplet.models.text import TextEncoder

__all__ = [
    "ALIASES",
    "ARCHITECTURES",
    "KNOWN",
    "AtHand",
    "Backbone",
    "Embedder",
    "Preprocessing",
    "TextEncoder",
    "create",
    "export_model",
    "export_onnx",
    "load",
    "open_exported",
    "param_groups",
    "pretrained",
    "weights_at_hand",
]
