"""Approximate search through faiss, with its recall measured against the exact one before it may answer.

faiss proposes candidates. Those of the graph come with scores of the vectors themselves; those of compressed vectors
are scored again by the vectors; all in float32. Rows added after building are searched exactly beside it, and what
was deleted or filtered out is passed over.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from tuplet import extras
from tuplet.durable import first_line, replace_file
from tuplet.progress import track
from tuplet.search import exact
from tuplet.search.results import ordered
from tuplet.search.snapshot import Snapshot

KINDS = ("hnsw", "ivf_pq")
#: Compressed vectors that are looked at for each result wanted: they know the order only roughly.
CANDIDATES = 16
BLOCK = 1 << 16
#: The most nodes or candidates to look at, unless they are fewer than one row in so many: then exact search is quicker.
WIDEST, SCARCE = 1024, 32
#: Rows to measure with, and the most of all rows that they may be: recall is then known to about a hundredth.
SAMPLE, SHARE = 1024, 0.1
#: Ten to find and one to look with; a codebook of compressed vectors has 16 entries, each of which starts as a vector.
FEWEST = {"hnsw": 11, "ivf_pq": 16}


@dataclass(frozen=True)
class Approximate:
    """An approximate index that was built: what it is, and how often it finds what the exact one does."""

    kind: str  # "hnsw": a graph, fast, as large as the vectors again; "ivf_pq": lists of compressed vectors, small
    file: str
    rows: int  # it covers the first so many
    effort: int  # nodes looked at (hnsw) or lists (ivf_pq): the least that reaches the recall asked for
    recall_at_10: float  # on rows that were left out until it was measured
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.kind} over {self.rows:,} vectors: recall@10 {self.recall_at_10:.3f} against exact search "
            f"at effort {self.effort}, built in {self.seconds:.0f} s"
        )


def build(snapshot: Snapshot, kind: str, recall: float) -> Approximate:
    """Build and write one file, with the least effort that reaches `recall` on a sample; refuse one that cannot.

    The sample are rows that stay out until it is measured: new to the index, and like those that are in it. Recall@10
    is the share of the ten found whose score is at least that of the true tenth.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}; choose one of them")
    if snapshot.count < FEWEST[kind]:
        raise ValueError(f"the index holds {snapshot.count} vectors, and {kind} needs {FEWEST[kind]}; search exactly")
    longest = snapshot.gallery().max_norm
    if snapshot.manifest.metric != "cosine" and (2 * longest) ** 2 > float(np.finfo(np.float32).max):
        raise ValueError(
            f"the longest vector has a length of {longest:.3g}, and float32 cannot hold its square; "
            "scale the vectors down, or search exactly"
        )
    faiss = _faiss()
    begun = time.monotonic()
    sample = _sample(snapshot)
    built = _trained(faiss, snapshot, kind)
    others = snapshot.alive.copy()
    others[sample] = False
    rows = np.flatnonzero(others)
    _add(built, snapshot, kind, track(np.split(rows, range(BLOCK, len(rows), BLOCK)), f"building {kind}"))
    seconds = time.monotonic() - begun
    file = f"approximate.{uuid4().hex[:8]}.faiss"
    queries = snapshot.vectors[sample]
    tenth = exact.search(snapshot, queries, 10, others)[0][:, -1:]
    reached, effort = 0.0, 0
    for effort in _efforts(kind, built):
        about = Approximate(kind, file, len(snapshot.rows), effort, 0.0, seconds)
        _, rows = search(snapshot, built, about, queries, 10, others)
        reached = float((exact.scores(snapshot, queries, rows) >= tenth).mean())
        if reached >= recall:
            break
    else:
        raise ValueError(
            f"{kind} reaches a recall@10 of {reached:.3f} at its best effort, {effort}, below the {recall} asked for; "
            f"choose {KINDS[kind == KINDS[0]]!r}, accept it with recall={math.floor(100 * reached) / 100}, "
            "or search exactly"
        )
    _add(built, snapshot, kind, [sample])
    replace_file(snapshot.folder / file, lambda aside: _write(built, aside))
    return Approximate(kind, file, len(snapshot.rows), effort, reached, seconds)


def _write(built: Any, path: Path) -> None:
    try:
        _faiss().write_index(built, str(path))
    except RuntimeError as error:  # faiss says so of a full disk too
        raise OSError(f"faiss: {first_line(error)}") from error


def read(folder: Path, about: Approximate) -> Any:
    """The faiss index of a file, mapped into memory."""
    faiss = _faiss()
    path = folder / about.file
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is gone: it was built again, or another index took its place, since this one was opened; "
            "refresh it or open it again"
        )
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ValueError(f"{path} is damaged ({first_line(error)}); call build_approximate again") from error


def search(
    snapshot: Snapshot, built: Any, about: Approximate, queries: np.ndarray, k: int, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows (n, k) of the nearest candidates; of equals the lower row first.

    Those that are allowed are sought among the nearest of all, as far as it takes where they are spread evenly. A query
    that gets fewer than k, or that is too long for float32, is answered exactly; so are all where it takes too far.
    """
    metric = snapshot.manifest.metric
    covered = built.ntotal if allowed is None else int(allowed[: about.rows].sum())
    effort, width = _reach(built, about, k, built.ntotal / max(1, covered))
    if max(effort, width) > max(WIDEST, built.ntotal // SCARCE):
        return exact.search(snapshot, queries, k, allowed)
    scores, rows = _candidates(built, about, effort, width, _prepared(queries, metric))
    needed = k
    if allowed is not None and covered < built.ntotal:
        rows = np.where(allowed[rows], rows, -1)
        if about.kind == "ivf_pq":  # which knows the order only roughly: half of those looked for must be there
            needed = CANDIDATES * max(k, 10) // 2
    short = (rows >= 0).sum(1) < min(needed, covered)
    if about.kind == "hnsw":
        scores = similarity(scores, metric)
        scores[rows < 0] = -np.inf
    else:
        scores = _scores(queries, rows, snapshot)
    if rows.shape[1] > k:  # many times faster than to put all in order
        best = np.argpartition(-scores, k, 1)[:, :k]
        scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
    if about.rows < len(snapshot.rows) and (allowed is None or allowed[about.rows :].any()):
        later = exact.search(snapshot, queries, k, allowed, about.rows)
        scores, rows = np.concatenate([scores, later[0]], 1), np.concatenate([rows, later[1]], 1)
    scores, rows = ordered(scores, rows, k)
    short |= ~np.isfinite(scores).all(1)
    if short.any():
        found = exact.search(snapshot, queries[short], k, allowed)
        width = found[0].shape[1]
        scores[short, :width], rows[short, :width] = found
    return scores, rows


def similarity(scores: np.ndarray, metric: str) -> np.ndarray:
    """Scores as users read them, in float64, from faiss's, whose distances are squared.

    >>> similarity(np.array([4.0], np.float32), "euclidean")
    array([-2.])
    """
    return -np.sqrt(scores.clip(0).astype(np.float64)) if metric == "euclidean" else scores.astype(np.float64)


def _faiss() -> Any:
    return extras.need("faiss", extra="search", purpose="approximate search")


def _prepared(vectors: np.ndarray, metric: str) -> np.ndarray:
    """Vectors as faiss compares them; for the cosine at unit length, zero ones as they are."""
    if metric == "cosine":
        lengths = _lengths(vectors)[:, None]
        vectors = vectors / np.where(lengths > 0, lengths, 1)
    return np.ascontiguousarray(vectors, np.float32)


def _lengths(vectors: np.ndarray) -> np.ndarray:
    """Lengths in float64: the squares of small numbers would vanish in float32, and those of large ones overflow."""
    return np.linalg.norm(vectors.astype(np.float64), axis=1)


def _trained(faiss: Any, snapshot: Snapshot, kind: str) -> Any:
    """An empty faiss index, of sizes that fit the number of rows, trained where its kind needs it."""
    count, dim, metric = snapshot.count, snapshot.manifest.dim, snapshot.manifest.metric
    measure = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(dim, 32, measure)
        graph.hnsw.efConstruction = 80
        return faiss.IndexIDMap(graph)
    lists = max(1, min(int(4 * count**0.5), count // 39))
    parts = max(part for part in range(1, max(1, dim // 4) + 1) if dim % part == 0)
    built = faiss.index_factory(dim, f"IVF{lists},PQ{parts}x{8 if count >= 10_000 else 4}", measure)
    alive = np.flatnonzero(snapshot.alive)
    rows = np.sort(np.random.default_rng(0).choice(alive, min(count, 40 * max(lists, 256)), replace=False))
    built.train(_prepared(snapshot.vectors[rows], metric))
    return built


def _efforts(kind: str, built: Any) -> list[int]:
    most = WIDEST if kind == "hnsw" else built.nlist
    return [*(2**i for i in range(4 if kind == "hnsw" else 0, 20) if 2**i < most), most]


def _reach(built: Any, about: Approximate, k: int, rarity: float) -> tuple[int, int]:
    """The effort, and how many candidates, for k results where one row in `rarity` may be found.

    It was measured for ten of all. A graph looks at five nodes for four more results, and gives all of them where some
    may not be found: ten more then, so that seldom too few are found by chance. Lists then hold twice the candidates.
    """
    several = max(k, 10)
    if about.kind == "ivf_pq":
        lists, width = about.effort * several / 10 * rarity, CANDIDATES * several * rarity
        if rarity > 1:
            lists = max(lists, 2 * width * built.nlist / built.ntotal)
        return min(math.ceil(lists), built.nlist), math.ceil(width)
    nodes = about.effort + 1.25 * (several - 10)
    if rarity == 1:
        return math.ceil(nodes), k
    return math.ceil((nodes + 10) * rarity), math.ceil((nodes + 10) * rarity)


def _candidates(built: Any, about: Approximate, effort: int, width: int, queries: np.ndarray) -> np.ndarray:
    faiss = _faiss()
    if about.kind == "hnsw":  # the unbounded queue costs less where it is long
        params = faiss.SearchParametersHNSW(efSearch=effort, bounded_queue=False)
    else:
        params = faiss.SearchParametersIVF(nprobe=effort)
    # faiss.contrib.torch_utils, which other libraries import, puts a search without parameters in place of this one.
    find = getattr(built, "search_numpy", built.search)
    return find(queries, min(width, built.ntotal), params=params)


def _sample(snapshot: Snapshot) -> np.ndarray:
    """Rows to measure with, in order."""
    rows = np.flatnonzero(snapshot.alive)
    count = min(SAMPLE, max(1, int(SHARE * len(rows))))
    return np.sort(np.random.default_rng(1).choice(rows, count, replace=False))


def _add(built: Any, snapshot: Snapshot, kind: str, blocks: Iterable[np.ndarray]) -> None:
    """Add blocks of rows.

    By the dot product a graph would link everything to the longest vectors, and many rows to nothing, which no effort
    finds. It links vectors that are shortened, and is then walked by those that are meant.
    """
    metric = snapshot.manifest.metric
    prepare = _shortened if kind == "hnsw" and metric == "dot" else partial(_prepared, metric=metric)
    if prepare is _shortened:
        _hold(built, snapshot, _shortened)
    for rows in blocks:
        built.add_with_ids(prepare(snapshot.vectors[rows]), rows)
    if prepare is _shortened:
        _hold(built, snapshot, np.asarray)


def _shortened(vectors: np.ndarray) -> np.ndarray:
    """Each at the fourth root of its length: near enough to its direction for links, and longer ones still lead.

    >>> _shortened(np.array([[0.0, 16.0], [0.0, 0.0]]))
    array([[0., 2.],
           [0., 0.]], dtype=float32)
    """
    lengths = _lengths(vectors)[:, None]
    return (vectors / np.where(lengths > 0, lengths, 1) ** 0.75).astype(np.float32)


def _hold(built: Any, snapshot: Snapshot, prepare: Callable[[np.ndarray], np.ndarray]) -> None:
    """Let a graph hold its vectors in this form; its links stay."""
    faiss = _faiss()
    rows = faiss.vector_to_array(built.id_map)
    flat = faiss.downcast_index(faiss.downcast_index(built.index).storage)
    held = faiss.rev_swig_ptr(flat.get_xb(), rows.size * built.d).reshape(-1, built.d)
    for start in range(0, len(rows), BLOCK):
        held[start : start + BLOCK] = prepare(snapshot.vectors[rows[start : start + BLOCK]])


def _scores(queries: np.ndarray, rows: np.ndarray, snapshot: Snapshot) -> np.ndarray:
    """The scores of each query's candidate rows (n, c) by the vectors, computed in float32; −∞ where a row is −1.

    By faiss: the threads of another library would fight with its own for the cores.
    """
    faiss, metric = _faiss(), snapshot.manifest.metric
    euclidean = metric == "euclidean"

    def by_rows(function: Any, queries: np.ndarray) -> np.ndarray:
        found = np.empty(rows.shape, np.float32)
        arrays = [faiss.swig_ptr(x) for x in (found, queries, snapshot.vectors, rows)]
        function(*arrays, snapshot.manifest.dim, *rows.shape)
        return found

    queries, rows = _prepared(queries, metric), np.ascontiguousarray(rows)
    scores = by_rows(faiss.fvec_L2sqr_by_idx if euclidean else faiss.fvec_inner_products_by_idx, queries)
    if metric == "cosine":
        squares, there = by_rows(faiss.fvec_L2sqr_by_idx, np.zeros_like(queries)), rows >= 0
        lengths = np.sqrt(squares, dtype=np.float64)
        rough = there & ~((squares > 1e-30) & (squares < np.inf))
        lengths[rough] = _lengths(snapshot.vectors[rows[rough]])
        scores = scores / np.where((lengths > 0) & there, lengths, 1)
    return similarity(scores, metric)


def described(about: Any) -> Approximate | None:
    """What a manifest says of the approximate index, if there is one."""
    return None if about is None else Approximate(**about)


def remove_old(folder: Path, *kept: Approximate | None) -> None:
    """Delete the files of builds before these, and of builds that were killed."""
    names = {about.file for about in kept if about is not None}
    for path in folder.glob("approximate.*.faiss*"):
        if path.name not in names:
            path.unlink()
