"""Measure search beside faiss, hnswlib and usearch, and the server under many clients.

    python benchmarks/search.py [--vectors 1000000] [--seconds 60] [--only exact,hnsw,ivf_pq,hnswlib,usearch,server]

Clustered vectors of 128 dimensions, 1,000 queries drawn from the same clusters and not among them, the ten nearest by
Euclidean distance. Each library runs in a process of its own on all cores; approximate indexes run at the least effort,
a power of two, that finds 95 % of the ten. faiss itself searches the same file as our index, alternating with it. A
complete run writes benchmarks/results/search.json and the tables of docs/search.md.
"""

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import common
import server_load

DIM, QUERIES, K, RECALL = 128, 1_000, 10, 0.95
CORES = os.cpu_count() or 1
BATCHES = (64, 1_000)
#: Finds the nearest of some queries, usually as rows of indices.
Search = Callable[[np.ndarray], Any]


def clustered(folder: Path, count: int) -> None:
    """Write vectors and queries around count / 100 centres that are about as far apart as vectors of a cluster."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(max(1, count // 100), DIM)).astype(np.float32)
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, (count, DIM))
    for start in range(0, count, 1 << 16):
        part = vectors[start : start + (1 << 16)]
        part[:] = centres[rng.integers(0, len(centres), len(part))] + 0.7 * rng.normal(size=part.shape)
    queries = centres[rng.integers(0, len(centres), QUERIES)] + 0.7 * rng.normal(size=(QUERIES, DIM))
    np.save(folder / "queries.npy", queries.astype(np.float32))


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return np.load(folder / "vectors.npy", mmap_mode="r"), np.load(folder / "queries.npy")


def timings(sides: dict[str, Search], queries: np.ndarray, singles: int) -> dict[str, dict[str, float]]:
    """Return queries a second in batches and percentiles of single queries; the sides alternate."""
    results: dict[str, dict[str, float]] = {name: {} for name in sides}
    for batch in BATCHES:
        parts = [queries[start : start + batch] for start in range(0, len(queries), batch)]
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(3):
            for name, run in sides.items():
                begin = time.perf_counter()
                for part in parts[: max(1, singles // batch)]:
                    run(part)
                taken[name].append((time.perf_counter() - begin) / sum(map(len, parts[: max(1, singles // batch)])))
        for name, seconds in taken.items():
            results[name][f"qps_{batch}"] = 1 / min(seconds)
    single: dict[str, list[float]] = {name: [] for name in sides}
    for row in range(singles):
        for name, run in sides.items():
            begin = time.perf_counter()
            run(queries[row % len(queries)][None])
            single[name].append(1000 * (time.perf_counter() - begin))
    for name, times in single.items():
        results[name] |= {"p50_ms": float(np.median(times)), "p99_ms": float(np.percentile(times, 99))}
    return results


def recall(found: np.ndarray, folder: Path) -> float:
    truth = np.load(folder / "truth.npy")
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))


def built(make: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return what a function makes, with its time and its peak memory."""
    begin = time.perf_counter()
    result, peak = common.peak_extra(make)
    return result, {"build_seconds": time.perf_counter() - begin, "build_mib": peak / 2**20}


def private_mib() -> float:
    """Return the memory of this process that is not a mapped file."""
    ctypes.CDLL(None).malloc_trim(0)
    return common.process_bytes("RssAnon") / 2**20


def exact(folder: Path) -> list[dict[str, Any]]:
    """Measure our exact search beside faiss's flat index, and write the index that the approximate ones use."""
    import faiss

    from tuplet.search import Index

    vectors, queries = load(folder)
    before = private_mib()

    def fill() -> Index:
        index = Index.create(folder / "things.index", dim=DIM)
        with index.writing():
            for start in range(0, len(vectors), 1 << 16):
                part = vectors[start : start + (1 << 16)]
                index.add(part, range(start, start + len(part)))
        return index

    index, ours = built(fill)
    begin = time.perf_counter()
    index = Index.open(folder / "things.index")
    ours["open_ms"] = 1000 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    index.search(queries[:1])
    ours["first_search_ms"] = 1000 * (time.perf_counter() - begin)
    np.save(folder / "truth.npy", index.search(queries, K).rows)
    ours["mib"] = private_mib() - before
    before = private_mib()
    flat = faiss.IndexFlatL2(DIM)
    _, peer = built(
        lambda: [flat.add(np.ascontiguousarray(vectors[s : s + 65536])) for s in range(0, len(vectors), 65536)]
    )
    peer["mib"] = private_mib() - before
    sides: dict[str, Search] = {"ours": lambda q: index.search(q, K).rows, "faiss": lambda q: flat.search(q, K)[1]}
    measured = timings(sides, queries, singles=100)
    return [
        {"name": "ours, exact", **ours, **measured["ours"], "recall": 1.0},
        {"name": "faiss, flat", **peer, **measured["faiss"], "recall": recall(flat.search(queries, K)[1], folder)},
    ]


def approximate(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Measure our approximate search, and faiss on the same file with the same effort."""
    import faiss

    from tuplet.search import Index
    from tuplet.search.approximate import CANDIDATES

    vectors, queries = load(folder)
    index = Index.open(folder / "things.index")
    about, ours = built(lambda: index.build_approximate(kind, RECALL))
    ours["build_seconds"] = about.seconds
    index = Index.open(folder / "things.index")
    before, begin = private_mib(), time.perf_counter()
    index.search(queries[:1])
    ours |= {"first_search_ms": 1000 * (time.perf_counter() - begin), "stated_recall": about.recall_at_10}
    index.search(queries)
    ours["mib"] = private_mib() - before
    before = private_mib()
    bare: Any = faiss.read_index(str(folder / "things.index" / about.file))
    if kind == "hnsw":
        graph: Any = faiss.downcast_index(bare.index)
        graph.hnsw.efSearch = about.effort
    else:  # faiss orders compressed candidates by the vectors themselves with IndexRefine
        bare.nprobe, flat = about.effort, faiss.IndexFlatL2(DIM)
        for start in range(0, len(vectors), 1 << 16):
            flat.add(np.ascontiguousarray(vectors[start : start + (1 << 16)]))
        bare = faiss.IndexRefine(bare, flat)
        bare.k_factor = CANDIDATES
    bare_mib = private_mib() - before
    sides: dict[str, Search] = {
        "ours": lambda q: index.search(q, K).rows,
        "ours, hits read": lambda q: list(index.search(q, K)),
        "faiss": lambda q: bare.search(q, K)[1],
    }
    measured = timings(sides, queries, singles=1_000)
    name = f"{kind}, effort {about.effort}"
    return [
        {"name": f"ours, {name}", **ours, **measured["ours"], "recall": recall(index.search(queries, K).rows, folder)},
        {"name": f"ours, {name}, ids and metadata read", **measured["ours, hits read"]},
        {
            "name": f"faiss, {name}, the same file",
            **measured["faiss"],
            "mib": bare_mib,
            "recall": recall(bare.search(queries, K)[1], folder),
        },
    ]


def measure_graph(
    folder: Path, name: str, make: Callable[[np.ndarray], Any], at: Callable[[Any, int], Search]
) -> dict[str, Any]:
    """Measure a graph of another library, as wide as ours and built with the same effort; `at` sets its effort."""
    vectors, queries = load(folder)
    before = private_mib()
    index, row = built(lambda: make(vectors))
    row["mib"] = private_mib() - before
    effort, found = 8, 0.0
    while found < RECALL and effort < 1024:
        effort *= 2
        found = recall(at(index, effort)(queries), folder)
    run = at(index, effort)
    return {"name": f"{name}, effort {effort}", **row, **timings({name: run}, queries, 1_000)[name], "recall": found}


def hnswlib_graph(folder: Path) -> list[dict[str, Any]]:
    import hnswlib

    def make(vectors: np.ndarray) -> Any:
        index = hnswlib.Index("l2", DIM)
        index.init_index(len(vectors), M=32, ef_construction=80)
        for start in range(0, len(vectors), 1 << 16):
            index.add_items(vectors[start : start + (1 << 16)], num_threads=CORES)
        return index

    def at(index: Any, effort: int) -> Search:
        index.set_ef(effort)
        return lambda q: index.knn_query(q, K, num_threads=CORES)[0].astype(np.int64)

    return [measure_graph(folder, "hnswlib", make, at)]


def usearch_graph(folder: Path) -> list[dict[str, Any]]:
    from usearch.index import Index

    def make(vectors: np.ndarray) -> Any:
        index = Index(ndim=DIM, metric="l2sq", connectivity=32, expansion_add=80)
        for start in range(0, len(vectors), 1 << 16):
            part = vectors[start : start + (1 << 16)]
            index.add(np.arange(start, start + len(part)), np.ascontiguousarray(part), threads=CORES)
        return index

    def at(index: Any, effort: int) -> Search:
        index.expansion_search = effort
        return lambda q: np.atleast_2d(index.search(q, K, threads=CORES).keys).astype(np.int64)

    return [measure_graph(folder, "usearch", make, at)]


PARTS: dict[str, tuple[Callable[..., list[dict[str, Any]]], tuple[str, ...]]] = {
    "exact": (exact, ()),
    "hnsw": (approximate, ("hnsw",)),
    "ivf_pq": (approximate, ("ivf_pq",)),
    "hnswlib": (hnswlib_graph, ()),
    "usearch": (usearch_graph, ()),
}


def report(rows: list[dict[str, Any]], count: int, versions: dict[str, str]) -> str:
    peers = ", ".join(f"{name} {versions[name]}" for name in ("faiss-cpu", "hnswlib", "usearch") if name in versions)
    lines = [
        f"{count:,} × {DIM}, {common.machine()}; {peers}.",
        "",
        "| | recall@10 | queries/s, batches of 64 | of 1,000 | one query: p50 | p99 | build | private memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    columns = [("recall", "{:.3f}"), ("qps_64", "{:,.0f}"), ("qps_1000", "{:,.0f}"), ("p50_ms", "{:.2f} ms"),
             ("p99_ms", "{:.2f} ms"), ("build_seconds", "{:,.0f} s"), ("mib", "{:,.0f} MiB")]  # fmt: skip
    for row in rows:
        cells = [form.format(row[key]) if key in row else "" for key, form in columns]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    by_name = {row["name"]: row for row in rows}
    first = by_name.get("ours, exact")
    if first:
        lines += ["", f"Opening the index takes {first['open_ms']:.1f} ms; the first exact search, which reads every "
                  f"vector once, {first['first_search_ms']:,.0f} ms."]  # fmt: skip
    for row in rows:
        bare = by_name.get(row["name"].replace("ours", "faiss") + ", the same file")
        if bare and row is not bare:
            share = 100 * (bare["qps_64"] / row["qps_64"] - 1)
            more = row["p50_ms"] - bare["p50_ms"]
            times = f", {row['qps_64'] / first['qps_64']:.0f} × the rate of exact search" if first else ""
            lines += ["", f"{row['name']}, over faiss: {share:+.1f} % in batches of 64, {more:+.2f} ms on one{times}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument(
        "--seconds", type=int, default=60, help="seconds of load on the server for each kind of request"
    )
    parser.add_argument("--only", default=",".join([*PARTS, "server"]), help="nothing is written unless all are run")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if any(part in wanted for part in PARTS):
        wanted = ["exact", *(part for part in wanted if part != "exact")]  # it writes the index and the true neighbours
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temporary:
        folder = Path(temporary)
        clustered(folder, arguments.vectors)
        for part in wanted:
            if part in PARTS:
                run, options = PARTS[part]
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    rows += pool.submit(run, folder, *options).result()
                print(*rows[-3:], sep="\n")
        load_rows = server_load.measure(arguments.clients, arguments.seconds) if "server" in wanted else []
    versions = common.versions("faiss-cpu", "hnswlib", "usearch", "fastapi", "uvicorn")
    vectors_table, server_table = report(rows, arguments.vectors, versions), server_load.report(load_rows)
    print(vectors_table, server_table, sep="\n\n")
    if set(wanted) == {*PARTS, "server"}:
        data = {"machine": common.machine(), "versions": versions, "vectors": arguments.vectors}
        common.save("search", data | {"rows": rows, "server": load_rows})
        common.write_between("search.md", "search", vectors_table)
        common.write_between("search.md", "server", server_table)


if __name__ == "__main__":
    main()
