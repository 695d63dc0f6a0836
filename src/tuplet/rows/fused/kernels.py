"""Kernels over tiles of the table, around the functions of a pair that `emit` writes.

The rows are sorted by a key of their label, so a tile lies in the band, which holds equal keys, or far from it, where
all pairs are negatives. The table is symmetric, and only the tiles on and above its diagonal are formed: each serves
its rows, and its columns as the rows of the transposed tile.
"""

# Triton infers argument types from the call. `do_not_specialize` keeps it from compiling twice, for sizes that are and
# sizes that are not multiples of 16.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """Return log(1 + x), corrected for the rounding of 1 + x."""
    more = x + 1.0
    rest = tl.where(more < float("inf"), x / (more - 1.0), 1.0)
    return tl.where(more == 1.0, x, tl.log(more) * rest)


@triton.jit
def similarities(X, i, j, B: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr):
    """Return the tile of the table whose rows begin at i and whose columns begin at j."""
    s = tl.zeros((B, B), dtype=tl.float32)
    each, depth = tl.arange(0, B), tl.arange(0, DEPTH)
    rows = X + (i + each).to(tl.int64)[:, None] * WIDTH + depth[None, :]
    columns = X + (j + each).to(tl.int64)[None, :] * WIDTH + depth[:, None]
    for k in range(0, WIDTH, DEPTH):
        s = tl.dot(tl.load(rows + k), tl.load(columns + k), s)
    return s


@triton.jit
def band(begins, ends, i, B: tl.constexpr):
    """Return where the band begins and ends, in whole tiles, for the tile of rows that holds row i."""
    tile = i // B
    return tl.load(begins + tile) // B * B, tl.cdiv(tl.load(ends + tile), B) * B


@triton.jit
def pair_masks(labels, i, j, N):
    """Return the masks of the positives of a tile, of its negatives, and of the pairs that exist."""
    inside = (i < N)[:, None] & (j < N)[None, :]
    same = tl.load(labels + i)[:, None] == tl.load(labels + j)[None, :]
    positive = same & inside & (i[:, None] != j[None, :])
    return positive, (same == 0) & inside, inside


@triton.jit
def place(columns, DIAGONAL: tl.constexpr):
    """Return the tile of this program: of all tiles of a panel, or of those on and above the diagonal."""
    turn = tl.program_id(0)
    if DIAGONAL:
        # Row r of the triangle and row −1 − r fill a line of columns + 1 tiles together.
        r, c = turn // (columns + 1), turn % (columns + 1)
        upper = c < columns - r
        row, column = tl.where(upper, r, columns - 1 - r), tl.where(upper, r + c, c - 1)
    else:
        row, column = turn // columns, turn % columns
    return row, column


@triton.jit(do_not_specialize=["N", "columns"])
def far_statistics(
    X, keys, V, right, down, N, stride, part, top, left, columns, side,
    FAR: tl.constexpr, DIAGONAL: tl.constexpr, RAGGED: tl.constexpr,
    B: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Reduce each far tile of a panel, for its rows and for its columns."""
    row, column = place(columns, DIAGONAL)
    i, j = top + row * B, left + column * B
    if tl.load(keys + i + B - 1) < tl.load(keys + j):
        s = similarities(X, i, j, B, DEPTH, WIDTH)
        each = tl.arange(0, B)
        inside = (j + each < N)[None, :] if RAGGED else None
        FAR(s, inside, V, stride, (i + each)[:, None], right + column * side + row * B + each, part, 1)
        FAR(s, None, V, stride, (j + each)[None, :], down + row * side + column * B + each, part, 0)


@triton.jit(do_not_specialize=["N", "columns"])
def far_weights(
    X, keys, V, W, N, stride, top, left, columns, side,
    FAR: tl.constexpr, DIAGONAL: tl.constexpr, RAGGED: tl.constexpr,
    B: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store w_ij + w_ji for the pairs of each far tile of a panel: the coefficient of x_j in the gradient of x_i."""
    row, column = place(columns, DIAGONAL)
    i, j = top + row * B, left + column * B
    if tl.load(keys + i + B - 1) < tl.load(keys + j):
        s = similarities(X, i, j, B, DEPTH, WIDTH)
        each = tl.arange(0, B)
        w = FAR(s, V, stride, (i + each)[:, None]) + FAR(s, V, stride, (j + each)[None, :])
        if RAGGED:
            w = tl.where((j + each < N)[None, :], w, 0.0)
        w = w.to(W.dtype.element_ty)
        tl.store(W + (row * B + each)[:, None] * side + (column * B + each)[None, :], w)
        if DIAGONAL:
            tl.store(W + (column * B + each)[:, None] * side + (row * B + each)[None, :], w.T)


@triton.jit(do_not_specialize=["N"])
def near_weights(
    X, labels, V, W, begins, ends, N, stride, top, left, end, side,
    NEAR: tl.constexpr, B: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store w_ij + w_ji for the tiles of the band; a program does those of one tile of rows."""
    i, each = top + tl.program_id(0) * B, tl.arange(0, B)
    rows = (i + each)[:, None]
    begin, stop = band(begins, ends, i, B)
    for j in range(tl.maximum(begin, left), tl.minimum(stop, end), B):
        s = similarities(X, i, j, B, DEPTH, WIDTH)
        columns = (j + each)[None, :]
        positive, negative, inside = pair_masks(labels, i + each, j + each, N)
        w = NEAR(s, positive, negative, V, stride, rows) + NEAR(s, positive, negative, V, stride, columns)
        w = tl.where(inside & (rows != columns), w, 0.0)
        tl.store(W + (rows - top) * side + (columns - left), w.to(W.dtype.element_ty))
