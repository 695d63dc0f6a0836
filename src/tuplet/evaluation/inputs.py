"""What goes in: embeddings wherever they lie, labels that stay integers, and one sentence for what does not fit."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet.labels import label_array

# Elements of one block of vectors, at most: 32 MiB in float64. It depends on the kind of device alone, since block
# sizes decide rounding.
BLOCK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
# The same in a pass over all vectors, where a block should stay in the cache from one operation to the next.
PASS_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 26}


def budget(table: dict[str, int], device: torch.device) -> int:
    """The device's entry of a table of budgets; every accelerator counts as a GPU.

    >>> budget({"cpu": 1, "cuda": 2}, torch.device("cpu"))
    1
    """
    return table.get(device.type, table["cuda"])


class Vectors:
    """The rows of a float matrix: a tensor on any device, an array, or a memory-mapped file larger than RAM.

    Rows are read in blocks as float32 (half precision becomes float32) or float64, on the tensor's device or the one
    given. Making one reads all rows once: it keeps their squared norms, and refuses NaN and infinity by naming the
    first such row. Functions that take embeddings take a `Vectors` too, which saves that pass in repeated calls.

    >>> v = Vectors(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> v.count, v.dim, v.squared_norms.tolist()
    (2, 2, [25.0, 1.0])
    """

    def __init__(self, source: Any, name: str = "embeddings", device: torch.device | str | None = None) -> None:
        self.tensor = _as_matrix(source, name)
        self.name = name
        self.count, self.dim = self.tensor.shape
        self.device = self.tensor.device if device is None else _resolved(device)
        self.dtype = torch.float64 if self.tensor.dtype == torch.float64 else torch.float32
        self.squared_norms = self._squares()
        # Distances come to (2·|x|)², and to as much again in sums on the way there.
        usable = (8 * self.squared_norms).isfinite()
        if not usable.all():
            self._refuse(int((~usable).nonzero()[0]))

    def rows(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The rows of a slice or of an index tensor, on the device, in `dtype`."""
        if isinstance(which, slice):
            return self.tensor[which].to(self.device, dtype)
        # Several times as fast as indexing on a CPU.
        return self.tensor.index_select(0, which.to(self.tensor.device)).to(self.device, dtype)

    def unit_rows(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The same rows at length 1; a zero vector stays zero."""
        return (self.rows(which, torch.float64) / self.divisors(which)[:, None]).to(dtype)

    def divisors(self, which: slice | Tensor) -> Tensor:
        """What brings these rows to length 1: their lengths, and 1 for zero vectors."""
        lengths = self.squared_norms[which].sqrt()
        return torch.where(lengths > 0, lengths, 1.0)

    @cached_property
    def longest_square(self) -> float:
        """The largest squared length of a row."""
        return float(self.squared_norms.max())

    @cached_property
    def is_moderate(self) -> bool:
        """Whether a float32 product of these rows with unit ones neither overflows nor loses anything at its small end.

        Products that are too small are off by 10⁻³⁸, which is nothing beside a row's length of 10⁻¹⁵.
        """
        lengths = self.squared_norms[self.squared_norms > 0].sqrt()
        return bool(((lengths > 1e-15) & (lengths < 1e15)).all())

    @property
    def max_norm(self) -> float:
        """The largest Euclidean length of a row."""
        return math.sqrt(self.longest_square)

    @cached_property
    def fingerprints(self) -> Tensor:
        """A 64-bit number per row, the same for copies and, but for a chance of about N²·2⁻⁶⁴, for nothing else.

        Integer sums wrap and do not depend on their order, so block sizes and devices change nothing.
        """
        generator = torch.Generator().manual_seed(0)
        odd = (torch.randint(2**62, (self.dim,), generator=generator, device="cpu") * 2 + 1).to(self.device)

        def fingerprint(block: Tensor) -> Tensor:
            bits = (block + 0.0).view(torch.int64)  # adding 0 makes −0 and 0 the same
            bits = (bits ^ (bits >> 32)) * -0x61C8864680B583EB
            return ((bits ^ (bits >> 29)) * odd).sum(1)

        return self._of_each(fingerprint, torch.int64)

    def multiples_of(self, step: float) -> bool:
        """Whether every element is a whole multiple of `step`, a power of two."""
        scaled = (block / step for block in self._blocks())
        return all(torch.equal(block, block.round()) for block in scaled)

    def _squares(self) -> Tensor:
        """The squared length of each row."""
        return self._of_each(lambda block: block.square().sum(1), torch.float64)

    def _of_each(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        """A number of each row, by a function of blocks. One tensor takes them all: small ones fragment the memory."""
        numbers = torch.empty(self.count, dtype=dtype, device=self.device)
        start = 0
        for block in self._blocks():
            numbers[start : start + len(block)] = function(block)
            start += len(block)
        return numbers

    def _blocks(self) -> Iterator[Tensor]:
        """All rows in float64, block by block."""
        size = max(1, budget(PASS_ELEMENTS, self.device) // self.dim)
        for start in range(0, self.count, size):
            yield self.rows(slice(start, start + size), torch.float64)

    def _refuse(self, row: int) -> None:
        values = self.tensor[row]
        bad = values[~values.isfinite()]
        what = f"holds {float(bad[0])}" if len(bad) else "is too long for distances in float64"
        raise ValueError(
            f"{self.name} must be finite, but row {row} {what}; look for a diverged "
            "model, a zero vector divided by its length, or a half-precision overflow"
        )


def as_vectors(source: Any, name: str = "embeddings", device: torch.device | str | None = None) -> Vectors:
    """`source` as `Vectors`, or as it is where it is one already."""
    if not isinstance(source, Vectors):
        return Vectors(source, name, device)
    if device is not None and _resolved(device) != source.device:
        raise ValueError(
            f"{name} are prepared for {source.device}, got device={str(device)!r}; prepare them for that one"
        )
    return source


def _resolved(device: torch.device | str) -> torch.device:
    """The device as tensors name it: "cuda" is "cuda:0" or whichever is current."""
    return torch.empty(0, device=device).device


def _as_matrix(source: Any, name: str) -> Tensor:
    if isinstance(source, Tensor):
        tensor = source.detach()
    else:
        array = np.asarray(source)
        if array.dtype.kind != "f":
            raise TypeError(f"{name} must be floating point, got {array.dtype}; convert them with .astype('float32')")
        if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        with warnings.catch_warnings():
            # A file mapped read-only is only ever read here.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            tensor = torch.from_numpy(array)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; convert them with .float()")
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(
            f"{name} must have shape (N, d), neither of them 0, got {tuple(tensor.shape)}; give one row each"
        )
    return tensor


def as_labels(labels: Any, count: int, name: str = "labels") -> Tensor:
    """One int64 for each of `count` rows, on the CPU, from a list, an array or a tensor of integers.

    >>> as_labels([2**53, 2**53 + 1], 2)
    tensor([9007199254740992, 9007199254740993])
    """
    array = label_array(labels, name)
    if array.shape != (count,):
        raise ValueError(
            f"{name} must have shape ({count},), one for each row, got {array.shape}; give one integer each"
        )
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit into int64, got {array.max()}; subtract a constant from all of them")
    return torch.from_numpy(array.astype(np.int64))


def as_members(
    gallery: Any, gallery_labels: Any, query_labels: Tensor, device: torch.device | str | None
) -> tuple[Vectors | None, Tensor]:
    """A gallery with the labels of its members; None and those of the queries where these are their own gallery."""
    if (gallery is None) != (gallery_labels is None):
        given, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise ValueError(f"{given} comes with {missing}, which is missing; give both or neither")
    if gallery is None:
        return None, query_labels
    members = as_vectors(gallery, "gallery", device)
    return members, as_labels(gallery_labels, members.count, "gallery_labels")


def one_of(value: str, choices: tuple[str, ...], name: str) -> str:
    """`value`, if it is one of the choices.

    >>> one_of("dot", ("dot", "cosine"), "metric")
    'dot'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}; choose one of them")
    return value


def positive_integer(value: int, name: str) -> int:
    """`value`, if it is an integer above 0."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}; give 1 or more")
    return int(value)


def as_seed(value: int, name: str = "seed") -> int:
    """`value`, if it is an integer that random numbers can be drawn from."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be an integer that fits into int64, got {value!r}; give 0, 1 or another one")
    return int(value)


def several(values: Any, name: str) -> list[Any]:
    """`values` as a list, if there are several of them, or may be."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be several numbers, got {values!r}; give ({values!r},)")
    return list(values)
