"""The losses on one GPU: what is measured, in which order, and where it is written. Run by `losses.py --device cuda`.

Two phases. What is not compiled comes first, in one process that has the GPU to itself: others would slow such short
steps down even while they wait. Everything else follows, in some fifty processes. The most important figures come first
in each, and everything is saved after each of them, so that a run that is cut short has them. The whole takes a few
minutes, most of it compiling.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import common
import performance_page
from loss_cases import CASES, MANY_SIZES, METHOD, SAMPLED
from performance_accuracy import accuracy
from performance_jobs import FULL, HALF, Look, first_calls, floor, host, name, one_loss, training_step
from performance_targets import PHASES, targets
from performance_turns import Job, in_turn, one_process

INDEX = {case.name: k for k, case in enumerate(CASES)}
SMALL, MEDIUM, BIG, LARGE, MILLION = 180, 4096, 16_384, 65_536, 1 << 20
#: The sizes at which no loss is compiled, and those from which on all are.
SMALL_SIZES, LARGE_SIZES = (SMALL, 512), (1024, 2048, MEDIUM, 8192, BIG, 32_768, LARGE, MILLION)
SMOOTH = (METHOD, "binomial deviance", "generalised lifted", "cosine contrastive")
#: How often small batches are measured, which other tenants of a machine disturb most.
ROUNDS = 3
#: Seconds in which all processes must be ready.
READY_S = 100.0
#: Seconds in which one loss is compiled at one size, for which nobody else has compiled anything.
COMPILING_S = 60.0


def plan(phase: str, device: str) -> list[Job]:
    """Every job of a phase. The first figures of all are taken first, and the peer's after all of ours."""

    def losses(loss: str, *looks: Look, rounds: int = 1) -> Job:
        rows = tuple({"loss": loss, "size": size, "dtype": name(dtype)} for size, dtype, _ in looks)
        return Job(one_loss, (INDEX[loss], looks, device, rounds), rows)

    def precise(*names: str) -> Job:
        rows = tuple({"loss": loss, "size": MEDIUM} for loss in names)
        return Job(accuracy, ([INDEX[loss] for loss in names], MEDIUM, device), rows)

    if phase == "small":
        return [
            Job(host, (device, ROUNDS)),
            Job(floor, ([(SMALL, FULL), *((n, HALF) for n in SMALL_SIZES)], device)),
            *(losses(case.name, (SMALL, FULL, True), rounds=ROUNDS) for case in CASES),
            losses(METHOD, *((n, HALF, True) for n in SMALL_SIZES), rounds=ROUNDS),
        ]
    checked = [*SMOOTH, *(case.name for case in CASES if case.picks)]
    return [
        Job(host, (device,)),
        Job(floor, ([(MEDIUM, FULL), *((n, HALF) for n in LARGE_SIZES)], device)),
        losses(METHOD, (MILLION, HALF, False)),
        losses(METHOD, (BIG, HALF, True), (8192, HALF, True)),
        losses(METHOD, (32_768, HALF, True), (2048, HALF, True)),
        losses(METHOD, (1024, HALF, True)),
        Job(training_step, ("resnet50", SMALL, 224, device)),
        *(losses(case.name, (MEDIUM, HALF, True), (LARGE, HALF, case.name == METHOD)) for case in CASES),
        *(precise(*checked[k : k + 2]) for k in range(0, len(checked), 2)),
        losses(SAMPLED, (BIG, HALF, True)),
        Job(first_calls, (MANY_SIZES, HALF, device), turn_s=COMPILING_S),
    ]


def sampled(jobs: list[Job], every: int) -> list[Job]:
    """Every so-manieth job of each kind: a look at everything in a minute."""
    kinds = dict.fromkeys(job.function for job in jobs)
    return [job for kind in kinds for job in [job for job in jobs if job.function is kind][::every]]


def run(phases: Sequence[str] = PHASES, sample: int = 1, most_s: float = 300.0, device: str = "cuda") -> None:
    """Measure some phases, keep what is known of the others, and make the page; or measure a sample, and print it."""
    start, began = time.monotonic(), now()
    saved = f"losses_{device}"
    results = common.load(saved) if sample == 1 else {}
    made = {"machine": common.machine(device), "versions": common.versions("pytorch-metric-learning", "triton")}
    for phase in phases:
        jobs = sampled(plan(phase, device), sample)
        found: dict[int, dict[str, Any]] = {}
        cores: set[int] = set()
        processes = [one_process(jobs)] if phase == "small" else jobs
        for row in in_turn(processes, READY_S, start + most_s, cores):
            if quickest := row.get("host", {}).get("quickest"):
                cores.clear()
                cores.update(quickest)
            found[id(row)] = row
            times = {"began": began, "ended": now(), "seconds": time.monotonic() - start}
            results[phase] = made | times | {"rows": list(found.values())}
            if sample == 1:
                common.save(saved, results)
            print(f"{times['seconds']:4.0f} s  {performance_page.line(row)}", flush=True)
    print("\n" + targets(results))
    if sample == 1:
        performance_page.write(results)


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
