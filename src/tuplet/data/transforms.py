"""Transforms of the user's own in place of `Augment`: of each image, or of a whole batch."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tuplet.errors import OptionError, opt
from tuplet.images.crop import ResizeMode, resized_size, to_tensor
from tuplet.rng import uniform


@dataclass(frozen=True)
class OnBatch:
    """Mark a transform of a batch of stored squares, uint8 (N, 3, S, S), for `transform=OnBatch(function)`."""

    function: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Transform:
    """Apply a callable to each image, or with `OnBatch` to each batch, and return floats as `Augment` does.

    A callable of images gets a PIL image in its true proportions, resized by `resize` and `resize_mode`. Transforms of
    torchvision take that; those of albumentations are called with `image=`. It returns a PIL image, or an
    array or tensor with the channels first or last: uint8, or floats from 0 to 1, and size × size in the end.

    The random numbers of `random`, numpy and torch, and those of albumentations, are seeded before each call by the
    seed, the step and the number of the sample, and restored afterwards. A batch is seeded by the seed and the step.

    Args:
        function: the callable.
        size: the side of what it returns.
        resize: the side that images are resized to before.
        resize_mode: which side `resize` means, as in `tuplet.data.CentreCrop`.
        seed: the seed of all random numbers.

    >>> def lighter(image): return image.resize((8, 8)).point(lambda value: value + random.randint(0, 9))
    >>> transform, images = Transform(lighter, size=8, resize=10), torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    >>> one, other = (transform(images, torch.tensor([4, 7]), step=0) for _ in range(2))
    >>> one.shape, torch.equal(one, other)
    (torch.Size([2, 3, 8, 8]), True)
    """

    function: Callable[..., Any]
    size: int = 224
    resize: int = 256
    resize_mode: ResizeMode = "shorter"
    seed: int = 0

    def __call__(self, images: Tensor, index: Tensor, step: int, aspects: Tensor | None = None) -> Tensor:
        """Transform images (N, 3, H, W), uint8: floats (N, 3, size, size) from 0 to 255. Arguments as for `Augment`."""
        if isinstance(self.function, OnBatch):
            with _seeded(images.device) as seed:
                seed(_seeds(self.seed, step, torch.zeros(1, dtype=torch.int64))[0])
                out = self._checked(self.function.function(images))
        else:
            shapes = torch.ones(len(images)) if aspects is None else aspects
            numbers = _seeds(self.seed, step, index.cpu())
            with _seeded(torch.device("cpu")) as seed:
                parts = []
                for pixels, aspect, number in zip(images.cpu(), shapes.tolist(), numbers, strict=True):
                    seed(number)
                    parts.append(self._checked(self._one(pixels, aspect, number)[None]))
            out = torch.cat(parts).to(images.device)
        if out.shape != (len(images), 3, self.size, self.size):
            raise OptionError(
                f"{opt('transform')} gives images of shape {tuple(out.shape[1:])}, and the network takes "
                f"(3, {self.size}, {self.size})",
                f"end it with a crop or a resize to {self.size} × {self.size}",
            )
        return out

    def _one(self, pixels: Tensor, aspect: float, seed: int) -> Tensor:
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        image = image.resize(resized_size(aspect, self.resize, self.resize_mode), Image.Resampling.BICUBIC)
        if type(self.function).__module__.startswith("albumentations"):
            self.function.set_random_seed(seed)  # type: ignore[attr-defined]
            result = self.function(image=np.array(image))["image"]
        else:
            result = self.function(image)
        if isinstance(result, Image.Image):
            return to_tensor(result.convert("RGB"))
        found = result if isinstance(result, Tensor) else torch.from_numpy(np.array(result))
        return found.permute(2, 0, 1) if found.ndim == 3 and found.shape[0] != 3 and found.shape[2] == 3 else found

    def _checked(self, images: Tensor) -> Tensor:
        """Return images as floats from 0 to 255; floats are from 0 to 1, as torchvision has them."""
        if images.dtype == torch.uint8:
            return images.float()
        if not images.is_floating_point() or float(images.min()) < -1e-3 or float(images.max()) > 1.001:
            low, high = float(images.min()), float(images.max())
            raise OptionError(
                f"{opt('transform')} gives {images.dtype} from {low:g} to {high:g}, and images are uint8, or floats "
                "from 0 to 1",
                "leave out what subtracts a mean: the embedder does that",
            )
        return images.float() * 255


def named_transform(name: str) -> Callable[..., Any]:
    """Import a transform by the name `module:function`.

    >>> named_transform("PIL.ImageOps:mirror").__name__
    'mirror'
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{opt('transform')} is {name!r}, which cannot be imported ({error}); write module:function, and put the "
            "module's folder on PYTHONPATH"
        ) from error
    if not callable(found):
        raise OptionError(f"{opt('transform')} is {name!r}, a {type(found).__name__}; name something to call")
    return found


def _seeds(seed: int, step: int, index: Tensor) -> list[int]:
    """Return a seed below 2³² for each sample; a sample that a batch repeats gets another each time."""
    earlier = (index[:, None] == index).tril(-1).sum(1)
    high, low = (uniform(seed, step, index, 2 * earlier + half).double() for half in (0, 1))
    return ((high * 2**16).long() * 2**16 + (low * 2**16).long()).tolist()


@contextmanager
def _seeded(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Give a function that seeds all global random numbers, and restore these at the end."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - callables use the global numbers

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        torch.default_generator.manual_seed(number)
        if device.type == "cuda":
            torch.cuda.manual_seed(number)

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield seed
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
