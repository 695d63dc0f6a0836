"""The embedder: a backbone, a head on each of its levels, and the preprocessing that belongs to its weights."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any, Literal, Self, TypeAlias, cast, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize
from torch.nn.modules.batchnorm import _BatchNorm

from tuplet.models import folder as storage
from tuplet.models.backbone import LEVELS, Backbone, State, evaluating, type_of
from tuplet.models.preprocessing import Preprocessing
from tuplet.models.reading import batches
from tuplet.progress import track

Pooling: TypeAlias = Literal["mean", "max", "mean+max"]
Normalize: TypeAlias = bool | Literal["eval"]
Picture: TypeAlias = str | os.PathLike[str] | bytes | Image.Image


@dataclass(frozen=True)
class Config:
    """Everything about an embedder but its weights, as plain data."""

    architecture: str
    options: Mapping[str, Any]
    dim: int | None
    levels: str
    pooling: Pooling
    normalize: Normalize
    preprocessing: Preprocessing | None
    layer_norm: bool = False

    def __post_init__(self) -> None:
        if not self.levels or len(set(self.levels)) < len(self.levels) or not set(self.levels) <= set(LEVELS):
            raise ValueError(f"levels is {self.levels!r}; it must be one or more of L, M and H, such as 'H' or 'LMH'")
        object.__setattr__(self, "levels", "".join(level for level in LEVELS if level in self.levels))
        whole = isinstance(self.dim, int | np.integer) and not isinstance(self.dim, bool)
        if self.dim is not None and not (whole and self.dim > 0):
            raise ValueError(
                f"dim is {self.dim!r}; it must be a positive whole number, or None for the pooled features themselves"
            )
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling is {self.pooling!r}; it must be 'mean', 'max' or 'mean+max'")
        if not isinstance(self.normalize, bool) and self.normalize != "eval":
            raise ValueError(f"normalize is {self.normalize!r}; it must be True, False or 'eval'")

    def stored(self) -> dict[str, Any]:
        """As saved and fingerprinted: without fields at their defaults, so that a new one leaves old models alone."""
        plain = json.loads(json.dumps(asdict(self), default=_as_python))
        return {field.name: plain[field.name] for field in fields(self) if plain[field.name] != field.default}


def _as_python(value: Any) -> Any:
    """A number of numpy's as one of Python's, which a file can hold."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"the backbone has {value!r} among its options, which no file can hold; give numbers and texts")


def pool(x: Tensor, how: Pooling) -> Tensor:
    """A map (N, C, h, w) as a vector (N, C): its mean, its maximum or the sum of both; a vector stays as it is.

    >>> pool(torch.tensor([[[[1.0, 3.0]]]]), "mean+max")
    tensor([[5.]])
    """
    if x.ndim == 2:
        return x
    if x.ndim != 4:
        raise ValueError(f"the backbone gives shape {tuple(x.shape)}; a head needs (N, C) or (N, C, h, w)")
    if how == "mean":
        return x.mean((2, 3))
    return x.amax((2, 3)) if how == "max" else x.mean((2, 3)) + x.amax((2, 3))


def _batchnorms(network: nn.Module) -> Iterator[nn.Module]:
    return (module for module in network.modules() if isinstance(module, _BatchNorm))


class Embedder(nn.Module):
    """Pictures to vectors: backbone → pooling (→ LayerNorm) → linear layer → unit length, for each level.

    Called with images (N, 3, H, W) in 0 … 255, uint8 or float, it takes off the mean and divides by the deviation of
    its weights itself. It gives (N, width): the levels' vectors one after another. Where they are normalised, each
    has length 1/√levels, so that the whole has length 1 and its squared distance is the mean of the levels';
    `split` gives the levels back at unit length, for a loss on each.

    >>> from tuplet import models
    >>> embedder = models.create("convnet", dim=2)
    >>> embedder(torch.zeros(5, 3, 28, 28, dtype=torch.uint8)).shape
    torch.Size([5, 2])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__()
        missing = [level for level in config.levels if level not in backbone.channels]
        if missing:
            raise ValueError(
                f"{config.architecture} has no level {missing[0]}; its levels are {''.join(backbone.channels)}"
            )
        self.config = config
        self.backbone = backbone
        widths, kind = {level: backbone.channels[level] for level in config.levels}, type_of(backbone)
        if config.dim is None:
            self.heads = nn.ModuleDict({level: nn.Identity() for level in widths})
            self.widths = list(widths.values())
        else:
            heads = {level: nn.Linear(width, config.dim, dtype=kind) for level, width in widths.items()}
            self.heads = nn.ModuleDict(heads)
            self.widths = [config.dim] * len(widths)
        if config.preprocessing is not None:
            for name in ("mean", "std"):
                self.register_buffer(name, self._stated(name).to(kind), persistent=False)
        self.frozen_batchnorm, self.frozen_stages = False, 0

    def _stated(self, name: str) -> Tensor:
        """The mean or the deviation as the preprocessing states it."""
        return torch.tensor(getattr(self.config.preprocessing, name)).view(1, -1, 1, 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.preprocessing is not None:
            # No file holds them, so what half precision has rounded must not stay so when the network leaves it.
            for name in ("mean", "std"):
                setattr(self, name, self._stated(name).to(getattr(self, name)))
        return self

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How pictures are prepared for these weights; None where the input is no picture."""
        return self.config.preprocessing

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(chain(self.parameters(), self.buffers()), torch.empty(0)).device

    @property
    def width(self) -> int:
        """The length of an embedding: all levels together."""
        return sum(self.widths)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (N, width), float32 or wider."""
        maps = self.backbone(self._prepare(images), self.config.levels)
        vectors = [head(self._pooled(maps[level])) for level, head in self.heads.items()]
        vectors = [v.to(torch.promote_types(v.dtype, torch.float32)) for v in vectors]
        if self._unit():
            vectors = [normalize(v, dim=1) / math.sqrt(len(vectors)) for v in vectors]
        return torch.cat(vectors, 1)

    def _pooled(self, x: Tensor) -> Tensor:
        vectors = pool(x, self.config.pooling)
        return layer_norm(vectors, vectors.shape[1:]) if self.config.layer_norm else vectors

    def split(self, embeddings: Tensor) -> list[Tensor]:
        """The embedding of each level, from low to high, at unit length where the embedder normalises.

        In the mode, training or evaluation, in which `embeddings` were made.
        """
        scale = math.sqrt(len(self.widths)) if self._unit() else 1.0
        return [part * scale for part in embeddings.split(self.widths, dim=1)]

    def select(self, levels: str) -> "Embedder":
        """An embedder of some of the levels, sharing this one's weights; it runs no further than it must."""
        missing = [level for level in levels if level not in self.config.levels]
        if missing:
            raise ValueError(
                f"this embedder has the levels {self.config.levels}, not {missing[0]}; create it with more"
            )
        with torch.random.fork_rng(devices=[]):
            part = Embedder(replace(self.config, levels=levels), self.backbone)
        part.heads = nn.ModuleDict({level: self.heads[level] for level in part.config.levels})
        if self.preprocessing is not None:
            part.mean, part.std = self.mean, self.std
        part.frozen_batchnorm, part.frozen_stages = self.frozen_batchnorm, self.frozen_stages
        part.training = self.training
        return part

    def compiled(self) -> "Embedder":
        """An embedder that shares this one's weights and runs its backbone compiled, anew for each shape of input.

        Another embedder with the same backbone, whatever its head, finds it compiled in the same process.
        """
        fast = self.select(self.config.levels)
        fast.backbone = cast(Backbone, torch.compile(self.backbone, dynamic=False))
        return fast

    def _unit(self) -> bool:
        return self.config.normalize is True or (self.config.normalize == "eval" and not self.training)

    def _prepare(self, images: Tensor) -> Tensor:
        if self.preprocessing is None:
            return images
        channels = self.mean.shape[1]
        if images.ndim != 4 or images.shape[1] not in (3, channels):
            raise ValueError(f"images have shape {tuple(images.shape)}; they must be (N, {channels}, H, W) in 0 … 255")
        x = images.to(torch.promote_types(self.mean.dtype, torch.float32))
        if channels == 1 and images.shape[1] == 3:
            x = 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
        # The buffers follow the network's type, so they say which type it wants.
        return ((x - self.mean) / self.std).to(self.mean.dtype)

    def freeze_to(self, level: str) -> Self:
        """Keep the backbone's layers up to the end of a level as they are, BatchNorm's statistics among them.

        No gradient is formed for them.
        """
        stages = self.backbone.stages()
        levels = [ends for ends, _ in stages]
        if level not in levels:
            raise ValueError(
                f"{self.config.architecture} has no level {level} to freeze its layers up to; leave it out"
            )
        self.frozen_stages = levels.index(level) + 1
        for _, stage in stages[: self.frozen_stages]:
            stage.requires_grad_(False)
        return self.train(self.training)

    def freeze_batchnorm(self, affine: bool = True) -> Self:
        """Keep BatchNorm at its running statistics through any `train()`, and with `affine` its scale and shift too."""
        self.frozen_batchnorm = True
        if affine:
            for module in _batchnorms(self):
                module.requires_grad_(False)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; frozen BatchNorm stays in evaluation."""
        super().train(mode)
        frozen = [self] if self.frozen_batchnorm else [x for _, x in self.backbone.stages()[: self.frozen_stages]]
        for module in chain.from_iterable(map(_batchnorms, frozen)):
            module.eval()
        return self

    def embed(
        self, images: Tensor | Picture | Iterable[Picture], *, batch_size: int | None = None, workers: int | None = None
    ) -> Tensor:
        """Embeddings (n, width) of pictures, float32 on the CPU, made where the embedder is and in evaluation mode.

        `images`: paths, the bytes of files or PIL images, one or many, which are prepared as the weights need; or a
        tensor (n, 3, H, W) in 0 … 255, which is taken as it is, as are the vectors (n, d) of an mlp. Batches are of
        `batch_size`, else of 128, or of 8 on a CPU, where large ones are slower; files are decoded in `workers`
        threads. A corrupt file is a ValueError with its path.

        >>> from tuplet import models
        >>> models.create("mlp", features=3, dim=2).embed(torch.eye(3)).shape
        torch.Size([3, 2])
        """
        if batch_size is None:
            batch_size = 8 if self.device.type == "cpu" else 128
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be positive")
        if isinstance(images, Tensor):
            self._check_range(images)
            parts: Iterator[Tensor] = iter(images.split(batch_size))
        elif self.preprocessing is None:
            raise TypeError(
                f"this embedder has no preprocessing and so takes a tensor, not {type(images).__name__}; give one, "
                "such as torch.as_tensor(vectors, dtype=torch.float32), or for pictures create it with preprocessing="
            )
        elif isinstance(images, np.ndarray) or not isinstance(images, Iterable | os.PathLike | Image.Image):
            what = f"an array of shape {images.shape}" if isinstance(images, np.ndarray) else repr(images)
            raise TypeError(
                f"the images are {what}; give a tensor (n, 3, H, W) in 0 … 255, paths, the bytes of files or PIL images"
            )
        else:
            images = [images] if isinstance(images, str | os.PathLike | bytes | Image.Image) else list(images)
            parts = batches(images, self.preprocessing.image, batch_size, workers)
        result = torch.empty(len(images), self.width)
        device, start = self.device, 0
        with evaluating(self), torch.inference_mode():
            for part in track(parts, "embedding", total=math.ceil(len(images) / batch_size)):
                result[start : start + len(part)] = self(part.to(device))
                start += len(part)
        return result

    def _check_range(self, images: Tensor) -> None:
        if self.preprocessing is None or not images.is_floating_point() or not images.numel():
            return
        low, high = (x.item() for x in images.aminmax())
        if low < 0 or 0 < high <= 1:
            raise ValueError(
                f"the images run from {low:.3g} to {high:.3g}; they must be in 0 … 255, before any scaling or mean"
            )

    def fingerprint(self) -> str:
        """SHA-256 over weights and configuration: two embedders with the same one give the same vectors."""
        return storage.fingerprint(self.config.stored(), self.weights())

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights, preprocessing, dimension, levels and versions as one folder, which `tuplet.load` reads."""
        storage.write(folder, self.config.stored(), self.weights())

    def weights(self) -> State:
        """The tensors as they are saved: under the names that they have where nothing is compiled."""
        return {_uncompiled(name): value for name, value in self.state_dict().items()}

    def restore(self, weights: State, strict: bool = True) -> None:
        """Take over what `weights` gave, whether this embedder or that one is compiled or not."""
        own = {_uncompiled(name): name for name in self.state_dict()}
        self.load_state_dict({own.get(name, name): value for name, value in weights.items()}, strict)


def _uncompiled(name: str) -> str:
    """A tensor's name without the module that `torch.compile` puts around another."""
    return name.replace("._orig_mod.", ".")
