"""Damage files, kill writers, crowd the server, flip bits, compare losses and watch memory; write docs/reliability.md.

The parts share their code with the tests, which run a sample of each. A part saves what it has found after each piece
of its work, so that one that is cut short keeps the counts that it reached. `--only` without a part writes the page
from the saved figures.

    python benchmarks/robustness.py                    # all parts at full counts: about an hour and a half
    python benchmarks/robustness.py --only losses files --scale 0.1
"""

import argparse
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import common

#: What a part has done so far, what it found, and a description of everything that is not as promised.
Figure = tuple[str, str, list[str]]
LOSS_BATCHES = 500
MIB = 1 << 20


def module(name: str) -> Any:
    """Import a module of the tests; the folder of the benchmarks has modules of the same names."""
    sys.path[0] = str(common.ROOT / "tests")
    return importlib.import_module(name)


def files(scale: float, folder: Path) -> Iterator[Figure]:
    """Read damaged and crafted files of every kind."""
    for outcome in module("soak.damaged_files").read_all(folder, max(1, round(8 * scale))):
        kinds = ", ".join(f"{sum(counts.values()):,} {kind}" for kind, counts in outcome.ended.items())
        said = sum(counts["sentence"] for counts in outcome.ended.values())
        yield (
            f"{outcome.files:,} damaged and crafted files: {kinds}",
            f"{said:,} were refused in one sentence, {outcome.files - said - len(outcome.problems):,} gave a result; "
            f"{outcome.slowest:.1f} s and {outcome.peak_mib:,} MiB at most",
            outcome.problems,
        )


def training_kills(scale: float, folder: Path) -> Iterator[Figure]:
    """Kill training at the changes of its folder."""
    program = common.ROOT / "tests" / "training" / "kill_at_each_change.py"
    path = os.pathsep.join([str(common.ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(program), str(folder), str(min(1.0, scale))]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    kills = json.loads(done.stdout)["kills"] if done.returncode == 0 else 0
    yield (
        f"{kills:,} trainings killed with SIGKILL, one before each change of the run's folder",
        "each resumed to the weights of an uninterrupted run, bit for bit; no saved model was lost",
        done.stderr.splitlines()[-1:] if done.returncode else [],
    )


def index_kills(scale: float, folder: Path) -> Iterator[Figure]:
    """Kill writers of an index at random moments."""
    kills = max(1, round(100 * scale))
    for number, batches in enumerate(module("search.test_kills").kill_writers(folder / "i", kills), 1):
        yield (
            f"{number:,} writers of an index killed with SIGKILL at random moments, {batches:,} batches written",
            "every acknowledged change was there, and none half done",
            [],
        )


def flipped_bits(scale: float, folder: Path) -> Iterator[Figure]:
    """Flip bits in the files of an index, one at a time."""
    damage, done, problems = module("search.damage"), 0, []
    for kind in ("hnsw", "ivf_pq"):
        made = damage.make_index(folder / kind, kind)
        for piece in range(max(1, round(10 * scale))):
            try:
                damage.flip_bits(made, 50, seed=piece)
            except AssertionError as error:
                problems.append(f"{kind}: {error}")
            done += 50
            yield (
                f"{done:,} bits flipped, one at a time, in the nine files of an index",
                "`verify` named the damaged file each time; no search gave another answer",
                problems,
            )


def requests(scale: float, folder: Path) -> Iterator[Figure]:
    """Send requests of every kind, right and wrong ones mixed."""
    mixed, total = module("soak.mixed_requests"), max(100, round(20_000 * scale))
    counts: Any = None
    with module("search.server_process").server(mixed.served_index(folder / "i")) as (address, _):
        while counts is None or counts["requests"] < total:
            some = mixed.run(address, min(1000, total))
            counts = some if counts is None else counts + some
            statuses = ", ".join(f"{counts[s]:,} × {s}" for s in sorted(x for x in counts if isinstance(x, int)))
            yield (
                f"{counts['requests']:,} requests from {mixed.CLIENTS} clients: searches, images, pages and wrong ones",
                f"each got the status that it should ({statuses}), and each refusal was one sentence",
                mixed.problems(counts),
            )


def slow_clients(scale: float, folder: Path) -> Iterator[Figure]:
    """Ask for the health of a server while many clients send one byte after another."""
    mixed, clients = module("soak.mixed_requests"), module("search.slow_clients")
    index = mixed.served_index(folder / "i")
    log, seconds = folder / "log", max(5, round(60 * scale))
    with open(log, "w+b") as file, module("search.server_process").server(index, files=1024, log=file) as (address, _):
        answers = clients.latencies_among(address, 1000, seconds)
    slowest, wrong = max(wait for _, wait in answers), [status for status, _ in answers if " 200 " not in status]
    yield (
        f"1,000 clients that send their headers slowly, for {seconds} s",
        f"all {len(answers):,} requests of others were answered, the slowest in {slowest:.2f} s; "
        f"{log.stat().st_size:,} bytes of log",
        wrong,
    )


def states(scale: float, folder: Path) -> Iterator[Figure]:
    """Compare an index with a dictionary over random histories."""
    examples, steps = max(5, round(300 * scale)), 40
    module("search.test_states").check_states(examples, steps)
    yield (
        f"{examples:,} random histories of an index, each of up to {steps} additions, deletions, builds and searches",
        "always the answers of a plain dictionary of vectors",
        [],
    )


def losses(scale: float, folder: Path) -> Iterator[Figure]:
    """Compare every loss in three types with its oracle."""
    batches = module("soak.loss_batches")
    total, pieces = batches.Outcome(), range(max(1, round(scale * 100_000 / LOSS_BATCHES)))
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for outcome in pool.imap_unordered(_loss_piece, pieces):
            total.add(outcome)
            yield (
                f"{total.batches:,} random batches of {len(batches.CASES)} settings of all losses, each in float32, "
                "bfloat16 and float16",
                f"value and gradient finite and equal to the equation in float64, up to rounding, in all "
                f"{sum(total.compared.values()):,} comparisons",
                total.failures,
            )


def _loss_piece(seed: int) -> Any:
    return module("soak.loss_batches").run(LOSS_BATCHES, seed)


def training_memory(scale: float, folder: Path) -> Iterator[Figure]:
    """Watch the memory of training."""
    memory, steps = module("soak.memory"), round(20_000 * scale)
    yield _memory(f"{steps:,} training steps", memory.run(memory.TRAIN, folder / "run", steps))


def embedding_memory(scale: float, folder: Path) -> Iterator[Figure]:
    """Watch the memory of embedding."""
    memory, count = module("soak.memory"), round(50_000 * scale)
    yield _memory(f"{count:,} image files embedded", memory.run(memory.EMBED, folder, count))


def serving_memory(scale: float, folder: Path) -> Iterator[Figure]:
    """Watch the memory of a server under mixed requests."""
    mixed, memory, seconds = module("soak.mixed_requests"), module("soak.memory"), round(600 * scale)
    with module("search.server_process").server(mixed.served_index(folder / "i")) as (address, process):
        pool = multiprocessing.get_context("fork").Pool(1)
        sent = pool.apply_async(mixed.run, (address, 10**9, seconds))
        samples = memory.watch(process.pid, sent.ready)
        counts = sent.get()
        pool.terminate()
    yield _memory(f"{seconds / 60:.0f} minutes of serving, {counts['requests']:,} mixed requests", samples)


def _memory(done: str, samples: list[int]) -> Figure:
    grown = module("soak.memory").growth(samples)
    found = f"{max(samples) // MIB:,} MiB at most; {grown / MIB:+.1f} MiB from the second to the last quarter"
    return done, found, [f"memory grew by {grown / MIB:.1f} MiB"] if grown > 32 * MIB else []


def audit(scale: float, folder: Path) -> Iterator[Figure]:
    """Look for known vulnerabilities of the installed packages."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True)
    packages = json.loads(done.stdout)["dependencies"]
    found = [f"{each['name']} {each['version']}: {flaw['id']}" for each in packages for flaw in each.get("vulns", [])]
    checked = sum("vulns" in each for each in packages)
    if not checked:
        raise SystemExit("pip-audit reaches no database of vulnerabilities from here; run it where it does")
    yield f"`pip-audit` of {checked:,} installed packages", "no known vulnerability", found


PARTS: dict[str, Callable[[float, Path], Iterator[Figure]]] = {
    part.__name__: part
    for part in (
        *(files, training_kills, index_kills, flipped_bits, states, requests, slow_clients, losses),
        *(training_memory, embedding_memory, serving_memory, audit),
    )
}


def report() -> str:
    """Return the table of the saved figures."""
    saved = {name: common.load(f"robustness_{name}") for name in PARTS}
    cells, machines = [], set()
    for figure in filter(None, saved.values()):
        problems, found = len(figure["problems"]), figure["found"]
        found += f", except {problems} of them" if problems else ""
        cells.append([figure["done"], found, str(problems or "none"), f"{figure['seconds'] / 60:,.0f} min"])
        machines.add(f"{figure['machine']}, torch {figure['versions']['torch']}")
    found = common.table(["what was done", "what was found", "not as promised", "time"], cells)
    return f"Machine: {'; '.join(sorted(machines))}, shared with other work.\n\n{found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="the figures of others are kept")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the full counts to run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.only:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            for done, found, problems in PARTS[name](arguments.scale, Path(folder)):
                facts = {"machine": common.machine(), "versions": common.versions()}
                figure = {"done": done, "found": found, "problems": problems[:100], **facts}
                common.save(f"robustness_{name}", {**figure, "seconds": time.monotonic() - begun})
        print(f"{name}: {done}: {found}", *problems, sep="\n  ")
    common.write_between("reliability.md", "figures", report())


if __name__ == "__main__":
    main()
