"""The embedder of a run."""

import copy
import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tuplet import models
from tuplet.data import Dataset
from tuplet.durable import first_line
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.backbone import evaluating
from tuplet.training.objective import usual_normalize
from tuplet.training.settings import Settings

#: Networks so small that a random start is what they are for.
_FROM_SCRATCH = ("convnet", "mlp")


def make_embedder(settings: Settings, loss: RowLoss, data: Dataset) -> tuple[Embedder, Settings]:
    """The embedder in training mode, and the settings with what the embedder and the loss have decided filled in."""
    if isinstance(settings.model, Embedder):
        embedder = _given(settings.model, settings)
    else:
        if settings.model == "mlp":  # which cannot be made without them
            _refuse_other_data("mlp", data, pictures=False)
        embedder = _named(settings.model, settings, loss, data)
    _refuse_other_data(embedder.config.architecture, data, pictures=embedder.preprocessing is not None)
    frozen = settings.weights is not None if settings.frozen_batchnorm is None else settings.frozen_batchnorm
    if frozen:
        embedder.freeze_batchnorm(affine=frozen is True)
    if settings.frozen_to is not None:
        embedder.freeze_to(settings.frozen_to)
    embedder.train()
    if settings.piece_size is not None and _learns_statistics(embedder):
        raise ValueError(
            f"piece_size is {settings.piece_size} and {embedder.config.architecture} has BatchNorm, whose statistics "
            "would be those of a piece; set frozen_batchnorm=True"
        )
    config, pictures = embedder.config, embedder.preprocessing
    settings = replace(
        settings,
        dim=config.dim,
        levels=config.levels,
        pooling=config.pooling,
        layer_norm=config.layer_norm,
        normalize=config.normalize,
        frozen_batchnorm=frozen or embedder.frozen_batchnorm,
    )
    if pictures is not None:
        settings = replace(settings, size=pictures.size, resize=pictures.resize, fit=pictures.how)
    return embedder, settings


def _given(model: Embedder, settings: Settings) -> Embedder:
    """A copy of the caller's embedder, refused where it could not be trained as the settings say."""
    for p in model.parameters():
        if p.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"the embedder's weights are {p.dtype}, in which small steps are lost; give embedder.float(), and "
                "precision= for what the network computes in"
            )
    if model.frozen_batchnorm and settings.frozen_batchnorm is False:
        raise ValueError(
            "frozen_batchnorm is False and the embedder was given with its BatchNorm frozen; leave it out, or give "
            "an embedder that is not frozen"
        )
    embedder = copy.deepcopy(model)
    # One that `select` gave has layers above its levels, which data-parallel training would wait for.
    for parameter in embedder.backbone.beyond(embedder.config.levels):
        parameter.requires_grad_(False)
    return embedder


def _named(name: str, settings: Settings, loss: RowLoss, data: Dataset) -> Embedder:
    options = dict(settings.model_options)
    if name == "mlp" and data.features is not None:
        options.setdefault("features", data.features.shape[1])
    prepared = {"size": settings.size, "resize": settings.resize, "how": settings.fit}
    embedder = models.create(
        name,
        dim=settings.dim,
        levels=settings.levels,
        pooling=settings.pooling,
        layer_norm=settings.layer_norm,
        normalize=usual_normalize(loss) if settings.normalize is None else settings.normalize,
        weights=settings.weights,
        preprocessing={k: v for k, v in prepared.items() if v is not None} or None,
        **options,
    )
    if settings.weights is None and name not in _FROM_SCRATCH:
        warnings.warn(f"{name} starts from random weights; give weights=, a file or a known name", stacklevel=6)
    return embedder


def _refuse_other_data(model: str, data: Dataset, pictures: bool) -> None:
    if pictures == (data.features is not None):
        takes, has = ("pictures", "feature vectors") if pictures else ("feature vectors", "pictures")
        raise ValueError(
            f"{model} takes {takes} and the data are {has}; choose another model, such as "
            f"{'mlp' if pictures else 'resnet50'}"
        )


def refuse_unsuited_examples(embedder: Embedder, data: Dataset, sizes: Iterable[int]) -> None:
    """Try the network on a vector, or on an empty picture of each size, before any picture is decoded."""
    if data.features is not None:
        what = f"vectors of {data.features.shape[1]} numbers in {data.features.dtype}"
        _try(embedder, data.features[:1], f"the data's {what}", "give one that was made for such")
        return
    for size in sizes:
        empty = torch.zeros(1, 3, size, size, dtype=torch.uint8)
        _try(embedder, empty, f"pictures of {size} × {size} pixels", "choose another size")


def _try(embedder: Embedder, example: Tensor, what: str, remedy: str) -> None:
    try:
        # A network that was compiled is not to be compiled for a batch of one.
        with evaluating(embedder), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            embedder(example.to(embedder.device))
    except (RuntimeError, AssertionError) as error:  # torch's and timm's, about shapes and types
        raise ValueError(f"the embedder does not take {what} ({first_line(error)}); {remedy}") from error


def _learns_statistics(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) and module.training for module in network.modules())
