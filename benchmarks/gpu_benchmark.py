"""Measure the losses on one GPU; run by `losses.py --device cuda`.

There are two phases. Small batches, which are not compiled, come first, in one process that has the GPU to itself:
other processes would slow such short steps down even while they wait. All other batches follow, in about fifty
processes. The most important figures come first in each phase, and all are saved after each figure, so a run that is
cut short keeps them. A run takes a few minutes, most of it compiling.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import common
import performance_page
from gpu_gradient_error import gradient_errors
from gpu_measurements import Setting, first_calls, minimal_steps, one_loss, products, training_step
from gpu_scheduler import Job, one_process, run_in_turns
from gpu_targets import PHASES, targets
from gpu_timing import FULL, HALF, dtype_name
from loss_peers import CASES, MANY_SIZES, METHOD, SAMPLED

INDEX = {case.name: k for k, case in enumerate(CASES)}
SMALL, MEDIUM, BIG, LARGE, MILLION = 180, 4096, 16_384, 65_536, 1 << 20
#: The sizes at which no loss is compiled, and those at which all are.
SMALL_SIZES, LARGE_SIZES = (SMALL, 512), (1024, 2048, MEDIUM, 8192, BIG, 32_768, LARGE, MILLION)
SMOOTH = (METHOD, "binomial deviance", "generalised lifted", "cosine contrastive")
#: How often small batches are measured; other tenants of a machine disturb them most.
ROUNDS = 3
#: Seconds in which all processes must be ready.
READY_SECONDS = 100.0
#: Seconds in which one loss must compile at one size with empty caches.
COMPILING_SECONDS = 60.0


def plan(phase: str, device: str) -> list[Job]:
    """Return the jobs of a phase; each job's first figure is measured first, and the peer's after all of ours."""

    def losses(loss: str, *settings: Setting, rounds: int = 1) -> Job:
        rows = tuple({"loss": loss, "size": size, "dtype": dtype_name(dtype)} for size, dtype, _ in settings)
        return Job(one_loss, (INDEX[loss], settings, device, rounds), rows)

    def errors(*names: str) -> Job:
        rows = tuple({"loss": loss, "size": MEDIUM} for loss in names)
        return Job(gradient_errors, ([INDEX[loss] for loss in names], MEDIUM, device), rows)

    if phase == "small":
        return [
            Job(minimal_steps, (device, ROUNDS)),
            Job(products, ([(SMALL, FULL), *((n, HALF) for n in SMALL_SIZES)], device)),
            *(losses(case.name, (SMALL, FULL, True), rounds=ROUNDS) for case in CASES),
            losses(METHOD, *((n, HALF, True) for n in SMALL_SIZES), rounds=ROUNDS),
        ]
    checked = [*SMOOTH, *(case.name for case in CASES if case.picks)]
    return [
        Job(minimal_steps, (device,)),
        Job(products, ([(MEDIUM, FULL), *((n, HALF) for n in LARGE_SIZES)], device)),
        losses(METHOD, (MILLION, HALF, False)),
        losses(METHOD, (BIG, HALF, True), (8192, HALF, True)),
        losses(METHOD, (32_768, HALF, True), (2048, HALF, True)),
        losses(METHOD, (1024, HALF, True)),
        Job(training_step, ("resnet50", SMALL, 224, device)),
        *(losses(case.name, (MEDIUM, HALF, True), (LARGE, HALF, case.name == METHOD)) for case in CASES),
        *(errors(*checked[k : k + 2]) for k in range(0, len(checked), 2)),
        losses(SAMPLED, (BIG, HALF, True)),
        Job(first_calls, (MANY_SIZES, HALF, device), step_seconds=COMPILING_SECONDS),
    ]


def sample_jobs(jobs: list[Job], every: int) -> list[Job]:
    """Return every n-th job of each kind."""
    kinds = dict.fromkeys(job.function for job in jobs)
    return [job for kind in kinds for job in [job for job in jobs if job.function is kind][::every]]


def run(phases: Sequence[str] = PHASES, sample: int = 1, limit: float = 300.0, device: str = "cuda") -> None:
    """Measure some phases, keep the stored figures of the others, and write the page; or print a sample.

    Args:
        phases: the phases to measure.
        sample: measure every n-th loss only, print the figures beside the stored ones, and write nothing.
        limit: seconds after which no measurement starts.
        device: where to measure.
    """
    start, began = time.monotonic(), now()
    name = f"losses_{device}"
    stored = common.load(name)
    results = stored if sample == 1 else {}
    made = {"machine": common.machine(device), "versions": common.versions("pytorch-metric-learning", "triton")}
    for phase in phases:
        jobs = sample_jobs(plan(phase, device), sample)
        found: dict[int, dict[str, Any]] = {}
        cores: set[int] = set()
        processes = [one_process(jobs)] if phase == "small" else jobs
        for row in run_in_turns(processes, READY_SECONDS, start + limit, cores):
            if fastest := row.get("host", {}).get("quickest"):
                cores.clear()
                cores.update(fastest)
            found[id(row)] = row
            times = {"began": began, "ended": now(), "seconds": time.monotonic() - start}
            results[phase] = made | times | {"rows": list(found.values())}
            if sample == 1:
                common.save(name, results)
            print(f"{times['seconds']:4.0f} s  {performance_page.line(row)}", flush=True)
    print("\n" + targets(results))
    if sample == 1:
        performance_page.write(results)
    else:
        print("\n" + performance_page.beside_stored(results, stored))


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
