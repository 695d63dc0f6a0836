"""Matrices of embeddings: tensors on any device, arrays, or memory-mapped files larger than RAM."""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tuplet.rows.geometry import with_float64

#: Where to compute; None is where the vectors are.
Device: TypeAlias = torch.device | str | None
# Most elements of one block of vectors: 32 MiB in float64. The limits depend on the kind of device alone, because the
# size of a block decides how its products are rounded.
BLOCK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
# The same in a pass over all vectors, where a block should stay in the cache from one operation to the next.
PASS_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 26}


def for_device(limits: dict[str, int], device: torch.device) -> int:
    """Return the limit for a device; every accelerator counts as a GPU.

    >>> for_device({"cpu": 1, "cuda": 2}, torch.device("cpu"))
    1
    """
    return limits.get(device.type, limits["cuda"])


class Vectors:
    """Embeddings prepared for evaluation: the rows of a float matrix, read in blocks.

    Creating one reads all rows once, stores their squared norms and checks that they are finite. Every function that
    takes embeddings also takes `Vectors`; repeated calls then save that pass.

    Args:
        source: (N, d) tensor, array or memory-mapped file. Half precision is computed in float32.
        name: how error messages call it.
        device: where to compute; the source's own device by default, or the CPU if that has no float64.

    Raises:
        TypeError: if the source is not floating point.
        ValueError: if the shape is not (N, d), or if a row is not finite or too long.

    >>> v = Vectors(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> v.count, v.dim, v.squared_norms.tolist()
    (2, 2, [25.0, 1.0])
    """

    def __init__(self, source: Any, name: str = "embeddings", device: Device = None) -> None:
        self.tensor = _as_matrix(source, name)
        self.name = name
        self.count, self.dim = self.tensor.shape
        self.device = with_float64(self.tensor.device) if device is None else _full_name(device)
        self.dtype = torch.float64 if self.tensor.dtype == torch.float64 else torch.float32
        self.squared_norms = self._squares()
        self.max_squared_norm = float(self.squared_norms.max())
        self.max_norm = math.sqrt(self.max_squared_norm)
        # A squared distance is at most (2·|x|)², and its intermediate sums at most twice that.
        if not math.isfinite(8 * self.max_squared_norm):
            self._raise_not_finite()

    def rows(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows of a slice or of an index tensor, on the device, in `dtype`."""
        if isinstance(which, slice):
            return self.tensor[which].to(self.device, dtype)
        # On a CPU `index_select` is several times as fast as indexing.
        return self.tensor.index_select(0, which.to(self.tensor.device)).to(self.device, dtype)

    def unit_rows(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return the same rows scaled to length 1; a zero vector stays zero."""
        return (self.rows(which, torch.float64) / self.norms(which)[:, None]).to(dtype)

    def norms(self, which: slice | Tensor) -> Tensor:
        """Return the lengths of these rows, with 1 in place of 0, so that one can divide by them."""
        norms = self.squared_norms[which].sqrt()
        return torch.where(norms > 0, norms, 1.0)

    @cached_property
    def float32_safe(self) -> bool:
        """True if float32 products of these rows with unit vectors neither overflow nor underflow noticeably.

        A product below the smallest float32 is off by 10⁻³⁸, which is negligible beside a row of length 10⁻¹⁵.
        """
        norms = self.squared_norms[self.squared_norms > 0].sqrt()
        return bool(((norms > 1e-15) & (norms < 1e15)).all())

    @cached_property
    def fingerprints(self) -> Tensor:
        """A 64-bit hash of each row: equal for copies, different otherwise but for a chance of about N²·2⁻⁶⁴.

        Integer sums wrap around and do not depend on their order, so block sizes and devices change nothing.
        """
        generator = torch.Generator().manual_seed(0)
        odd = (torch.randint(2**62, (self.dim,), generator=generator, device="cpu") * 2 + 1).to(self.device)

        def fingerprint(block: Tensor) -> Tensor:
            bits = (block + 0.0).view(torch.int64)  # adding 0 turns −0 into 0
            bits = (bits ^ (bits >> 32)) * -0x61C8864680B583EB
            return ((bits ^ (bits >> 29)) * odd).sum(1)

        return self._map_rows(fingerprint, torch.int64)

    def _squares(self) -> Tensor:
        """Return the squared length of each row; vectors that have them stored override this."""
        return self._map_rows(lambda block: block.square().sum(1), torch.float64)

    def _map_rows(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        """Compute one number per row, block by block, into one tensor: many small ones fragment the memory."""
        numbers = torch.empty(self.count, dtype=dtype, device=self.device)
        start = 0
        for block in self._blocks():
            numbers[start : start + len(block)] = function(block)
            start += len(block)
        return numbers

    def _blocks(self) -> Iterator[Tensor]:
        """Yield all rows in float64, block by block."""
        size = max(1, for_device(PASS_ELEMENTS, self.device) // self.dim)
        for start in range(0, self.count, size):
            yield self.rows(slice(start, start + size), torch.float64)

    def _raise_not_finite(self) -> None:
        row = int((~(8 * self.squared_norms).isfinite()).nonzero()[0])
        values = self.tensor[row]
        bad = values[~values.isfinite()]
        problem = f"holds {float(bad[0])}" if len(bad) else "is too long for distances in float64"
        raise ValueError(
            f"{self.name} must be finite, but row {row} {problem}; possible causes: a diverged model, a zero vector "
            "divided by its length, an overflow in half precision"
        )


def as_vectors(source: Any, name: str = "embeddings", device: Device = None) -> Vectors:
    """Return `source` as `Vectors`; one that is `Vectors` already is returned unchanged."""
    if not isinstance(source, Vectors):
        return Vectors(source, name, device)
    if device is not None and _full_name(device) != source.device:
        raise ValueError(
            f"{name} are Vectors on {source.device}, got device={str(device)!r}; create them on that device"
        )
    return source


def _full_name(device: torch.device | str) -> torch.device:
    """Return the device as tensors name it: "cuda" becomes "cuda:0", or whichever is current."""
    return with_float64(torch.empty(0, device=device).device)


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
            # A file that is mapped read-only is only ever read here.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            tensor = torch.from_numpy(array)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; convert them with .float()")
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(
            f"{name} must have shape (N, d) with N and d above 0, got {tuple(tensor.shape)}; "
            "give one vector for each example"
        )
    return tensor
