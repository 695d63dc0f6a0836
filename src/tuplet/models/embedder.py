"""The embedder: a backbone, a head on each of its levels, and the preprocessing of its weights."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Self, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize
from torch.nn.modules.batchnorm import _BatchNorm

from tuplet.data.batching import chunks
from tuplet.errors import OptionError, opt
from tuplet.images.decode import ImageSource
from tuplet.models import storage
from tuplet.models.backbone import Backbone, State, evaluating, weight_dtype
from tuplet.models.config import Config
from tuplet.models.heads import make_heads, pool
from tuplet.models.lora import merge_lora, merged
from tuplet.models.preprocessing import Preprocessing
from tuplet.progress import track
from tuplet.threads import map_in_threads

#: Pixels that a CPU embeds at once: four images of 224². The maps of more do not fit into its caches.
CPU_PIXELS = 4 * 224**2


def images_at_once(device: torch.device, shape: Sequence[int], most: int) -> int:
    """Return how many images or vectors of a shape a device embeds at once.

    >>> images_at_once(torch.device("cpu"), (3, 224, 224), most=128)
    4
    """
    if device.type != "cpu" or len(shape) < 3:
        return most
    return min(most, max(1, CPU_PIXELS // (shape[-2] * shape[-1])))


def _keep_freed_memory() -> None:
    """Let glibc keep the memory of a layer's output for the next layer; without effect in other C libraries.

    It returns freed memory to the system above a limit: twice the largest block freed so far, of those up to 32 MiB.
    Memory that comes from the system costs page faults, up to a quarter of the time of embedding.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


def _batchnorms(network: nn.Module) -> Iterator[nn.Module]:
    return (module for module in network.modules() if isinstance(module, _BatchNorm))


class Embedder(nn.Module):
    """Turn images into vectors: backbone → pooling (→ LayerNorm) → linear layer → unit length, for each level.

    Make one with `models.create`, `models.pretrained` or `tuplet.load`.

    Its input is a batch of images (N, 3, H, W) from 0 to 255, uint8 or float; it subtracts the mean and divides by the
    standard deviation itself. Its output (N, width) is the vectors of the levels, one after another. If they are
    normalised, each has length 1/√levels. So the output has length 1, and its squared distance is the mean of those of
    the levels. `split` returns the levels at unit length, for a loss on each. The vector of a level may have several
    parts (`heads`, `attention`), which are treated like levels; `part_weights` sets their shares of the length.

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
        if "class" in config.pooling and not backbone.class_token:
            raise OptionError(
                f"{opt('pooling')} is {config.pooling!r} and {config.architecture} has no class token",
                f"use {opt('pooling', 'mean')}",
            )
        _keep_freed_memory()
        self.config = config
        self.backbone = backbone
        pooled = 2 if config.pooling == "class+mean" else 1
        channels = {level: pooled * backbone.channels[level] for level in config.levels}
        dtype = weight_dtype(backbone)
        self.heads = make_heads(channels, config, dtype)
        widths = [config.heads or [config.dim or width] for width in channels.values()]
        self.widths = [width for level in widths for width in level] * backbone.copies
        weights = config.part_weights or [1.0] * len(self.widths)
        self.scales = [weight / math.hypot(*weights) for weight in weights]
        if config.preprocessing is not None:
            for name in ("mean", "std"):
                self.register_buffer(name, self._exact(name).to(dtype), persistent=False)
        self.frozen_batchnorm, self.frozen_layers = False, 0

    def _exact(self, name: str) -> Tensor:
        """Return the mean or the standard deviation of the preprocessing, not rounded."""
        return torch.tensor(getattr(self.config.preprocessing, name)).view(1, -1, 1, 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.preprocessing is not None:
            # They are not saved, so rounding to half precision must not outlive a return to float32.
            for name in ("mean", "std"):
                setattr(self, name, self._exact(name).to(getattr(self, name)))
        return self

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preparation of images for these weights; None if the input is not an image."""
        return self.config.preprocessing

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(chain(self.parameters(), self.buffers()), torch.empty(0)).device

    @property
    def width(self) -> int:
        """The length of an embedding: all levels together."""
        return sum(self.widths)

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings (N, width), float32 or wider."""
        maps = self.backbone(self._prepare(images), self.config.levels)
        vectors = torch.cat([head(self._pooled(maps[level])) for level, head in self.heads.items()], 1)
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        # The copies of one image follow each other.
        vectors = vectors.reshape(-1, self.width)
        if self._unit():
            parts = zip(vectors.split(self.widths, 1), self.scales, strict=True)
            vectors = torch.cat([normalize(part, dim=1) * scale for part, scale in parts], 1)
        return vectors

    def _pooled(self, x: Tensor) -> Tensor:
        vectors = pool(x, self.config.pooling)
        return layer_norm(vectors, vectors.shape[1:]) if self.config.layer_norm else vectors

    def split(self, embeddings: Tensor) -> list[Tensor]:
        """Return the parts, those of each level from low to high, at unit length if the embedder normalises.

        Call it in the mode, training or evaluation, in which `embeddings` were made.
        """
        parts = embeddings.split(self.widths, dim=1)
        if not self._unit():
            return list(parts)
        return [part / scale for part, scale in zip(parts, self.scales, strict=True)]

    def select(self, levels: str) -> "Embedder":
        """Return an embedder of some of the levels that shares the weights and runs no further than needed."""
        missing = [level for level in levels if level not in self.config.levels]
        if missing:
            raise ValueError(
                f"this embedder has the levels {self.config.levels}, not {missing[0]}; create it with that level"
            )
        with torch.random.fork_rng(devices=[]):
            # Weights of parts are those of all levels together.
            weights = self.config.part_weights if set(levels) == set(self.config.levels) else None
            part = Embedder(replace(self.config, levels=levels, part_weights=weights), self.backbone)
        part.heads = nn.ModuleDict({level: self.heads[level] for level in part.config.levels})
        if self.preprocessing is not None:
            part.mean, part.std = self.mean, self.std
        part.frozen_batchnorm, part.frozen_layers = self.frozen_batchnorm, self.frozen_layers
        part.training = self.training
        return part

    def compiled(self) -> "Embedder":
        """Return an embedder that shares the weights and runs its backbone compiled, once for each input shape.

        In one process, embedders with the same backbone share the compiled code.
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
            raise ValueError(
                f"images have shape {tuple(images.shape)}; they must be {'(N, 1, H, W) or ' if channels == 1 else ''}"
                "(N, 3, H, W) in 0 … 255; add a dimension with image[None], or move channels with images.movedim(-1, 1)"
            )
        x = images.to(torch.promote_types(self.mean.dtype, torch.float32))
        if channels == 1 and images.shape[1] == 3:
            x = 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
        # The buffers have the type of the network.
        return ((x - self.mean) / self.std).to(self.mean.dtype)

    def freeze_to(self, end: str | int) -> Self:
        """Freeze the backbone's layers, with their BatchNorm statistics.

        Args:
            end: the level up to whose end layers are frozen; or, for a transformer, the number of its frozen blocks.
        """
        layers, name = self.backbone.layer_groups(), self.config.architecture
        levels = [level for level, _ in layers]
        if isinstance(end, int):
            if not 1 <= end <= self.backbone.depth:
                depth = self.backbone.depth
                has, number = (f"{depth} blocks", f"1 to {depth}, or ") if depth else ("no numbered blocks", "")
                raise OptionError(f"{opt('freeze_to')} is {end} and {name} has {has}", f"give {number}a level: L or M")
            self.frozen_layers = 1 + end
        elif end not in levels:
            raise OptionError(f"{name} has no level {end} to freeze up to", f"leave {opt('freeze_to')} out")
        else:
            self.frozen_layers = levels.index(end) + 1
        for parameter in self._frozen():
            parameter.requires_grad_(False)
        return self.train(self.training)

    def _frozen(self) -> Iterator[nn.Parameter]:
        return chain.from_iterable(parameters for _, parameters in self.backbone.layer_groups()[: self.frozen_layers])

    def freeze_batchnorm(self, affine: bool = True) -> Self:
        """Freeze the running statistics of BatchNorm, and with `affine` its scale and shift too."""
        self.frozen_batchnorm = True
        if affine:
            for module in _batchnorms(self):
                module.requires_grad_(False)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen BatchNorm stays in evaluation mode."""
        super().train(mode)
        frozen = {id(parameter) for parameter in self._frozen()}
        for module in _batchnorms(self):
            if self.frozen_batchnorm or id(module.weight) in frozen:
                module.eval()
        return self

    def embed(
        self,
        images: Tensor | ImageSource | Iterable[ImageSource],
        *,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Tensor:
        """Embed images in evaluation mode, on the device of the embedder.

        Args:
            images: one or many paths, bytes of files or PIL images, which are prepared as `preprocessing` says; or a
                tensor (n, 3, H, W) in 0 … 255, or the vectors (n, d) of an mlp, taken as they are.
            batch_size: 128 by default; on a CPU, where large batches are slower, 4 images of 224 × 224 pixels or as
                many as have their pixels.
            workers: the number of threads that decode; one per core up to eight by default.

        Returns:
            Embeddings (n, width), float32 on the CPU.

        Raises:
            UnreadableImageError: an image cannot be read; the message names it.

        >>> from tuplet import models
        >>> models.create("mlp", features=3, dim=2).embed(torch.eye(3)).shape
        torch.Size([3, 2])
        """
        if batch_size is None:
            size = self.preprocessing.size if self.preprocessing else 1
            shape = images.shape[1:] if isinstance(images, Tensor) else (3, size, size)
            batch_size = images_at_once(self.device, shape, most=128)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be positive")
        count, batches = self._batches(images, batch_size, workers)
        result = torch.empty(count, self.width)
        device, start = self.device, 0
        with evaluating(self), torch.inference_mode():
            for batch in track(batches, "embedding", total=math.ceil(count / batch_size)):
                result[start : start + len(batch)] = self(batch.to(device))
                start += len(batch)
        return result

    def _batches(
        self, images: Tensor | ImageSource | Iterable[ImageSource], batch_size: int, workers: int | None
    ) -> tuple[int, Iterator[Tensor]]:
        """Return the number of images, and their batches; raise TypeError for anything that is not an image."""
        if isinstance(images, Tensor):
            self._check_range(images)
            return len(images), iter(images.split(batch_size))
        if self.preprocessing is None:
            raise TypeError(
                f"this embedder has no preprocessing and so takes a tensor, not {type(images).__name__}; give one, "
                "such as torch.as_tensor(vectors, dtype=torch.float32), or for images create it with preprocessing="
            )
        if isinstance(images, np.ndarray) or not isinstance(images, Iterable | os.PathLike | Image.Image):
            given = f"an array of shape {images.shape}" if isinstance(images, np.ndarray) else repr(images)
            raise TypeError(
                f"images is {given}; give a tensor (n, 3, H, W) in 0 … 255, paths, the bytes of files or PIL images"
            )
        single = isinstance(images, str | os.PathLike | bytes | Image.Image) or hasattr(images, "read")
        sources: list[ImageSource] = [images] if single else list(images)  # type: ignore[list-item,arg-type]  # by `single`
        pixels = map_in_threads(self.preprocessing.image, sources, 2 * batch_size, workers)
        return len(sources), (torch.stack(batch) for batch in chunks(pixels, batch_size))

    def _check_range(self, images: Tensor) -> None:
        if self.preprocessing is None or not images.is_floating_point() or not images.numel():
            return
        low, high = (x.item() for x in images.aminmax())
        if low < 0 or 0 < high <= 1:
            raise ValueError(
                f"the images run from {low:.3g} to {high:.3g}; they must be in 0 … 255, not scaled or normalised"
            )

    def fingerprint(self) -> str:
        """Return a SHA-256 over weights and configuration: equal fingerprints give equal vectors."""
        return storage.fingerprint(self.config.stored(), self.weights())

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights and configuration to a folder, which `tuplet.load` reads."""
        storage.write(folder, self.config.stored(), self.weights())

    def push_to_hub(self, name: str, *, private: bool = False, card: str | os.PathLike[str] | None = None) -> str:
        """Send the embedder to the Hugging Face hub, where `tuplet.load(name)` finds it. Needs 'tuplet[hub]'.

        Log in first, with `hf auth login` or the environment variable HF_TOKEN.

        Args:
            name: "user/model"; created if it does not exist.
            private: make a new one visible to you alone.
            card: a README.md, such as that of a run's folder `best`; written from the embedder where left out.

        Returns:
            The address of the commit.
        """
        from tuplet.models.hub import push_to_hub

        return push_to_hub(self, name, private=private, card=card)

    def weights(self) -> State:
        """Return the tensors by the names that they have without `torch.compile`, with low-rank additions added."""
        return merged({_uncompiled(name): value for name, value in self.state_dict().items()})

    def restore(self, weights: State, strict: bool = True) -> None:
        """Load what `weights` returned, whether either embedder is compiled or not.

        Layers with low-rank additions become plain ones, as they were saved.
        """
        merge_lora(self)
        own = {_uncompiled(name): name for name in self.state_dict()}
        self.load_state_dict({own.get(name, name): value for name, value in weights.items()}, strict)


def _uncompiled(name: str) -> str:
    """Remove the module that `torch.compile` adds from a tensor's name."""
    return name.replace("._orig_mod.", ".")
