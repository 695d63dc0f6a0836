"""Parameter groups for an optimiser: new layers learn faster, low layers slower, biases do not decay."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from tuplet.errors import OptionError, opt
from tuplet.models.embedder import Embedder


def param_groups(
    embedder: Embedder,
    lr: float,
    head_lr_scale: float = 1.0,
    weight_decay: float = 0.0,
    layer_lr_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Return parameter groups for `torch.optim`; frozen parameters and empty groups are left out.

    Args:
        embedder: the embedder.
        lr: the learning rate of the backbone.
        head_lr_scale: the learning rate of the heads, and of new layers of the backbone, as a multiple of `lr`.
        weight_decay: the weight decay of matrices; biases and the scales of normalisation layers have none.
        layer_lr_decay: the learning rate of each layer of the backbone, as a multiple of that of the layer above it.

    Returns:
        Groups with a `name`: "backbone" or "heads", with "/flat" for parameters that do not decay. Where layers learn
        at rates of their own, "backbone/0" is the lowest.

    Raises:
        OptionError: the layers of the backbone are not known, which `layer_lr_decay` needs.

    >>> from tuplet import models
    >>> [(g["name"], g["lr"]) for g in param_groups(models.create("convnet", dim=2), lr=0.1, head_lr_scale=10)]
    [('backbone', 0.1), ('backbone/flat', 0.1), ('heads', 1.0), ('heads/flat', 1.0)]
    """
    new = list(embedder.backbone.new_parameters())
    known = [parameter for parameter in embedder.backbone.parameters() if all(parameter is not each for each in new)]
    parts = [("backbone", lr, known)]
    if layer_lr_decay != 1:
        layers = [layer for _, layer in embedder.backbone.layer_groups()]
        if not layers:
            name = embedder.config.architecture
            raise OptionError(
                f"{opt('layer_lr_decay')} is {layer_lr_decay}, and the layers of {name} are not known",
                "leave it out, or give a models.Backbone with `stages`",
            )
        layers = [layer for layer in layers if any(parameter.requires_grad for parameter in layer)]
        parts = [
            (f"backbone/{i}", lr * layer_lr_decay ** (len(layers) - 1 - i), layer) for i, layer in enumerate(layers)
        ]
    groups: list[dict[str, Any]] = []
    for name, part_lr, parameters in [*parts, ("heads", lr * head_lr_scale, [*new, *embedder.heads.parameters()])]:
        groups += _by_decay(name, part_lr, parameters, weight_decay)
    return groups


def _by_decay(name: str, lr: float, parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    matrices, vectors = [p for p in learning if p.ndim > 1], [p for p in learning if p.ndim <= 1]
    groups = [
        {"name": name, "params": matrices, "lr": lr, "weight_decay": weight_decay},
        {"name": f"{name}/flat", "params": vectors, "lr": lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
