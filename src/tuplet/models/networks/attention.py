"""Attention over shared features: several masks of one map, each embedded by the same layers (Kim et al. 2018)."""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tuplet.models.backbone import Backbone


class AttentionEnsemble(Backbone):
    """A backbone that sees each image through several learned masks; its map H comes once for each mask.

    The layers up to level L, with the pooling after it, give a map that all masks share. A copy of the layers from
    there to level M, with the same weights at first, sees this map; a 1×1 convolution of its own for each mask and a
    sigmoid turn what it sees into the mask. The map, multiplied by each mask, passes through the rest of the backbone,
    the same for all. Where the layers to level M halve the map, as they do not in GoogLeNet, the mask is enlarged.

    >>> from tuplet import models
    >>> models.create("googlenet", dim=64, attention=8).widths
    [64, 64, 64, 64, 64, 64, 64, 64]

    Kim, Goyal, Chawla, Lee, Kwon: Attention-based Ensemble for Deep Metric Learning. ECCV 2018.
    """

    def __init__(self, backbone: Backbone, masks: int) -> None:
        super().__init__()
        levels = [level for level, _ in backbone.stages()]
        if backbone.class_token or "L" not in levels or "M" not in levels:
            raise ValueError("attention needs a backbone with maps, stages and the levels L and M, such as googlenet")
        self.backbone, self.copies = backbone, masks
        self.preprocessing, self.channels = backbone.preprocessing, {"H": backbone.channels["H"]}
        self.trunk = levels.index("L") + 1
        while not any(True for _ in backbone.stages()[self.trunk][1].parameters()):
            self.trunk += 1
        self.attention = nn.ModuleList(
            copy.deepcopy(stage) for _, stage in backbone.stages()[self.trunk : levels.index("M") + 1]
        )
        wide, narrow = backbone.channels["M"], backbone.channels["L"]
        self.masks = nn.Conv2d(wide, masks * narrow, 1)
        # Glorot's start of each mask, as for all new layers of the authors.
        bound = math.sqrt(6 / (wide + narrow))
        nn.init.uniform_(self.masks.weight, -bound, bound)

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the layers of the backbone in order, for freezing."""
        return self.backbone.stages()

    def layer_groups(self) -> list[tuple[str, list[nn.Parameter]]]:
        """Return the parameters by depth; the copy of a layer belongs to its layer."""
        copies = {self.trunk + i: list(stage.parameters()) for i, stage in enumerate(self.attention)}
        return [(level, [*own, *copies.get(i, ())]) for i, (level, own) in enumerate(self.backbone.layer_groups())]

    def new_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the masks."""
        return self.masks.parameters()

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the map H of each image under each mask, those of one image after another."""
        stages = [stage for _, stage in self.backbone.stages()]
        shared = _run(stages[: self.trunk], images)
        masks = self.masks(_run(self.attention, shared))
        if masks.shape[2:] != shared.shape[2:]:
            masks = interpolate(masks, shared.shape[2:], mode="bilinear")
        seen = [shared * mask for mask in masks.sigmoid().chunk(self.copies, 1)]
        return {"H": _run(stages[self.trunk :], torch.stack(seen, 1).flatten(0, 1))}

    def unused_parameters(self, levels: str) -> Iterator[nn.Parameter]:
        """Yield nothing: every layer is used."""
        yield from ()


def _run(stages: "list[nn.Module] | nn.ModuleList", x: Tensor) -> Tensor:
    for stage in stages:
        x = stage(x)
    return x
