"""The embedder of a run, checks that it can be trained on the data, and the model before training."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tuplet import models
from tuplet.data import Dataset
from tuplet.errors import OptionError, first_line, opt, warn
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.backbone import evaluating
from tuplet.models.lora import add_lora
from tuplet.models.networks.adapters import TimmModel
from tuplet.training.settings import Settings

#: Options that an embedder's configuration and its preprocessing hold.
OF_EMBEDDER = ("dim", "levels", "pooling", "layer_norm", "normalize")
OF_PREPROCESSING = ("size", "resize", "resize_mode")


def make_embedder(settings: Settings, loss: RowLoss, data: Dataset) -> tuple[Embedder, Settings]:
    """Return the embedder in training mode, and the settings completed by what the embedder and the loss decide."""
    if isinstance(settings.model, Embedder):
        embedder = _copy(settings.model, settings)
    else:
        if settings.model == "mlp":  # before it is made, since it needs the number of features
            check_kind_of_data("mlp", data, takes_images=False)
        embedder = _create(settings.model, settings, loss, data)
    check_kind_of_data(embedder.config.architecture, data, takes_images=embedder.preprocessing is not None)
    pretrained = isinstance(settings.model, str) and settings.weights is not None
    frozen = pretrained if settings.freeze_batchnorm is None else settings.freeze_batchnorm
    if frozen:
        embedder.freeze_batchnorm(affine=frozen is True)
    if settings.freeze_to is not None:
        embedder.freeze_to(settings.freeze_to)
    if settings.lora:
        add_lora(embedder.backbone, settings.lora, settings.lora_layers)
    embedder.backbone.set_drop_path(settings.drop_path)
    embedder.backbone.set_grad_checkpointing(settings.grad_checkpointing)
    embedder.train()
    trains_batchnorm = any(isinstance(module, _BatchNorm) and module.training for module in embedder.modules())
    if settings.micro_batch_size is not None and trains_batchnorm:
        raise OptionError(
            f"{opt('micro_batch_size')} is {settings.micro_batch_size} and {embedder.config.architecture} has "
            "BatchNorm, whose statistics would be those of a micro-batch",
            f"set {opt('freeze_batchnorm', True)}",
        )
    decided = {name: getattr(embedder.config, name) for name in OF_EMBEDDER}
    if embedder.preprocessing is not None:
        decided |= {name: getattr(embedder.preprocessing, name) for name in OF_PREPROCESSING}
    return embedder, replace(settings, **decided, freeze_batchnorm=frozen or embedder.frozen_batchnorm)


def _copy(model: Embedder, settings: Settings) -> Embedder:
    """Return a copy of the caller's embedder; raise an error if it cannot be trained as the settings say."""
    for p in model.parameters():
        if p.dtype in (torch.float16, torch.bfloat16):
            raise OptionError(
                f"the embedder's weights are {p.dtype}, which loses small steps",
                f"give embedder.float(), and {opt('precision')} to compute in half precision",
            )
    if model.frozen_batchnorm and settings.freeze_batchnorm is False:
        raise OptionError(
            f"{opt('freeze_batchnorm')} is False and the BatchNorm of the given embedder is frozen",
            "leave it out, or give an embedder that is not frozen",
        )
    embedder = copy.deepcopy(model)
    # An embedder from `select` has layers above its levels. Data-parallel training would wait for their gradients.
    for parameter in embedder.backbone.unused_parameters(embedder.config.levels):
        parameter.requires_grad_(False)
    return embedder


def _create(name: str, settings: Settings, loss: RowLoss, data: Dataset) -> Embedder:
    options = dict(settings.model_options)
    if name == "mlp" and data.features is not None:
        options.setdefault("features", data.features.shape[1])
    own: dict[str, Any] = {option: getattr(settings, option) for option in OF_EMBEDDER}
    if settings.normalize is None:
        own["normalize"] = usual_normalize(loss)
    given = {option: getattr(settings, option) for option in OF_PREPROCESSING if getattr(settings, option) is not None}
    embedder = models.create(name, weights=settings.weights, preprocessing=given or None, **own, **options)
    if _is_square_layer(embedder):
        # It starts from the vectors themselves, as metric learning of a linear map does.
        head = embedder.heads["H"]
        assert isinstance(head, nn.Linear)
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
    return embedder


def _is_square_layer(embedder: Embedder) -> bool:
    """Return whether an embedder is one linear layer from vectors to vectors of the same length."""
    config = embedder.config
    is_layer = config.architecture == "mlp" and not config.options.get("hidden", True)
    return is_layer and config.dim == config.options["features"]


def check_kind_of_data(model: str, data: Dataset, takes_images: bool) -> None:
    """Raise an error if a model takes images and the data are feature vectors, or the reverse."""
    if takes_images == (data.features is not None):
        takes, has = ("images", "feature vectors") if takes_images else ("feature vectors", "images")
        other = "mlp" if takes_images else "resnet50"
        raise OptionError(
            f"{model} takes {takes} and the data are {has}", f"give {takes}, or another model, such as {other}"
        )


def check_inputs(embedder: Embedder, data: Dataset, sizes: Mapping[int, str]) -> None:
    """Run the network on one feature vector, or on an empty image of each size, before any image is decoded.

    Args:
        embedder: the network.
        data: the examples.
        sizes: the sides of images, each with the option that sets it.
    """
    if data.features is not None:
        what = f"the data's vectors of {data.features.shape[1]} numbers in {data.features.dtype}"
        _try(embedder, data.features[:1], what, "give an embedder for such vectors")
        return
    for size, option in sizes.items():
        empty = torch.zeros(1, 3, size, size, dtype=torch.uint8)
        remedy = f"choose another {option}"
        if isinstance(embedder.backbone, TimmModel) and embedder.backbone.depth:
            remedy += f", or give {opt('model_options', {'img_size': size})}"
        _try(embedder, empty, f"images of {size} × {size} pixels", remedy)


def _try(embedder: Embedder, example: Tensor, what: str, remedy: str) -> None:
    try:
        # A compiled network must not be compiled for a batch of one.
        with evaluating(embedder), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            embedder(example.to(embedder.device))
    except OptionError:
        raise
    except (RuntimeError, AssertionError, ValueError) as error:  # about shapes and types
        raise OptionError(f"the embedder does not take {what} ({first_line(error)})", remedy) from error


def usual_normalize(loss: RowLoss) -> bool | Literal["eval"]:
    """Return the normalisation that a loss is defined on, or unit length if it takes vectors of any length.

    >>> from tuplet import losses
    >>> usual_normalize(losses.NPairLoss()), usual_normalize(losses.NPairLoss(scale=16.0))
    ('eval', True)
    """
    return True if loss.normalize is None else loss.normalize


def warn_of_length(loss: RowLoss, normalize: bool | Literal["eval"]) -> None:
    """Warn if a loss gets vectors of another length than it is defined on."""
    name = type(loss).__name__
    # The angular losses take no scale: they learn better from unit vectors than from free ones, which shrink first.
    if normalize is True and loss.normalize == "eval" and hasattr(loss, "scale"):
        warn(
            f"{name} gets unit vectors, whose products are too small for it to fall far; "
            f"give the loss a scale such as 16, or use {opt('normalize', 'eval')}"
        )
    if normalize is not True and loss.normalize is True:
        warn(
            f"{name} is defined on unit vectors and gets vectors of any length in training; "
            f"use {opt('normalize', True)}"
        )


@dataclass(frozen=True, eq=False)
class Start:
    """The model that training starts from, in evaluation mode, and its description in words."""

    embedder: Embedder
    about: str


def make_start(embedder: Embedder, settings: Settings, data: Dataset) -> Start:
    """Return the start of a run: what the user has without training, so without layers of random weights.

    - Pretrained weights with a new layer: the pooled features of the backbone.
    - Feature vectors and a network of random weights: the vectors themselves.
    - Otherwise the network as it is: one that was given, one without a new layer, or one that starts from random.

    All of them have unit length if the trained embeddings have.
    """
    config = embedder.config
    if isinstance(settings.model, Embedder):
        start, about = copy.deepcopy(embedder), "the given model"
    elif data.features is not None:
        about = "the feature vectors"
        if _is_square_layer(embedder) and not config.layer_norm:
            start = copy.deepcopy(embedder)  # the identity, so that weights can be averaged with it
        else:
            width = data.features.shape[1]
            start = models.create("mlp", features=width, hidden=[], dim=None, normalize=config.normalize)
    elif settings.weights is None:
        start, about = copy.deepcopy(embedder), f"{config.architecture} with random weights"
    else:
        without = replace(config, dim=None, heads=None, part_weights=None)
        start = Embedder(without, copy.deepcopy(embedder.backbone))
        layer = "" if config.dim is None else ", without a new layer"
        about = f"{config.architecture} with the weights {settings.weights}{layer}"
    return Start(start.to(embedder.device).eval(), about)
