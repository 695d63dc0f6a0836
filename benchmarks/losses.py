"""Every loss beside its counterpart in pytorch-metric-learning: time and peak memory, forward and backward.

    python benchmarks/losses.py [--device cuda] [--sizes 180,512,1024,16384] [--only triplet,margin]

Batches of N vectors of 512 dimensions, four of each class (N-pair: two; proxies: one for each of the N/4 classes). On a
CPU each loss is measured in a process of its own at each size; both libraries take turns in it, so that whatever else
the machine does meets both. The peer runs where it is estimated to stay under --peer-gib, and is held to that.

Prints the tables. A run over all losses also writes benchmarks/results/losses_DEVICE.json and docs/losses.md.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import torch

import common
from loss_cases import CASES, DIM, peer

#: Runs that are timed: at least so many, more while they take less than SHORT seconds, fewer beyond LONG.
REPEATS, SHORT, LONG = 5, 0.5, 10.0


def seconds(run: Callable[[], None], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


@contextmanager
def held_to(gib: float | None) -> Iterator[None]:
    """Let this process take so much more memory and no more; None: as much as there is."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if gib is not None:
        most = common.process_bytes("VmSize") + int(gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def measure(index: int, n: int, device: str, peer_gib: float) -> dict[str, Any]:
    """One loss at one size: the peak memory of a first run, then the median time of runs that take turns."""
    case = CASES[index]
    row: dict[str, Any] = {"loss": case.name, "beside": case.beside(), "size": n}
    has_peer = bool(case.peer(classes=2))
    fits, over = case.peer_bytes(n) <= peer_gib * 2**30, f"over {peer_gib:g} GiB"
    if has_peer and not fits:
        row["left_out"] = over
    for run in case.steps(16, device, has_peer and fits).values():
        run()
    steps, times = case.steps(n, device, has_peer and fits), {}
    for side, run in list(steps.items()):
        try:
            with held_to(peer_gib if side == "peer" and device == "cpu" else None):
                first, peak = common.peak_extra(lambda run=run: seconds(run, device), device)  # type: ignore[misc]
        except (RuntimeError, MemoryError) as error:
            if side == "ours":
                raise
            row["peer_error"] = str(error).partition("\n")[0]
            row["left_out"] = over if "memory" in str(error) else "fails"
            del steps[side]
            continue
        row[side], times[side] = {"mib": peak / 2**20}, [first]
    spent, runs = 0.0, 0
    while (runs < REPEATS or spent < SHORT) and spent + sum(taken[-1] for taken in times.values()) < LONG:
        for side, run in steps.items():
            times[side].append(seconds(run, device))
            spent += times[side][-1]
        runs += 1
    for side, taken in times.items():
        # The first run also pays for new pages of memory: it counts only where it is the only one.
        row[side]["ms"] = 1000 * statistics.median(taken[1:] or taken)
    return row


def measure_all(indices: list[int], sizes: list[int], device: str, peer_gib: float) -> Iterator[dict[str, Any]]:
    jobs = [(index, n, device, peer_gib) for n in sizes for index in indices]
    if device == "cuda":  # torch knows there what it has allocated, and each new process would take seconds to start
        yield from (measure(*job) for job in jobs)
        return
    server = get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", "tuplet.losses", "pytorch_metric_learning.losses"])
    with ProcessPoolExecutor(1, mp_context=server, max_tasks_per_child=1) as pool:
        yield from pool.map(measure, *zip(*jobs, strict=True))


def number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def cell(row: dict[str, Any], unit: str) -> str:
    """Ours / theirs = how many times as much theirs is."""
    ours = row["ours"][unit]
    if "peer" not in row:
        return " / ".join([number(ours), *([row["left_out"]] if "left_out" in row else [])])
    theirs = row["peer"][unit]
    return f"{number(ours)} / {number(theirs)} = **{theirs / ours:.1f}×**"


def table(rows: list[dict[str, Any]], unit: str) -> str:
    sizes = sorted({row["size"] for row in rows})
    lines = ["| loss | beside | " + " | ".join(f"N = {n:,}" for n in sizes) + " |", "| --- " * (2 + len(sizes)) + "|"]
    for name in dict.fromkeys(row["loss"] for row in rows):
        own = {row["size"]: row for row in rows if row["loss"] == name}
        lines.append(" | ".join([f"| {name}", own[sizes[0]]["beside"], *(cell(own[n], unit) for n in sizes)]) + " |")
    return "\n".join(lines)


def report(rows: list[dict[str, Any]], device: str, versions: dict[str, str]) -> str:
    peer_version = versions.get("pytorch-metric-learning")
    legend = (
        f"Ours / pytorch-metric-learning {peer_version} = how many times as much the latter takes. "
        "It was not run where it is known to need more than the limit named."
        if peer
        else "Ours alone: pytorch-metric-learning is not installed."
    )
    return f"""### {common.machine(device)}

torch {versions["torch"]}, float32, d = {DIM}. {legend}

Milliseconds, forward and backward:

{table(rows, "ms")}

Peak extra memory, MiB:

{table(rows, "mib")}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sizes", default="180,512,1024,16384")
    parser.add_argument("--only", default="", help="losses with one of these words in their names; nothing is written")
    parser.add_argument("--peer-gib", type=float, help="what the peer may take; 10 on a CPU, 100 on a GPU")
    arguments = parser.parse_args()
    device, sizes = arguments.device, [int(n) for n in arguments.sizes.split(",")]
    words = arguments.only.lower().split(",")
    indices = [k for k, case in enumerate(CASES) if any(word in case.name.lower() for word in words)]
    if not indices:
        parser.error(f"no loss has a name with {arguments.only!r}; they are {', '.join(case.name for case in CASES)}")
    peer_gib = arguments.peer_gib or (10.0 if device == "cpu" else 100.0)
    rows = []
    for row in measure_all(indices, sizes, device, peer_gib):
        rows.append(row)
        print(f"{row['loss']}, N = {row['size']:,}: {cell(row, 'ms')} ms; {cell(row, 'mib')} MiB", flush=True)
    versions = common.versions("pytorch-metric-learning")
    print("\n" + (text := report(rows, device, versions)))
    if not arguments.only:
        common.save(f"losses_{device}", {"machine": common.machine(device), "versions": versions, "rows": rows})
        common.write_between("losses.md", f"losses on {device}", text)


if __name__ == "__main__":
    main()
