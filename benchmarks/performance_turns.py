"""Jobs in processes of their own: all get ready at once, then take turns on a machine that is otherwise quiet.

A loss takes seconds to compile and milliseconds to measure. A job is a generator. Up to its first `yield None` (making
batches, compiling, first calls) it runs beside all others. From there on it goes one step, to its next `yield`, at a
time, while all others wait. A second `yield None` waits until every other job has come as far. Anything else that it
yields is (k, found), and is joined to its k-th row; so a job that fails or takes too long keeps what it has found.

Other processes on a GPU slow a small batch down even while they wait. `one_process` makes one job of several: they take
the same turns in a process that may then be the only one.

In its turn a process is held to some cores, where they are named: see performance_cores.
"""

import gc
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

import performance_cores

#: Imported once for all processes. Not the compiler itself, which starts processes of its own.
PRELOAD = ["torch._dynamo", "tuplet.losses", "tuplet.models", "pytorch_metric_learning.losses"]

Row = dict[str, Any]
Steps = Iterator[tuple[int, Row] | None]


@dataclass(frozen=True)
class Job:
    """A generator function with its arguments, and the rows that it fills."""

    function: Callable[..., Steps]
    arguments: tuple[Any, ...]
    rows: tuple[Row, ...] = ({},)
    turn_s: float = 15.0
    """Seconds that one of its steps may take."""


def one_process(jobs: Sequence[Job]) -> Job:
    """One job that does what all of these do, and pauses where they pause."""
    longest = max(job.turn_s for job in jobs)
    return Job(_one_by_one, (jobs,), tuple(row for job in jobs for row in job.rows), longest)


def _one_by_one(jobs: Sequence[Job]) -> Steps:
    starts = [0, *accumulate(len(job.rows) for job in jobs)]
    going = [(start, job.function(*job.arguments)) for start, job in zip(starts, jobs, strict=False)]
    while going:
        paused = []
        for start, steps in going:
            for said in steps:
                if said is None:
                    paused.append((start, steps))
                    break
                place, found = said
                yield start + place, found
        going = paused
        if going:
            yield None


def in_turn(
    jobs: Sequence[Job],
    ready_s: float,
    until: float = float("inf"),
    cores: Collection[int] = (),
) -> Iterator[Row]:
    """Fill the rows of all jobs, and yield each as it changes.

    "failed" says why one is still empty, "cut_short" why no more was found for it. No step begins after
    `until` (of `time.monotonic`). The caller may fill `cores` on the way.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    workers = [_Worker(context, job) for job in jobs]
    try:
        deadline = time.monotonic() + ready_s
        going = [worker for worker in workers if worker.hear(deadline, f"was not ready after {ready_s:g} s") is None]
        while going:
            paused = []
            while going:
                again = []
                for worker in going:
                    if time.monotonic() > until:
                        worker.end("was not reached: the time for all of them was up")
                        continue
                    performance_cores.hold(worker.process.pid, cores)
                    row = worker.step()
                    if row is None:
                        paused.append(worker)
                    elif not worker.ended:
                        again.append(worker)
                        yield row
                going = again
            going = paused
        for worker in workers:
            yield from worker.missing()
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()


class _Worker:
    def __init__(self, context: Any, job: Job) -> None:
        self.rows, self.reason, self.ended = [dict(row) for row in job.rows], "", False
        self.turn_s = job.turn_s
        self.filled: set[int] = set()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, job.function, job.arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def step(self) -> Row | None:
        """One step, alone: the row it was for, or None where it pauses."""
        self.pipe.send("go")
        return self.hear(time.monotonic() + self.turn_s, f"was stopped after {self.turn_s:g} s")

    def hear(self, deadline: float, late: str) -> Row | None:
        """What it has found, joined to its row; None where it pauses, and an empty row where it has ended."""
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            return self.end(late)
        try:
            said = self.pipe.recv()
        except EOFError:
            self.process.join()
            return self.end(f"its process ended with code {self.process.exitcode}")
        if said is None:
            return None
        if isinstance(said, str):
            return self.end(said)
        place, found = said
        self.filled.add(place)
        self.rows[place].update(found)
        return self.rows[place]

    def end(self, reason: str) -> Row:
        """No more of it."""
        self.process.kill()
        self.reason, self.ended = reason, True
        return {}

    def missing(self) -> Iterator[Row]:
        """The rows that nothing was found for, and those of which more was to come."""
        for place, row in enumerate(self.rows):
            if place not in self.filled:
                row["failed"] = self.reason or "was not measured"
                yield row
            elif self.reason:
                row["cut_short"] = self.reason
                yield row


def _work(pipe: Connection, function: Callable[..., Steps], arguments: tuple[Any, ...]) -> None:
    warnings.simplefilter("ignore")
    gc.freeze()  # jobs look for garbage before they measure memory: the imported modules are none
    steps = function(*arguments)
    try:
        for said in steps:
            if said is None:
                # What was made until now stays: looking through it each time would take longer than many a step.
                gc.collect()
                gc.freeze()
                torch.cuda.empty_cache()
            pipe.send(said)
            pipe.recv()
        torch.cuda.empty_cache()
        pipe.send("")
        # Its end would disturb whoever is measured next: it waits to be ended with all others.
        pipe.recv()
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}")
