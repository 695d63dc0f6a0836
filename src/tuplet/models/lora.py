"""Low-rank adapters (LoRA) on the linear layers of a transformer."""

import math
import re
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from tuplet.errors import OptionError, opt
from tuplet.models.backbone import Backbone, State

LoraLayers: TypeAlias = Literal["attention", "all"]
#: The last part of the names of the layers that attention and MLPs have, here and in timm.
_ATTENTION = ("qkv", "proj")
_ALL = (*_ATTENTION, "fc1", "fc2")


class LoRALinear(nn.Linear):
    """A linear layer with frozen weights and a trained low-rank addition: y = W x + b + B A x (Hu et al. 2021).

    B starts at zero, so that training starts from the given layer.

    >>> layer = LoRALinear(nn.Linear(8, 4), rank=2)
    >>> [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
    ['lora_a', 'lora_b']
    """

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        nn.Module.__init__(self)  # the weights are those of the given layer
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_a = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the layer and its addition."""
        return super().forward(x) + x @ self.lora_a.T @ self.lora_b.T


def add_lora(backbone: Backbone, rank: int, layers: LoraLayers = "attention") -> None:
    """Freeze a backbone and give the linear layers of its blocks low-rank additions, which alone are trained.

    Args:
        backbone: a transformer.
        rank: that of the additions.
        layers: "attention" for the projections to queries, keys and values and back, "all" for the MLPs too.
    """
    wanted = _ATTENTION if layers == "attention" else _ALL
    found = [
        (name, module)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and re.search(r"\bblocks\.", name) and name.rpartition(".")[2] in wanted
    ]
    if not found:
        raise OptionError(f"{opt('lora')} is {rank}, which is for transformers", "leave it out")
    # Layers above the highest level stay frozen, and get no additions to train.
    trained = {id(parameter) for parameter in backbone.parameters() if parameter.requires_grad}
    backbone.requires_grad_(False)
    for name, module in found:
        if id(module.weight) in trained:
            parent, _, last = name.rpartition(".")
            setattr(backbone.get_submodule(parent), last, LoRALinear(module, rank))


def merge_lora(network: nn.Module) -> None:
    """Replace layers with low-rank additions by plain ones that return the same."""
    for name, module in list(network.named_modules()):
        if isinstance(module, LoRALinear):
            with torch.device(module.weight.device):
                plain = nn.Linear(module.in_features, module.out_features, module.bias is not None)
            plain.weight, plain.bias = module.weight, module.bias
            plain.weight.data = module.weight.data + module.lora_b.data @ module.lora_a.data
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, plain)


def merged(state: State) -> State:
    """Return weights with their low-rank additions added, under the names of plain layers.

    >>> a, b = torch.ones(1, 2), torch.ones(3, 1)
    >>> merged({"fc.weight": torch.zeros(3, 2), "fc.lora_a": a, "fc.lora_b": b})
    {'fc.weight': tensor([[1., 1.],
            [1., 1.],
            [1., 1.]])}
    """
    result = {name: value for name, value in state.items() if not name.endswith((".lora_a", ".lora_b"))}
    for name, a in state.items():
        if name.endswith(".lora_a"):
            layer = name.removesuffix(".lora_a")
            result[f"{layer}.weight"] = state[f"{layer}.weight"] + state[f"{layer}.lora_b"] @ a
    return result
