"""Run a program on a batch: sort it by class, make its passes, form the gradient."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tuplet.rows.fused import kernels
from tuplet.rows.fused.emit import Pass, Program

# The side of a tile of the table, and the number of dimensions that are multiplied at once.
TILE, DEPTH = 128, 64
# How a product is spread over a multiprocessor: four warps leave room for two tiles, one of which is multiplied while
# the other is reduced. The functions of the band are longer, and its tiles few.
FAR, NEAR = {"num_warps": 4, "num_stages": 3}, {"num_warps": 8, "num_stages": 3}
# The side of a panel, the part of the table whose weights lie in memory at once: at most 0.5 GiB in bf16.
SIDE = 16_384
# The rows (a part of a tile) and far tiles whose values are added at once.
ROWS, SLOTS = 64, 32


class Panel(NamedTuple):
    """A part of the table on or above its diagonal: where its rows and its columns begin and end."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def diagonal(self) -> bool:
        """Return whether it lies on the diagonal, and so is symmetric."""
        return self.top == self.left

    @property
    def columns(self) -> int:
        """The number of its columns of tiles."""
        return (self.right - self.left) // TILE

    def programs(self) -> tuple[int]:
        """Return the grid of programs: one for each tile, on the diagonal for half of them. See `kernels.place`."""
        rows = (self.bottom - self.top) // TILE
        return (-(-rows // 2) * (self.columns + 1) if self.diagonal else rows * self.columns,)

    def transposed(self) -> "Panel":
        """Return the panel on the other side of the diagonal."""
        return Panel(self.left, self.right, self.top, self.bottom)


class SortedBatch:
    """A batch, sorted by class and padded to whole tiles, and the values of its rows."""

    def __init__(self, program: Program, x: Tensor, labels: Tensor) -> None:
        self.program, (self.size, self.width) = program, x.shape
        self.rows, wide = _up(self.size, TILE), _up(self.width, DEPTH)
        # Sixteen bits of a label bring a class together, rarely two classes, and are sorted in a few launches.
        self.keys, self.order = labels.to(torch.int16).sort(stable=True)
        self.labels, self.vectors = labels[self.order], x.index_select(0, self.order)
        if not x.is_cuda:
            # The interpreter cannot multiply bf16.
            self.vectors = self.vectors.float()
        if (self.rows, wide) != (self.size, self.width):
            more = self.rows - self.size
            self.vectors = torch.nn.functional.pad(self.vectors, (0, wide - self.width, 0, more))
            self.labels, self.keys = (torch.cat([y, y[-1:].expand(more)]) for y in (self.labels, self.keys))
        first, last = (self.keys[start::TILE].contiguous() for start in (0, TILE - 1))
        self.band = (
            torch.searchsorted(self.keys, first, out_int32=True),
            torch.searchsorted(self.keys, last, right=True, out_int32=True),
        )
        self.reduced = x.new_empty((program.reduced, self.rows), dtype=torch.float32)
        self.computed = x.new_empty((program.computed, self.rows), dtype=torch.float32)
        self.side = _up(self.rows // -(-self.rows // SIDE), TILE)
        self.tiles: dict[str, Any] = {"B": TILE, "DEPTH": DEPTH, "WIDTH": wide}
        self.far: dict[str, Any] = {**self.tiles, **FAR, "RAGGED": self.rows != self.size}

    def panels(self) -> Iterator[Panel]:
        """Yield the panels on and above the diagonal."""
        cuts = [(a, min(a + self.side, self.rows)) for a in range(0, self.rows, self.side)]
        return (Panel(*a, *b) for n, a in enumerate(cuts) for b in cuts[n:])

    def run_pass(self, one: Pass) -> None:
        """Compute the values of one pass."""
        one.band[(self.rows // TILE,)](
            self.vectors, self.labels, self.computed, self.reduced, *self.band, self.size, self.rows,
            **self.tiles, **NEAR,
        )  # fmt: skip
        if one.far is not None:
            # The values of each row from each far tile: those of tiles in its row, and those of transposed tiles.
            given = self.reduced.new_empty((2, one.reduced, self.side // TILE, self.side))
            for panel in self.panels():
                across, down = given[:1].expand_as(given) if panel.diagonal else given
                kernels.far_statistics[panel.programs()](
                    self.vectors, self.keys, self.computed, across, down, self.size, self.rows, across.stride(0),
                    panel.top, panel.left, panel.columns, self.side, FAR=one.far, DIAGONAL=panel.diagonal, **self.far,
                )  # fmt: skip
                self.fold(one, across, panel)
                if not panel.diagonal:
                    self.fold(one, down, panel.transposed())
        if one.rows is not None:
            one.rows[(self.rows // TILE,)](self.reduced, self.computed, self.rows, BLOCK=TILE)

    def fold(self, one: Pass, given: Tensor, panel: Panel) -> None:
        """Add the values of the far tiles of a panel to those of its rows."""
        one.fold[((panel.bottom - panel.top) // ROWS,)](
            given, self.reduced, *self.band, given.stride(0), self.side, panel.columns, self.rows, panel.top,
            panel.left, B=TILE, SLOTS=SLOTS, ROWS=ROWS,
        )  # fmt: skip

    def gradient(self) -> Tensor:
        """Return (W + Wᵀ)·X, computed panel by panel."""
        weights = self.vectors.new_empty((self.side, self.side), dtype=torch.bfloat16)
        parts: dict[int, Tensor] = {}
        for panel in self.panels():
            sizes = self.size, self.rows, panel.top, panel.left
            kernels.far_weights[panel.programs()](
                self.vectors, self.keys, self.computed, weights, *sizes, panel.columns, self.side,
                FAR=self.program.far, DIAGONAL=panel.diagonal, **self.far,
            )  # fmt: skip
            kernels.near_weights[((panel.bottom - panel.top) // TILE,)](
                self.vectors, self.labels, self.computed, weights, *self.band, *sizes, panel.right, self.side,
                NEAR=self.program.near, **self.tiles, **NEAR,
            )  # fmt: skip
            w = weights[: panel.bottom - panel.top, : panel.right - panel.left]
            for rows, other, one in [(panel.top, panel.left, w), (panel.left, panel.top, w.T)][: 2 - panel.diagonal]:
                parts[rows] = _added(parts.get(rows), one, self.vectors[other : other + one.shape[1]])
        gradient = self.vectors.new_empty((self.size, self.width), dtype=torch.float32)
        for start, part in parts.items():
            places = self.order[start : start + part.shape[0]]
            gradient.index_copy_(0, places, part[: len(places), : self.width])
        return gradient


def _up(n: int, step: int) -> int:
    """Round n up to a multiple of `step`."""
    return -(-n // step) * step


def _added(so_far: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Return so_far + a·b, in float32."""
    kind: dict[str, Any] = {"out_dtype": torch.float32}
    if not a.is_cuda:
        a, b, kind = a.float(), b.float(), {}
    return torch.mm(a, b, **kind) if so_far is None else torch.addmm(so_far, a, b, **kind)


def run(program: Program, x: Tensor, labels: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return Σ totals, Σ counts and, where wanted, the gradient by x."""
    with torch.cuda.device_of(x):
        batch = SortedBatch(program, x, labels)
        for one in program.passes:
            batch.run_pass(one)
        total, count = batch.computed[:2, : batch.size].sum(1, dtype=torch.float64)
        return total, count, batch.gradient() if wanted else None
