"""The losses on one GPU: what is measured, in which order, and where it is written. Run by `losses.py --device cuda`.

The most important figures come first, and everything is saved after each of them, so that a run that is cut short has
them. The whole takes a few minutes, most of it compiling.
"""

import time
from typing import Any

import common
import performance_page
from loss_cases import CASES, MANY_SIZES, METHOD, SAMPLED
from performance_jobs import FULL, HALF, TURN_S, Look, accuracy, first_calls, floor, host, name, one_loss, training_step
from performance_targets import targets
from performance_turns import Job, in_turn

INDEX = {case.name: k for k, case in enumerate(CASES)}
SMALL, MEDIUM, BIG, LARGE, MILLION = 180, 4096, 16_384, 65_536, 1 << 20
SIZES = (SMALL, 512, 1024, 2048, MEDIUM, 8192, BIG, 32_768, LARGE)
SMOOTH = (METHOD, "binomial deviance", "generalised lifted", "cosine contrastive")
#: Seconds in which all processes must be ready.
READY_S = 100.0


def plan(device: str) -> list[Job]:
    """Every job. The first figures of all are taken first, and the peer's after all of ours."""

    def losses(loss: str, *looks: Look) -> Job:
        rows = tuple({"loss": loss, "size": size, "dtype": name(dtype)} for size, dtype, _ in looks)
        return Job(one_loss, (INDEX[loss], looks, device), rows)

    def precise(*names: str) -> Job:
        rows = tuple({"loss": loss, "size": MEDIUM} for loss in names)
        return Job(accuracy, ([INDEX[loss] for loss in names], MEDIUM, device), rows)

    floors = [(SMALL, FULL), (MEDIUM, FULL), *((n, HALF) for n in (*SIZES, MILLION))]
    checked = [*SMOOTH, *(case.name for case in CASES if case.picks)]
    return [
        Job(host, (device,)),
        Job(floor, (floors, device)),
        losses(METHOD, (MILLION, HALF, False)),
        losses(METHOD, (BIG, HALF, True), (8192, HALF, True)),
        losses(METHOD, (32_768, HALF, True), (2048, HALF, True)),
        losses(METHOD, (SMALL, HALF, True), (512, HALF, True), (1024, HALF, True)),
        Job(training_step, ("resnet50", SMALL, 224, device)),
        *(
            losses(case.name, (SMALL, FULL, True), (MEDIUM, HALF, True), (LARGE, HALF, case.name == METHOD))
            for case in CASES
        ),
        *(precise(*checked[k : k + 2]) for k in range(0, len(checked), 2)),
        losses(SAMPLED, (BIG, HALF, True)),
        Job(first_calls, (MANY_SIZES, HALF, device)),
    ]


def sampled(jobs: list[Job], every: int) -> list[Job]:
    """Every so-manieth job of each kind: a look at everything in a minute."""
    kinds = dict.fromkeys(job.function for job in jobs)
    return [job for kind in kinds for job in [job for job in jobs if job.function is kind][::every]]


def run(sample: int = 1, most_s: float = 240.0, device: str = "cuda") -> None:
    """Measure everything and make the page; or a sample, and print it."""
    start = time.monotonic()
    found: dict[int, dict[str, Any]] = {}
    versions = common.versions("pytorch-metric-learning", "triton")
    results: dict[str, Any] = {"machine": common.machine(device), "versions": versions}
    cores: set[int] = set()
    for row in in_turn(sampled(plan(device), sample), READY_S, TURN_S, start + most_s, cores):
        cores.update(row.get("host", {}).get("quickest", ()))
        found[id(row)] = row
        results |= {"seconds": time.monotonic() - start, "rows": list(found.values())}
        if sample == 1:
            common.save(f"losses_{device}", results)
        print(f"{results['seconds']:4.0f} s  {performance_page.line(row)}", flush=True)
    print("\n" + targets(results))
    if sample == 1:
        performance_page.write(results)
