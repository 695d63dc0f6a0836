"""Measure every loss beside its peer in pytorch-metric-learning: time and peak memory, forward and backward.

    python benchmarks/losses.py [--sizes 180,512,1024,16384] [--only triplet,margin]
    python benchmarks/losses.py --device cuda [--phase small] [--sample 8]

Batches have N vectors of 512 dimensions unless a name says otherwise, four of each class (N-pair: two; proxies: one for
each of the N/4 classes). Losses that hold tables of the whole batch are measured up to N = 1,024.

On a CPU each loss is measured in a process of its own at each size. The two libraries alternate, so that other load on
the machine affects both. The peer may not take more memory than --peer-gib.
The tables are printed; a run over all losses and the default sizes also writes benchmarks/results/losses_cpu.json and
docs/performance_cpu.md.

On a GPU (gpu_benchmark.py) sizes go up to a million, and the precision of gradients, training steps and first calls are
measured too. Small batches and all others are two phases, which can be run one by one. A run writes
benchmarks/results/losses_cuda.json after each figure, then docs/performance.md and its chart.

With --sample n every n-th loss is measured there and printed beside the stored figures, and nothing is written.
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
import gpu_benchmark
from common import number
from gpu_targets import PHASES
from loss_peers import CASES, DIM, SYSTEMS, WARM_UP, peer
from tuplet.errors import first_line

SIZES = "180,512,1024,16384"
MEASURED = [*CASES, *SYSTEMS]
#: Repeats of a step: at least REPEATS, more while they take under SHORT seconds in total, fewer beyond LONG.
REPEATS, SHORT, LONG = 5, 0.5, 10.0


@contextmanager
def memory_limit(gib: float | None) -> Iterator[None]:
    """Limit the memory that this process may allocate in addition; None sets no limit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if gib is not None:
        most = common.process_bytes("VmSize") + int(gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def measure(index: int, n: int, peer_gib: float) -> dict[str, Any]:
    """Measure one loss at one size: the peak memory of a first run, then the median time of alternating runs."""
    case = MEASURED[index]
    row: dict[str, Any] = {"loss": case.name, "beside": case.peer_name(), "size": n}
    made = [("ours", case.our_step), *([("peer", case.peer_step)] if case.peer(classes=2) else [])]
    for _, make in made:
        make(WARM_UP, "cpu")()
    steps, times = {side: make(n, "cpu") for side, make in made}, {}
    for side, run in list(steps.items()):
        try:
            with memory_limit(peer_gib if side == "peer" else None):
                first, peak = common.peak_extra(partial(common.seconds, run))
        except (RuntimeError, MemoryError) as error:
            if side == "ours":
                raise
            row["peer_error"] = first_line(error)
            row["left_out"] = f"over {peer_gib:g} GiB" if "memory" in str(error) else "fails"
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
        # The first run also allocates pages: it counts only if there is no other.
        row[side]["ms"] = 1000 * statistics.median(taken[1:] or taken)
    return row


def measure_all(indices: list[int], sizes: list[int], peer_gib: float) -> Iterator[dict[str, Any]]:
    jobs = [(index, n, peer_gib) for n in sizes for index in indices if n <= (MEASURED[index].largest or n)]
    server = get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", "tuplet.losses", "pytorch_metric_learning.losses"])
    with ProcessPoolExecutor(1, mp_context=server, max_tasks_per_child=1) as pool:
        yield from pool.map(measure, *zip(*jobs, strict=True))


def cell(row: dict[str, Any] | None, unit: str) -> str:
    """Return "ours / theirs = ratio", or a dash for a size that is not measured."""
    if row is None:
        return "–"
    ours = row["ours"][unit]
    if "peer" not in row:
        return " / ".join([number(ours), *([row["left_out"]] if "left_out" in row else [])])
    theirs = row["peer"][unit]
    return f"{number(ours)} / {number(theirs)} = **{theirs / ours:.1f}×**"


def table(rows: list[dict[str, Any]], unit: str) -> str:
    sizes = sorted({row["size"] for row in rows})
    by_loss: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_loss.setdefault((row["loss"], row["beside"]), {})[row["size"]] = row
    lines = [[*names, *(cell(by_size.get(n), unit) for n in sizes)] for names, by_size in by_loss.items()]
    return common.table(["loss", "beside", *(f"N = {n:,}" for n in sizes)], lines)


def report(rows: list[dict[str, Any]], versions: dict[str, str]) -> str:
    peer_version = versions.get("pytorch-metric-learning")
    legend = (
        f"Ours / pytorch-metric-learning {peer_version} = how many times as much the latter takes. "
        "It is left out where it needs more than the limit named."
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
    parser.add_argument("--sizes", default=SIZES, help="on a CPU")
    parser.add_argument("--only", default="", help="on a CPU, losses with one of these words in their names")
    parser.add_argument("--peer-gib", type=float, default=10.0, help="memory that the peer may take on a CPU")
    parser.add_argument("--phase", choices=PHASES, help="on a GPU, one phase; the figures of the other are kept")
    parser.add_argument("--sample", type=int, default=1, help="on a GPU, every n-th loss; nothing is written")
    parser.add_argument("--seconds", type=float, default=300.0, help="on a GPU, the time limit")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        gpu_benchmark.run([arguments.phase] if arguments.phase else PHASES, arguments.sample, arguments.seconds)
        return
    sizes = [int(n) for n in arguments.sizes.split(",")]
    words = arguments.only.lower().split(",")
    indices = [k for k, case in enumerate(MEASURED) if any(word in case.name.lower() for word in words)]
    if not indices:
        parser.error(
            f"no loss has a name with {arguments.only!r}; they are {', '.join(case.name for case in MEASURED)}"
        )
    rows = []
    for row in measure_all(indices, sizes, arguments.peer_gib):
        rows.append(row)
        print(f"{row['loss']}, N = {row['size']:,}: {cell(row, 'ms')} ms; {cell(row, 'mib')} MiB", flush=True)
    versions = common.versions("pytorch-metric-learning")
    print("\n" + (text := report(rows, versions)))
    if len(indices) == len(MEASURED) and arguments.sizes == SIZES:
        common.save("losses_cpu", {"machine": common.machine(), "versions": versions, "rows": rows})
        common.write_between("performance_cpu.md", "losses on cpu", text)


if __name__ == "__main__":
    main()
