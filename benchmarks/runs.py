"""Runs of `tuplet.train` as files: what to run, how long it will take, and what came of it."""

import fcntl
import gc
import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import common
import tuplet
from methods import BENCHES, SOURCES
from tuplet import data
from tuplet.cli.typed import flag, written
from tuplet.data import Dataset

RESULTS = common.ROOT / "benchmarks" / "results"
#: Seconds of a step as long as nothing was measured, of a start, and of compiling a network anew.
_STEP, _START, _COMPILING = 0.035, 2.0, 60.0


class OutOfTimeError(Exception):
    """The next run would not end within the limit."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run: its file's name, what it is of, and the options of `tuplet.train`."""

    name: str
    kind: str
    dataset: str
    method: str
    options: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def network(self) -> str:
        """What must be compiled for it, and is there for the jobs after it."""
        matters = ("levels", "batch_size", "frozen_to", "frozen_batchnorm")
        pixels = self.options.get("augment", {}).get("size", self.options.get("size"))
        return " ".join(str(self.options.get(name)) for name in matters) + f" {pixels}"

    @property
    def command(self) -> str:
        """What a user types to get the same run."""
        said = [f"{flag(name)} {shlex.quote(written(value))}" for name, value in self.options.items()]
        return " ".join(["tuplet train", SOURCES[self.dataset], f"--out runs/{self.name}", *said])


class Runner:
    """Runs jobs on data that are decoded once, and remembers what was measured.

    Several processes may share a folder, and with it the work: each takes a job that no other is at. With `compiled`
    networks are compiled, which pays where there are many runs. It changes nothing but rounding. `turn` is the number
    of this process among them.
    """

    def __init__(
        self,
        out: Path,
        limit: float,
        device: str,
        compiled: bool = False,
        cache: Path | None = None,
        turn: int = 0,
    ) -> None:
        self.out, self.device, self.compile, self.cache, self.turn = out, device, compiled, cache, turn
        self.began, self.limit = time.monotonic(), limit
        self.paces: list[float] = []
        self.compiled: set[str] = set()
        self._held: tuple[str, Dataset] | None = None
        out.mkdir(parents=True, exist_ok=True)

    def measured(self, job: Job) -> dict[str, Any] | None:
        """The result of the job, if it was run with these options before."""
        for folder in (self.out, RESULTS):
            path = folder / f"{job.name}.json"
            if path.is_file():
                result = json.loads(path.read_text())
                if result["options"] == as_json(job.options):
                    return result
        return None

    def measure(self, jobs: Iterable[Job]) -> list[dict[str, Any]]:
        """The results of jobs, from their files or by running them; those that another process is at are waited for."""
        results: dict[Job, dict[str, Any] | None] = dict.fromkeys(jobs)
        while True:
            for job in (job for job, result in results.items() if result is None):
                results[job] = self.attempt(job)
            found = [result for result in results.values() if result is not None]
            if len(found) == len(results):
                return found
            time.sleep(0.5)

    def attempt(self, job: Job) -> dict[str, Any] | None:
        """The result of the job, from its file or by running it; None while another process is at it."""
        known = self.measured(job)
        if known is not None:
            return known
        if self.spent() + self.expected(job) > self.limit:
            raise OutOfTimeError(f"{job.name} needs about {self.expected(job):.0f} s")
        with _alone(self.out / f".{job.name}.lock") as free:
            # It may have been finished in between.
            return self.measured(job) or self._measure(job) if free else None

    def _measure(self, job: Job) -> dict[str, Any]:
        examples, began = self._data(job.dataset), time.monotonic()
        result = self._run(job, examples)
        seconds = time.monotonic() - began
        if "error" not in result and job.network in self.compiled:
            self.paces.append(seconds / job.options["steps"])
        self.compiled.add(job.network)
        result = {**result, "seconds": round(seconds, 2)}
        write(self.out / f"{job.name}.json", result)
        print(f"{self.spent():6.0f} s  {_summary(result)}", flush=True)
        return result

    def reached(self, job: Job) -> bool:
        """Measure the job if there is time and no other process is at it; whether its result is there."""
        try:
            return self.attempt(job) is not None
        except OutOfTimeError:
            return False

    def spent(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self.began

    def expected(self, job: Job) -> float:
        """How long the job will take at most, by what earlier ones took and by what must be compiled."""
        pace = 1.1 * max(self.paces[-3:]) if self.paces else _STEP
        anew = self.compile and job.network not in self.compiled
        return pace * job.options["steps"] + _START + (_COMPILING if anew else 0.0)

    def _run(self, job: Job, examples: Dataset) -> dict[str, Any]:
        result = {
            "kind": job.kind,
            "dataset": job.dataset,
            "method": job.method,
            **job.facts,
            "command": job.command,
            "options": as_json(job.options),
            "device": common.machine(self.device),
            "versions": common.versions(),
        }
        # Checkpoints and embedders are not kept; in memory they cost little.
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            try:
                run = tuplet.train(examples, folder, device=self.device, compile=self.compile, **job.options)
            except FloatingPointError as error:
                return {**result, "error": str(error).split("; the batch")[0]}
            events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
            metrics, nearest = run.metrics, _nearest(load_file(run.folder / "vectors.safetensors"))
            del run
        gc.collect()
        trained = [event for event in events if event["event"] == "train"]
        rates = sorted(event["examples_per_second"] for event in trained)
        return {
            **result,
            "metrics": metrics,
            "training_seconds": round(trained[-1]["seconds"], 2),
            "examples_per_second": round(rates[len(rates) // 2]),
            "curve": [[event["step"], round(event["loss"], 5)] for event in trained],
            "nearest": nearest,
            "evaluations": [[e["step"], e["recall_at_1"]] for e in events if e["event"] == "evaluation"],
        }

    def _data(self, dataset: str) -> Dataset:
        if self._held is None or self._held[0] != dataset:
            self._held = None
            bench = BENCHES[dataset]
            opened = data.open(os.path.expandvars(bench.source))
            self._held = dataset, data.hold(opened, bench.options["stored_size"], self.device, self.cache)
        return self._held[1]


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether this process is the only one here; the lock goes with it, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)


def _nearest(saved: Mapping[str, Tensor], queries: int = 24, count: int = 5) -> list[list[int]]:
    """Some queries, spread over the examples, each followed by its nearest others: places in the dataset."""
    vectors, places = saved["embeddings"], saved["indices"]
    chosen = torch.linspace(0, len(vectors) - 1, min(queries, len(vectors))).long()
    distances = torch.cdist(vectors[chosen], vectors)
    distances[torch.arange(len(chosen)), chosen] = torch.inf
    near = distances.topk(count, largest=False).indices
    return torch.cat([places[chosen][:, None], places[near]], 1).tolist()


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result: a line for each part, whole or not at all."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items())
    aside = path.with_suffix(f".{os.getpid()}.part")
    aside.write_text(f"{{\n{lines}\n}}\n")
    aside.replace(path)


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a file holds them."""
    return json.loads(json.dumps(options))


def _summary(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"{result['method']}: {result['error']}"
    metrics = result["metrics"]
    shown = (
        f"R@1 {100 * metrics['recall_at_1']:.2f} MAP@R {100 * metrics['map_at_r']:.2f} NMI {100 * metrics['nmi']:.1f}"
    )
    return f"{result['kind']} {result['method']} {result.get('about', '')} {shown} {result['examples_per_second']:,}/s"
