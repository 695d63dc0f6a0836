"""Read a file that dlib wrote: the layers of a network with their numbers and tensors. No code in it is run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

#: How the file of a network with this loss begins.
START = b"\x01\x01\x01\x0dloss_metric_2"
#: The fields of each layer: `i` an integer, `f` a float, `t` a tensor. Those that a network does not need are skipped:
#: `F` a float, `S` the shape of a part of the tensor.
FIELDS = {
    "input_rgb_image_sized": "fffii",
    "con_4": "tiiiiiiiSSFFFF",
    "affine_": "tSSi",
    "relu_": "",
    "max_pool_2": "iiiiii",
    "avg_pool_2": "iiiiii",
    "add_prev_": "",
    "fc_2": "iitSSiFFFF",
}
#: What precedes a layer: the version of dlib's class for a tag or a skip, for a layer, or for the layer on the input.
TAG, LAYER, FIRST_LAYER = 1, 2, 3


@dataclass(frozen=True)
class Layer:
    """A layer of a file: its kind, the numbers that set it up, and its weights as a vector; None if it has none."""

    kind: str
    numbers: tuple[float, ...]
    weights: Tensor | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({', '.join(f'{number:g}' for number in self.numbers)})"


def read_layers(path: Path) -> list[Layer]:
    """Read the input and the layers of a network with a loss, in the order in which they run.

    Raises:
        ValueError: the file is damaged, is not a network of dlib, or has a layer that is not in `FIELDS`.
    """
    content = path.read_bytes()
    try:
        if not content.startswith(START):
            raise IndexError
        return list(_File(content, len(START)).network())
    except (IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError("it is not a network that dlib saved, or it is not complete") from error


class _File:
    """The bytes of a file, read from front to back."""

    def __init__(self, content: bytes, position: int) -> None:
        self.content, self.position = content, position

    def network(self) -> Iterator[Layer]:
        """Yield the layers. The versions of all of them come first, from the loss down to the input."""
        self.float(), self.float()  # margin and threshold of the loss
        layers = 1
        while (version := self.integer()) != FIRST_LAYER:
            if version not in (TAG, LAYER):
                raise ValueError(f"it has version {version} of a layer; versions 1 to 3 are known")
            layers += version == LAYER
        yield self.layer()
        for i in range(layers):
            yield self.layer()
            self.take(3)  # three flags, then gradients and a stored output
            for _ in range(3):
                self.tensor()
            if i == 0:
                self.integer()  # the number of samples that an image becomes
        if self.position != len(self.content):
            raise ValueError("it continues after its last layer")

    def layer(self) -> Layer:
        kind = self.take(self.integer()).decode("ascii")
        if kind not in FIELDS:
            raise ValueError(f"it has a layer {kind[:40]!r}; {', '.join(FIELDS)} are known")
        numbers: list[float] = []
        weights = None
        for field in FIELDS[kind]:
            if field == "t":
                weights = self.tensor()
            elif field == "S":
                self.shape(version=1)
            else:
                number = self.float() if field in "fF" else self.integer()
                numbers += [number] if field.islower() else []
        return Layer(kind, tuple(numbers), weights)

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.content) - self.position:
            raise IndexError
        self.position += count
        return self.content[self.position - count : self.position]

    def integer(self) -> int:
        """Read a byte with the number of bytes, and the sign as its highest bit; then those bytes, the lowest first."""
        (head,) = self.take(1)
        value = int.from_bytes(self.take(head & 0x0F), "little")
        return -value if head & 0x80 else value

    def float(self) -> float:
        """Read mantissa and exponent."""
        return math.ldexp(self.integer(), self.integer())

    def shape(self, version: int) -> int:
        """Read a version and four sizes, and return their product."""
        if (found := self.integer()) != version:
            raise ValueError(f"it has version {found} of a tensor; version {version} is known")
        return math.prod(self.integer() for _ in range(4))

    def tensor(self) -> Tensor:
        return torch.from_numpy(np.frombuffer(self.take(4 * self.shape(version=2)), "<f4").astype(np.float32))
