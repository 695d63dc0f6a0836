"""The papers' tables on real photographs: every method under one protocol, run by run, as far as the time goes.

    TUPLET_DATA=folder python benchmarks/protocols.py --stage search --dataset cub200 --limit-seconds 540
    TUPLET_DATA=folder python benchmarks/protocols.py --stage 1 --dataset cub200

Stages: `search` chooses rates and augmentation on validation classes of the training split (benchmarks/choosing.py) for
the families of the first six rows, `search_all` for the others too; 1 measures the six rows that the papers are known
for; 2 their other seeds; 3 the other methods; 4 what the papers vary; 6 the other seeds of the papers' other methods.
Each run is one JSON file, written to --out as it ends. A run whose file is there is not repeated, and none is begun
that would not end within the limit, so the same command goes on where it stopped. `--dataset glyphs` rehearses
everything in minutes on any machine.
"""

import argparse
import gc
import hashlib
import json
import math
import os
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import choosing
import common
import tuplet
from choosing import Change, Score
from methods import ABLATIONS, BENCHES, CURVES, FAMILIES, METHODS, SOURCES
from tuplet import data
from tuplet.cli.options import flag
from tuplet.data import Dataset

RESULTS = common.ROOT / "benchmarks" / "results"
#: Seconds of a step as long as nothing was measured, of a start, and of compiling a network anew.
_STEP, _START, _COMPILING = 0.04, 5.0, 60.0


class OutOfTimeError(Exception):
    """The next run would not end within the limit."""


@dataclass(frozen=True)
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
        return " ".join(str(self.options.get(name)) for name in matters)

    @property
    def command(self) -> str:
        """What a user types to get the same run."""
        said = [f"{flag(name)} {_typed(value)}" for name, value in self.options.items()]
        return " ".join(["tuplet train", SOURCES[self.dataset], f"--out runs/{self.name}", *said])


def _typed(value: Any) -> str:
    if isinstance(value, Mapping):
        return shlex.quote(json.dumps(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class Runner:
    """Runs jobs on data that are decoded once, and remembers what was measured."""

    def __init__(self, out: Path, limit: float, device: str) -> None:
        self.out, self.device = out, device
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
                if result["options"] == _as_json(job.options):
                    return result
        return None

    def measure(self, job: Job) -> dict[str, Any]:
        """The result of the job, from its file or by running it."""
        known = self.measured(job)
        if known is not None:
            return known
        if self.spent() + self.expected(job) > self.limit:
            raise OutOfTimeError(f"{job.name} needs about {self.expected(job):.0f} s")
        began = time.monotonic()
        result = self._run(job)
        seconds = time.monotonic() - began
        if "error" not in result and job.network in self.compiled:
            self.paces.append(seconds / job.options["steps"])
        self.compiled.add(job.network)
        result = {**result, "seconds": round(seconds, 2)}
        write(self.out / f"{job.name}.json", result)
        print(f"{self.spent():6.0f} s  {_summary(result)}", flush=True)
        return result

    def reached(self, job: Job) -> bool:
        """Measure the job if there is time; whether its result is there."""
        try:
            self.measure(job)
        except OutOfTimeError:
            return False
        return True

    def spent(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self.began

    def expected(self, job: Job) -> float:
        """How long the job will take at most, by what earlier ones took and by what must be compiled."""
        pace = 1.1 * max(self.paces[-3:]) if self.paces else _STEP
        anew = job.options.get("compile", False) and job.network not in self.compiled
        return pace * job.options["steps"] + _START + (_COMPILING if anew else 0.0)

    def _run(self, job: Job) -> dict[str, Any]:
        result = {
            "kind": job.kind,
            "dataset": job.dataset,
            "method": job.method,
            **job.facts,
            "command": job.command,
            "options": _as_json(job.options),
            "device": common.machine(self.device),
            "versions": common.versions(),
        }
        # Checkpoints and embedders are not kept; in memory they cost little.
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            try:
                run = tuplet.train(self._data(job.dataset), folder, device=self.device, **job.options)
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
            self._held = dataset, data.hold(opened, bench.options["stored_size"], self.device)
        return self._held[1]


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
    aside = path.with_suffix(".part")
    aside.write_text(f"{{\n{lines}\n}}\n")
    aside.replace(path)


def _as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(options))


def _summary(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"{result['method']}: {result['error']}"
    metrics = result["metrics"]
    shown = (
        f"R@1 {100 * metrics['recall_at_1']:.2f} MAP@R {100 * metrics['map_at_r']:.2f} NMI {100 * metrics['nmi']:.1f}"
    )
    return f"{result['kind']} {result['method']} {result.get('about', '')} {shown} {result['examples_per_second']:,}/s"


# Searching


def trial(dataset: str, method: str, change: Change) -> Job:
    """A run on the training classes alone: two thirds of them train, the others measure."""
    bench = BENCHES[dataset]
    options = {**bench.options, **METHODS[method].options, "steps": bench.short}
    options = _at_the_end({**options, **choosing.nested(change), **choosing.VALIDATION})
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    facts = {"change": dict(change), "about": " ".join(f"{k}={v}" for k, v in change.items())}
    return Job(f"search_{dataset}_{method}_{digest}", "search", dataset, method, options, facts)


def search(dataset: str, runner: Runner, families: Sequence[str] = ("free", "rank", "proxy")) -> dict[str, Any]:
    """What the rule of benchmarks/choosing.py chooses; where time runs out, as far as it came."""
    double = {"steps": 2 * BENCHES[dataset].short}
    shared = dict(chosen("cub200", runner)["shared"] if dataset == "cars196" else choosing.START)
    shared.pop("steps", None)
    rates: dict[str, float] = {}
    trials: dict[str, None] = {}
    complete = False

    def climb(method: str, start: Change, coordinates: Iterable[Iterable[Change]]) -> Iterator[dict[str, Any]]:
        def score(change: Change) -> Score:
            job = trial(dataset, method, change)
            result = runner.measure(job)
            trials[job.name] = None
            metrics = result.get("metrics", {"recall_at_1": 0.0, "map_at_r": 0.0})
            return Score(metrics["recall_at_1"], metrics["map_at_r"])

        return choosing.climb(start, coordinates, score)

    try:
        for best in climb(FAMILIES["unit"], shared, choosing.SHARED[dataset]):
            shared = best
        short = dict(shared)
        rates["unit"] = shared["rate"]
        for best in climb(FAMILIES["unit"], short, [[double]]):
            shared = best
        for family in families:
            for best in climb(FAMILIES[family], short, [choosing.RATES]):
                rates[family] = best["rate"]
        complete = True
    except OutOfTimeError as error:
        print(f"the search on {dataset} stopped: {error}")
    result = {"kind": "chosen", "dataset": dataset, "complete": complete, "shared": shared, "rates": rates}
    result["trials"] = list(trials)
    write(runner.out / f"chosen_{dataset}.json", result)
    return result


def chosen(dataset: str, runner: Runner) -> dict[str, Any]:
    """What the search has chosen for a dataset."""
    for folder in (runner.out, RESULTS):
        path = folder / f"chosen_{dataset}.json"
        if path.is_file():
            return json.loads(path.read_text())
    raise SystemExit(f"nothing was chosen for {dataset} yet; run --stage search --dataset {dataset} first")


# The tables


def row(dataset: str, method: str, seed: int, choice: Mapping[str, Any]) -> Job:
    """A run of a table: the whole training split trains, the test split measures, once, at the end."""
    options = {**_decided(dataset, method, choice), "seed": seed, "mirrored": True}
    return Job(f"row_{dataset}_{method}_{seed}", "row", dataset, method, _at_the_end(options), {"seed": seed})


def ablation(dataset: str, name: str, value: str, choice: Mapping[str, Any]) -> Job:
    """A run of what a paper varies, at half the steps of a table's."""
    about = ABLATIONS[name]
    options = {**_decided(dataset, about.method, choice), **about.changes[value], "seed": 0}
    options["steps"] = math.ceil(options["steps"] / 2)
    facts = {"ablation": name, "value": value, "about": f"{name}={value}"}
    number = list(about.changes).index(value)
    return Job(f"ablation_{dataset}_{name}_{number}", "ablation", dataset, about.method, _at_the_end(options), facts)


def curve(dataset: str, method: str, choice: Mapping[str, Any]) -> Job:
    """A run that is measured again and again on validation classes, to see how fast a loss gets somewhere."""
    options = {**_decided(dataset, method, choice), **choosing.VALIDATION, "steps": BENCHES[dataset].short}
    options |= {"evaluate_every": max(1, options["steps"] // 12), "checkpoint_every": options["steps"]}
    return Job(f"curve_{dataset}_{method}", "curve", dataset, method, options)


def _decided(dataset: str, method: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method with what the search has chosen."""
    bench, about = BENCHES[dataset], METHODS[method]
    shared = {**choice["shared"], "rate": choice["rates"].get(about.family, choice["shared"]["rate"])}
    steps = round(choosing.LONGER * shared.pop("steps", bench.short))
    return {**bench.options, **about.options, **choosing.nested(shared), "steps": steps}


def _at_the_end(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with one evaluation and one checkpoint, at the end: nothing is chosen on what is measured."""
    return {**options, "evaluate_every": options["steps"], "checkpoint_every": options["steps"]}


def stage(name: str, dataset: str, choice: Mapping[str, Any]) -> list[Job]:
    """The jobs of a stage, the most wanted first; those of levels that the network has not are left out."""
    if name == "4":
        jobs = [ablation(dataset, key, value, choice) for key, about in ABLATIONS.items() for value in about.changes]
        jobs += [curve(dataset, method, choice) for method in CURVES]
    else:
        jobs = [
            row(dataset, method, seed, choice)
            for seed in {"1": [0], "2": [1, 2], "3": [0], "6": [1, 2]}[name]
            for method, about in METHODS.items()
            if about.target == (name in "12") and (about.own or name != "6")
        ]
    return [job for job in jobs if set(job.options.get("levels", "H")) <= set(BENCHES[dataset].levels)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["search", "search_all", "1", "2", "3", "4", "6"], nargs="+", required=True)
    parser.add_argument("--dataset", choices=sorted(BENCHES), nargs="+", required=True)
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    runner = Runner(arguments.out, arguments.limit_seconds, arguments.device)
    for dataset in arguments.dataset:
        for name in arguments.stage:
            if name.startswith("search"):
                found = search(dataset, runner, *([("free", "rank")] if name == "search" else []))
                print(json.dumps({k: v for k, v in found.items() if k != "trials"}))
            else:
                jobs = stage(name, dataset, chosen(dataset, runner))
                print(f"stage {name} of {dataset}: {sum(not runner.reached(job) for job in jobs)} of {len(jobs)} left")


if __name__ == "__main__":
    main()
