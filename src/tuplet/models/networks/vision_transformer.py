"""Vision transformers: ViT, DINO, DINOv2 with and without registers, and the image towers of CLIP."""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from tuplet.errors import OptionError, opt
from tuplet.models.backbone import Backbone, State, embeds_on_cpu
from tuplet.models.networks.transformer_names import timm_names
from tuplet.models.preprocessing import AUGREG, CLIP, IMAGENET, Preprocessing

Activation: TypeAlias = Literal["gelu", "quick_gelu", "swiglu"]


def quick_gelu(x: Tensor) -> Tensor:
    """Return x · σ(1.702 x), OpenAI's approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(a) · b, where a and b are the halves of x."""
    a, b = x.chunk(2, dim=-1)
    return silu(a) * b


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "quick_gelu": quick_gelu, "swiglu": swiglu}


#: oneDNN's linear layer, an internal operator of torch; None if this torch does not have it.
_onednn_linear: Callable[..., Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)


class Linear(nn.Linear):
    """A linear layer that is faster on a CPU outside of training.

    There torch multiplies float32 matrices with MKL, which took twice as long as oneDNN on the AMD processor where both
    were measured.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x·wᵀ + b."""
        if _onednn_linear is None or not embeds_on_cpu(x, self.weight, self.bias):
            return super().forward(x)
        return _onednn_linear(x, self.weight, self.bias, "none", [], "")


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (N, T, width)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.fc1 = Linear(width, 2 * hidden if activation == "swiglu" else hidden)
        self.activation = ACTIVATIONS[activation]
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (N, T, width)."""
        return self.fc2(self.activation(self.fc1(x)))


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        return x * self.gamma


class TransformerBlock(nn.Module):
    """Attention and MLP, each normalised before and added to its input.

    In training, `drop_path` is the probability that an image skips one of the two (stochastic depth), and
    `recompute` keeps no activations inside the block: the backward pass computes them again.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, activation: Activation, layer_scale: bool, eps: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads)
        self.ls1 = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = FeedForward(width, hidden, activation)
        self.ls2 = LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path, self.recompute = 0.0, False

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (N, T, width)."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(self._forward, x, use_reentrant=False)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        x = x + self._drop(self.ls1(self.attn(self.norm1(x))))
        return x + self._drop(self.ls2(self.mlp(self.norm2(x))))

    def _drop(self, x: Tensor) -> Tensor:
        if not (self.training and self.drop_path):
            return x
        keep = 1 - self.drop_path
        return x * (x.new_empty(x.shape[0], 1, 1).bernoulli_(keep) / keep)


class Stem(nn.Module):
    """Images to tokens: the class token, the registers, then the patches with their position embeddings.

    The class token's own position embedding, which published files have, is part of the class token here.
    """

    def __init__(self, size: int, patch: int, width: int, registers: int, pre_norm: bool, eps: float) -> None:
        super().__init__()
        if size < patch or size % patch:
            below = max(1, size // patch) * patch
            raise OptionError(
                f"{opt('size')} is {size}; it must be a multiple of the patch, {patch}",
                f"use {below} or {below + patch}",
            )
        self.grid = size // patch
        self.proj = nn.Conv2d(3, width, patch, patch, bias=not pre_norm)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.reg_token = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, self.grid**2, width))
        self.norm = nn.LayerNorm(width, eps=eps) if pre_norm else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (N, 1 + registers + patches, width)."""
        (height, width), (patch, _) = images.shape[-2:], self.proj.kernel_size
        if height % patch or width % patch:
            raise ValueError(f"images are {height} × {width}; both sides must be multiples of the patch, {patch}")
        x = self.proj(images)
        positions = resample(self.pos_embed, self.grid, x.shape[-2], x.shape[-1])
        tokens = [self.cls_token] if self.reg_token is None else [self.cls_token, self.reg_token]
        x = x.flatten(2).transpose(1, 2) + positions
        return self.norm(torch.cat([*(token.expand(x.shape[0], -1, -1) for token in tokens), x], 1))


def resample(positions: Tensor, grid: int, height: int, width: int) -> Tensor:
    """Resample position embeddings (1, grid², C) of a square grid to another grid (antialiased bicubic).

    >>> resample(torch.ones(1, 9, 4), grid=3, height=2, width=5).shape
    torch.Size([1, 10, 4])
    """
    if (height, width) == (grid, grid):
        return positions
    square = positions.float().unflatten(1, (grid, grid)).permute(0, 3, 1, 2)
    found = interpolate(square, (height, width), mode="bicubic", antialias=True)
    return found.flatten(2).transpose(1, 2).to(positions.dtype)


class VisionTransformer(Backbone):
    """Dosovitskiy et al. 2020, with the variants of DINO, DINOv2 and CLIP. `CONFIGS` has the published ones.

    Every level is tokens (N, 1 + patches, width), the class token first. L and M are the outputs of the blocks at one
    half and at three quarters of the depth, H is the normalised output of the last block.

    Args:
        patch: side of a patch in pixels.
        width: length of a token.
        depth: number of blocks.
        heads: number of attention heads.
        size: side of the images whose grid the position embeddings have; those of a file are resampled to it. Images of
            other sizes, multiples of the patch, resample them on the fly.
        registers: number of register tokens.
        layer_scale: whether the blocks scale their channels.
        activation: that of the MLPs.
        hidden: width of the MLPs; None is 4 · width.
        pre_norm: whether tokens are normalised before the first block, as in CLIP.
        projection: width of the linear layer after the last block, as in CLIP; None for no layer.
        eps: that of the normalisations.
        preprocessing: that of the published weights, at their size.

    >>> VisionTransformer(patch=16, width=192, depth=12, heads=3).channels
    {'L': 192, 'M': 192, 'H': 192}
    """

    classifier = "head"
    ignored = ("mask_token", "pooler.")
    class_token = True

    def __init__(
        self,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        size: int = 224,
        registers: int = 0,
        layer_scale: bool = False,
        activation: Activation = "gelu",
        hidden: int | None = None,
        pre_norm: bool = False,
        projection: int | None = None,
        eps: float = 1e-6,
        preprocessing: Preprocessing = IMAGENET,
    ) -> None:
        super().__init__()
        self.stem = Stem(size, patch, width, registers, pre_norm, eps)
        hidden = hidden or 4 * width
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, hidden, activation, layer_scale, eps) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width, eps=eps)
        self.projection = nn.Identity() if projection is None else nn.Linear(width, projection, bias=False)
        self.registers, self.depth, self.preprocessing = registers, depth, preprocessing.at(size)
        self.channels = {"L": width, "M": width, "H": projection or width}
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the stem, the blocks, and the last normalisation with the projection."""
        depth = len(self.blocks)
        ends = {depth // 2: "L", depth * 3 // 4: "M"}
        blocks = [(ends.get(i, ""), block) for i, block in enumerate(self.blocks, start=1)]
        return [("", self.stem), *blocks, ("", self.norm), ("H", self.projection)]

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the tokens of `levels` without the registers."""
        maps = super().forward(images, levels)
        if self.registers:
            first = 1 + self.registers
            maps = {level: torch.cat([x[:, :1], x[:, first:]], 1) for level, x in maps.items()}
        return maps

    def set_drop_path(self, rate: float) -> None:
        """Set stochastic depth: an image skips block i of n, counted from 0, with probability rate · i / (n − 1)."""
        for i, block in enumerate(self.blocks):
            assert isinstance(block, TransformerBlock)
            block.drop_path = rate * i / max(1, len(self.blocks) - 1)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the tokens between blocks for the backward pass, which computes the rest again."""
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            block.recompute = enable

    def translate(self, state: State) -> State:
        """Read the names of timm, Meta, OpenAI and Hugging Face, and resample the position embeddings."""
        own = {"cls_token": "stem.cls_token", "reg_token": "stem.reg_token", "pos_embed": "stem.pos_embed"}
        own |= {"patch_embed.proj.": "stem.proj.", "norm_pre.": "stem.norm."}
        if isinstance(self.projection, nn.Linear):
            own["head.weight"] = "projection.weight"
        found: State = {}
        for name, value in timm_names(state).items():
            old = next((old for old in own if name.startswith(old)), "")
            found[own[old] + name.removeprefix(old) if old else name] = value
        if "stem.pos_embed" in found:
            positions = found["stem.pos_embed"].float()
            grid = math.isqrt(positions.shape[1])
            if grid**2 != positions.shape[1]:  # the first is that of the class token
                found["stem.cls_token"] = found["stem.cls_token"].float() + positions[:, :1]
                positions = positions[:, 1:]
            found["stem.pos_embed"] = resample(positions, grid, self.stem.grid, self.stem.grid)
        return found


_WIDTHS: dict[str, dict[str, int]] = {
    "tiny": {"width": 192, "depth": 12, "heads": 3},
    "small": {"width": 384, "depth": 12, "heads": 6},
    "base": {"width": 768, "depth": 12, "heads": 12},
    "large": {"width": 1024, "depth": 24, "heads": 16},
    "giant": {"width": 1536, "depth": 40, "heads": 24},
}
_CLIP = {"pre_norm": True, "eps": 1e-5, "preprocessing": CLIP}


def _configs() -> dict[str, dict[str, Any]]:
    configs: dict[str, dict[str, Any]] = {}
    for size, patch in (
        *(("tiny", 16), ("small", 16), ("small", 32)),
        *(("base", 8), ("base", 16), ("base", 32), ("large", 16)),
    ):
        configs[f"vit_{size}_patch{patch}_224"] = {"patch": patch, **_WIDTHS[size], "preprocessing": AUGREG}
    for size, patch in (("small", 8), ("small", 16), ("base", 8), ("base", 16)):
        configs[f"vit_{size}_patch{patch}_224.dino"] = {"patch": patch, **_WIDTHS[size]}
    for size in ("small", "base", "large", "giant"):
        gate = {"activation": "swiglu", "hidden": 4096} if size == "giant" else {}
        dinov2 = {"patch": 14, **_WIDTHS[size], "layer_scale": True, **gate}
        configs[f"vit_{size}_patch14_dinov2"] = dinov2
        configs[f"vit_{size}_patch14_reg4_dinov2"] = {**dinov2, "registers": 4}
    for size, patch, projection in (("base", 32, 512), ("base", 16, 512), ("large", 14, 768)):
        clip = {**_CLIP, "patch": patch, **_WIDTHS[size], "projection": projection}
        configs[f"vit_{size}_patch{patch}_clip_224"] = clip
        configs[f"vit_{size}_patch{patch}_clip_quickgelu_224"] = {**clip, "activation": "quick_gelu"}
    return configs


#: The published transformers by their names in timm, with the arguments of `VisionTransformer`.
CONFIGS = _configs()
