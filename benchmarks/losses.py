"""Every loss beside its counterpart in pytorch-metric-learning: time and peak memory, forward and backward.

    python benchmarks/losses.py [--sizes 180,512,1024,16384] [--only triplet,margin]
    python benchmarks/losses.py --device cuda [--phase small] [--sample 8]

Batches of N vectors of 512 dimensions, four of each class (N-pair: two; proxies: one for each of the N/4 classes).

On a CPU each loss is measured in a process of its own at each size, where both libraries take turns, so that whatever
else the machine does meets both. The peer runs where it is estimated to stay under --peer-gib, and is held to that.
Prints the tables; a run over all losses also writes benchmarks/results/losses_cpu.json and docs/losses.md.

On a GPU (see performance.py) the sizes go up to a million, and precision, training steps and first calls are measured
too; small batches and all others in two phases, which may also be run one by one. Writes
benchmarks/results/losses_cuda.json after each figure, then docs/performance.md and its chart.
"""

import argparse
import resource
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import common
import performance
from common import number
from loss_cases import CASES, DIM, peer
from performance_targets import PHASES

#: Runs that are timed: at least so many, more while they take less than SHORT seconds, fewer beyond LONG.
REPEATS, SHORT, LONG = 5, 0.5, 10.0


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


def measure(index: int, n: int, peer_gib: float) -> dict[str, Any]:
    """One loss at one size: the peak memory of a first run, then the median time of runs that take turns."""
    case = CASES[index]
    row: dict[str, Any] = {"loss": case.name, "beside": case.beside(), "size": n}
    has_peer = bool(case.peer(classes=2))
    fits, over = case.peer_bytes(n) <= peer_gib * 2**30, f"over {peer_gib:g} GiB"
    if has_peer and not fits:
        row["left_out"] = over
    made = [("ours", case.our_step), *([("peer", case.peer_step)] if has_peer and fits else [])]
    for _, make in made:
        make(16, "cpu")()
    steps, times = {side: make(n, "cpu") for side, make in made}, {}
    for side, run in list(steps.items()):
        try:
            with held_to(peer_gib if side == "peer" else None):
                first, peak = common.peak_extra(partial(common.seconds, run))
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
            times[side].append(common.seconds(run))
            spent += times[side][-1]
        runs += 1
    for side, taken in times.items():
        # The first run also pays for new pages of memory: it counts only where it is the only one.
        row[side]["ms"] = 1000 * statistics.median(taken[1:] or taken)
    return row


def measure_all(indices: list[int], sizes: list[int], peer_gib: float) -> Iterator[dict[str, Any]]:
    jobs = [(index, n, peer_gib) for n in sizes for index in indices]
    server = get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", "tuplet.losses", "pytorch_metric_learning.losses"])
    with ProcessPoolExecutor(1, mp_context=server, max_tasks_per_child=1) as pool:
        yield from pool.map(measure, *zip(*jobs, strict=True))


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


def report(rows: list[dict[str, Any]], versions: dict[str, str]) -> str:
    peer_version = versions.get("pytorch-metric-learning")
    legend = (
        f"Ours / pytorch-metric-learning {peer_version} = how many times as much the latter takes. "
        "It was not run where it is known to need more than the limit named."
        if peer
        else "Ours alone: pytorch-metric-learning is not installed."
    )
    return f"""### {common.machine()}

torch {versions["torch"]}, float32, d = {DIM}. {legend}

Milliseconds, forward and backward:

{table(rows, "ms")}

Peak extra memory, MiB:

{table(rows, "mib")}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sizes", default="180,512,1024,16384", help="on a CPU")
    parser.add_argument("--only", default="", help="losses with one of these words in their names; nothing is written")
    parser.add_argument("--peer-gib", type=float, default=10.0, help="what the peer may take on a CPU")
    parser.add_argument("--phase", choices=PHASES, help="on a GPU, this one alone; the other's figures are kept")
    parser.add_argument("--sample", type=int, default=1, help="on a GPU, every so-manieth loss; nothing is written")
    parser.add_argument("--seconds", type=float, default=300.0, help="on a GPU, what all of it may take")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        performance.run([arguments.phase] if arguments.phase else PHASES, arguments.sample, arguments.seconds)
        return
    sizes = [int(n) for n in arguments.sizes.split(",")]
    words = arguments.only.lower().split(",")
    indices = [k for k, case in enumerate(CASES) if any(word in case.name.lower() for word in words)]
    if not indices:
        parser.error(f"no loss has a name with {arguments.only!r}; they are {', '.join(case.name for case in CASES)}")
    rows = []
    for row in measure_all(indices, sizes, arguments.peer_gib):
        rows.append(row)
        print(f"{row['loss']}, N = {row['size']:,}: {cell(row, 'ms')} ms; {cell(row, 'mib')} MiB", flush=True)
    versions = common.versions("pytorch-metric-learning")
    print("\n" + (text := report(rows, versions)))
    if not arguments.only:
        common.save("losses_cpu", {"machine": common.machine(), "versions": versions, "rows": rows})
        common.write_between("losses.md", "losses on cpu", text)


if __name__ == "__main__":
    main()
