"""Run `tuplet.train` for the tables of results: one JSON file a run, one row of trials.csv a trial."""

import gc
import hashlib
import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import common
import trials
import tuplet
from methods import DATASETS, MAPPED, NEAREST, RECIPE_ROWS, SOURCES
from tuplet import data
from tuplet.atomic import lock, write_atomic
from tuplet.cli.flags import flag, format_value
from tuplet.data import Dataset
from tuplet.evaluation import reranked_metrics

RESULTS = common.ROOT / "benchmarks" / "results"


class OutOfTimeError(Exception):
    """The time limit is over: no run starts any more."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run of `tuplet.train`.

    Attributes:
        name: the stem of its result file; a trial gets a number behind it when it is stored.
        kind: "trial", "row", "ablation", or the name of a recipe (`methods.RECIPE_ROWS`).
        options: the keywords of `tuplet.train`.
        facts: further entries of its result.
    """

    name: str
    kind: str
    dataset: str
    method: str
    options: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def command(self, name: str | None = None) -> str:
        """Return the command that repeats the run; `name` replaces the job's own as the name of its folder."""
        flags = [f"{flag(name)} {shlex.quote(format_value(value))}" for name, value in self.options.items()]
        return " ".join(["tuplet train", SOURCES[self.dataset], f"--out runs/{name or self.name}", *flags])

    @property
    def lock_name(self) -> str:
        """A file name that differs for every job."""
        return f"{self.name}_{hashlib.sha256(json.dumps(self.options, sort_keys=True).encode()).hexdigest()[:8]}"


class Runner:
    """Run jobs and store their results; a job that was measured before is not repeated.

    Several processes may share a folder: each takes a job that no other process is running.

    Args:
        out: the folder of the results.
        limit: seconds after which no job starts.
        device: where to train.
        compiled: compile networks. It pays for many runs and changes nothing but rounding.
        cache: a folder that keeps the decoded images.
        worker: the number of this process among those that share the folder.
        known: folders with results that need not be measured again, besides `out`.
    """

    def __init__(
        self,
        out: Path,
        limit: float,
        device: str,
        compiled: bool = False,
        cache: Path | None = None,
        worker: int = 0,
        known: tuple[Path, ...] = (RESULTS,),
    ) -> None:
        self.out, self.device, self.compile, self.cache, self.worker = out, device, compiled, cache, worker
        self.known = known
        self.started, self.limit = time.monotonic(), limit
        self._loaded: tuple[tuple[str, data.CentreCrop], Dataset] | None = None
        out.mkdir(parents=True, exist_ok=True)

    def measured(self, job: Job) -> Mapping[str, Any] | None:
        """Return the result of the job if it was run with these options before, else None."""
        folders, options = (self.out, *self.known), as_json(job.options)
        if job.kind == "trial":
            return trials.find(folders, job.dataset, job.method, options)
        for path in (folder / f"{job.name}.json" for folder in folders):
            if path.is_file():
                result = json.loads(path.read_text())
                if result["options"] == options:
                    return result
        return None

    def measure(self, jobs: Iterable[Job]) -> list[Mapping[str, Any]]:
        """Return the results of all jobs; wait for those that another process is running."""
        results: dict[Job, Mapping[str, Any] | None] = dict.fromkeys(jobs)
        while True:
            for job in (job for job, result in results.items() if result is None):
                results[job] = self.attempt(job)
            found = [result for result in results.values() if result is not None]
            if len(found) == len(results):
                return found
            time.sleep(0.5)

    def attempt(self, job: Job) -> Mapping[str, Any] | None:
        """Return the stored result of the job, or run it; None while another process is running it.

        Raises:
            OutOfTimeError: the time limit is over.
        """
        known = self.measured(job)
        if known is not None:
            return known
        if self.elapsed() > self.limit:
            raise OutOfTimeError(f"no time is left for {job.name}")
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(trials.lock_file(self.out / job.lock_name), busy="another process runs it"))
            except BlockingIOError:
                return None
            # Another process may have finished it since the first look.
            return self.measured(job) or self._measure(job)

    def _measure(self, job: Job) -> Mapping[str, Any] | None:
        examples, started = self.load_data(job.dataset, job.options), time.monotonic()
        result = self._run(job, examples)
        result = {**result, "seconds": round(time.monotonic() - started, 2)}
        if job.kind == "trial":
            name = trials.append(self.out, job.name, result, job.command, self.known)
        else:
            name = job.name
            write(self.out / f"{name}.json", result)
        print(f"{self.elapsed():6.0f} s  {name}: {_summary(result)}", flush=True)
        return self.measured(job)

    def reached(self, job: Job) -> bool:
        """Measure the job if time is left and no other process runs it; return whether its result is there."""
        try:
            return self.attempt(job) is not None
        except OutOfTimeError:
            return False

    def elapsed(self) -> float:
        """Return the seconds since the runner was made."""
        return time.monotonic() - self.started

    def _run(self, job: Job, examples: Dataset) -> dict[str, Any]:
        result = {
            "kind": job.kind,
            "dataset": job.dataset,
            "method": job.method,
            **job.facts,
            "command": job.command(),
            "options": as_json(job.options),
            "device": common.machine(self.device),
            "versions": common.versions(),
        }
        # Checkpoints and models are not kept; writing them to memory costs little.
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            try:
                run = tuplet.train(examples, folder, device=self.device, compile=self.compile, **job.options)
            except FloatingPointError as error:
                return {**result, "error": str(error).split("; the batch")[0]}
            events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
            metrics, saved = run.metrics, load_file(run.folder / "vectors.safetensors")
            del run
        gc.collect()
        if job.kind in RECIPE_ROWS:
            metrics["reranked"] = reranked_metrics(saved["embeddings"], saved["labels"], ks=(1,), device=self.device)
        trained = [event for event in events if event["event"] == "train"]
        rates = sorted(event["examples_per_second"] for event in trained)
        result |= {
            "metrics": metrics,
            "training_seconds": round(trained[-1]["seconds"], 2),
            "examples_per_second": round(rates[len(rates) // 2]),
        }
        if (job.kind, job.options["seed"]) == (MAPPED, 0):
            save_file({**saved, "embeddings": saved["embeddings"].half()}, self.out / f"{job.name}.safetensors")
        if job.kind == "row" and job.method in NEAREST and job.options["seed"] == 0:
            result["nearest"] = _nearest(saved)
        return result

    def load_data(self, dataset: str, options: Mapping[str, Any]) -> Dataset:
        """Return the dataset with its images decoded on the device, and its test images cropped as the options say."""
        size = options.get("size") or options["model_options"]["size"]
        crop = data.CentreCrop(size, options["resize"], options.get("resize_mode", "square"))
        if self._loaded is None or self._loaded[0] != (dataset, crop):
            self._loaded = None
            opened = data.open(os.path.expandvars(DATASETS[dataset].source))
            held = data.hold(opened, options["stored_size"], self.device, self.cache, crop=crop)
            self._loaded = (dataset, crop), held
        return self._loaded[1]


def _nearest(saved: Mapping[str, Tensor], queries: int = 4, count: int = 5) -> list[list[int]]:
    """Return some queries, spread over the examples, each followed by its nearest: positions in the dataset."""
    vectors, positions = saved["embeddings"], saved["indices"]
    chosen = torch.linspace(0, len(vectors) - 1, min(queries, len(vectors))).long()
    distances = torch.cdist(vectors[chosen], vectors)
    distances[torch.arange(len(chosen)), chosen] = torch.inf
    near = distances.topk(count, largest=False).indices
    return torch.cat([positions[chosen][:, None], positions[near]], 1).tolist()


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, one line for each entry; a reader never sees half a file."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items())
    with lock(trials.lock_file(path)):
        write_atomic(path, lambda part: part.write_text(f"{{\n{lines}\n}}\n"))


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they come back from a JSON file: tuples become lists."""
    return json.loads(json.dumps(options))


def _summary(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return result["error"]
    metrics, rate = result["metrics"], result["examples_per_second"]
    values = {"R@1": "recall_at_1", "MAP@R": "map_at_r", "NMI": "nmi"}
    return ", ".join(f"{title} {100 * metrics[name]:.2f}" for title, name in values.items()) + f", {rate:,} images/s"
