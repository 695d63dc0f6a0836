"""Run jobs in processes of their own: they prepare at the same time and are measured one at a time.

A loss takes seconds to compile and milliseconds to measure. A job is a generator. Until its first `yield None` it
prepares (makes batches, compiles, makes first calls) beside all other jobs. From then on it runs one step, to its next
`yield`, while all others wait. Another `yield None` waits until every job has come as far. Any other value is
`(k, found)`: the dictionary `found` is merged into the job's row k. A job that fails or takes too long keeps what it
has found.

Other processes on a GPU slow small batches down even while they wait. `one_process` joins several jobs into one, which
can then be the only process. While it is measured, a process can be pinned to a core (cpu_affinity).
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

import cpu_affinity
from tuplet.errors import first_line

#: Imported once for all processes; not the compiler, which starts processes of its own.
PRELOAD = ["torch._dynamo", "tuplet.losses", "tuplet.models", "pytorch_metric_learning.losses"]

Row = dict[str, Any]
Steps = Iterator[tuple[int, Row] | None]


@dataclass(frozen=True)
class Job:
    """A generator function, its arguments and the rows that it fills.

    Attributes:
        step_seconds: the time that one step may take.
    """

    function: Callable[..., Steps]
    arguments: tuple[Any, ...]
    rows: tuple[Row, ...] = ({},)
    step_seconds: float = 15.0


def one_process(jobs: Sequence[Job]) -> Job:
    """Join jobs into one that runs their steps in the same order."""
    longest = max(job.step_seconds for job in jobs)
    return Job(_alternate, (jobs,), tuple(row for job in jobs for row in job.rows), longest)


def _alternate(jobs: Sequence[Job]) -> Steps:
    offsets = [0, *accumulate(len(job.rows) for job in jobs)]
    running = [(offset, job.function(*job.arguments)) for offset, job in zip(offsets, jobs, strict=False)]
    while running:
        paused = []
        for offset, steps in running:
            for message in steps:
                if message is None:
                    paused.append((offset, steps))
                    break
                index, found = message
                yield offset + index, found
        running = paused
        if running:
            yield None


def run_in_turns(
    jobs: Sequence[Job],
    ready_seconds: float,
    until: float = float("inf"),
    cores: Collection[int] = (),
) -> Iterator[Row]:
    """Run all jobs and yield each row when it changes.

    A row gets "failed" if nothing was found for it, and "cut_short" if its job ended early; both hold the reason.

    Args:
        jobs: the jobs.
        ready_seconds: the time until all jobs must have prepared.
        until: the value of `time.monotonic` after which no step starts.
        cores: the cores that a process is pinned to during its steps; the caller may change them while jobs run.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    workers = [_Worker(context, job) for job in jobs]
    try:
        deadline, late = time.monotonic() + ready_seconds, f"was not ready after {ready_seconds:g} s"
        running = [worker for worker in workers if worker.receive(deadline, late) is None]
        while running:
            paused = []
            while running:
                continuing = []
                for worker in running:
                    if time.monotonic() > until:
                        worker.end("was not measured: the time limit was reached")
                        continue
                    cpu_affinity.pin(worker.process.pid, cores)
                    row = worker.step()
                    if row is None:
                        paused.append(worker)
                    elif not worker.ended:
                        continuing.append(worker)
                        yield row
                running = continuing
            running = paused
        for worker in workers:
            yield from worker.incomplete()
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()


class _Worker:
    """A job in a process of its own."""

    def __init__(self, context: Any, job: Job) -> None:
        self.rows, self.reason, self.ended = [dict(row) for row in job.rows], "", False
        self.step_seconds = job.step_seconds
        self.filled: set[int] = set()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, job.function, job.arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def step(self) -> Row | None:
        """Run one step and return the row that it filled, or None if the job pauses."""
        self.pipe.send("go")
        return self.receive(time.monotonic() + self.step_seconds, f"was stopped after {self.step_seconds:g} s")

    def receive(self, deadline: float, late: str) -> Row | None:
        """Merge the next message into its row and return the row; None if the job pauses, {} if it has ended."""
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            return self.end(late)
        try:
            message = self.pipe.recv()
        except EOFError:
            self.process.join()
            return self.end(f"its process ended with code {self.process.exitcode}")
        if message is None:
            return None
        if isinstance(message, str):
            return self.end(message)
        index, found = message
        self.filled.add(index)
        self.rows[index].update(found)
        return self.rows[index]

    def end(self, reason: str) -> Row:
        """Stop the process."""
        self.process.kill()
        self.reason, self.ended = reason, True
        return {}

    def incomplete(self) -> Iterator[Row]:
        """Yield the rows that are empty or were cut short, with the reason."""
        for index, row in enumerate(self.rows):
            if index not in self.filled:
                row["failed"] = self.reason or "was not measured"
                yield row
            elif self.reason:
                row["cut_short"] = self.reason
                yield row


def _work(pipe: Connection, function: Callable[..., Steps], arguments: tuple[Any, ...]) -> None:
    """Run a job in its process: send each message, then wait for permission to go on."""
    warnings.simplefilter("ignore")
    gc.freeze()  # jobs collect garbage before they measure memory; imported modules need not be searched
    steps = function(*arguments)
    try:
        for message in steps:
            if message is None:
                # Everything prepared so far stays; searching it for garbage would take longer than many steps.
                gc.collect()
                gc.freeze()
                torch.cuda.empty_cache()
            pipe.send(message)
            pipe.recv()
        torch.cuda.empty_cache()
        pipe.send("")
        # The end of a process would disturb the next measurement: wait to be killed with all others.
        pipe.recv()
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {first_line(error)[:300]}")
