"""The papers' tables on real photographs: every method under one protocol, run by run, as far as the time goes.

    TUPLET_DATA=folder python benchmarks/protocols.py --stage search 1 --dataset cub200 cars196 --compile
    TUPLET_DATA=folder python benchmarks/protocols.py --stage 2 --dataset cub200 --limit-seconds 540 --out folder

Stages: `search` chooses rates and augmentation on validation classes of the training split (benchmarks/choosing.py) for
the families of the first six rows, `search_all` for the others too; 1 measures the six rows that the papers are known
for; 2 their other seeds; 3 the other methods; 4 what the papers vary; `search_best` and 5 the best recipe with any
loss; 6 the other seeds of the papers' other methods. Each run is one JSON file, written to --out as it ends. A run
whose file is there is not repeated, and none is begun that would not end within the limit, so the same command goes on
where it stopped. Several processes with one --out share the jobs of a stage and the alternatives of a search, which
uses a GPU better than one. `--dataset glyphs` rehearses everything in minutes on any machine.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import choosing
from choosing import Change, Coordinate, Score
from methods import ABLATIONS, BENCHES, CURVES, FAMILIES, METHODS, SEEDS, TARGETS
from runs import RESULTS, Job, OutOfTimeError, Runner, write
from tuplet.training.settings import describe_options

#: What options are where nobody says anything.
USUAL = {option.name: option.default for option in describe_options()}
#: In the order in which they are wanted.
STAGES = ("search", "1", "2", "search_all", "3", "4", "search_best", "5", "6")


# Searching


def trial(dataset: str, method: str, change: Change) -> Job:
    """A run on the training classes alone: two thirds of them train, the others measure."""
    bench = BENCHES[dataset]
    options = {**bench.options, **METHODS[method].options, "steps": bench.short}
    options = _at_the_end({**options, **choosing.VALIDATION, **choosing.nested(change)})
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    facts = {"change": dict(change), "about": " ".join(f"{k}={v}" for k, v in change.items())}
    return Job(f"search_{dataset}_{method}_{digest}", "search", dataset, method, options, facts)


class Search:
    """Climbs on a dataset, for as long as there is time, with a list of the trials that it looked at."""

    def __init__(self, dataset: str, runner: Runner) -> None:
        self.dataset, self.runner = dataset, runner
        self.trials: dict[str, None] = {}
        self.complete = True

    def climb(self, method: str, start: Change, coordinates: Iterable[Coordinate]) -> Iterator[dict[str, Any]]:
        """The best options so far, by the rule of benchmarks/choosing.py; `method` is one of them where it varies."""
        with self._as_time_goes():
            yield from choosing.climb(start, coordinates, partial(self._scores, method))

    def final(self, method: str, candidates: Sequence[Change], count: int) -> dict[str, Any] | None:
        """The one of the `count` best that is best by the mean over seeds; None where time runs out."""
        with self._as_time_goes():
            return dict(choosing.final(candidates, count, SEEDS, partial(self._scores, method)))
        return None

    @contextmanager
    def _as_time_goes(self) -> Iterator[None]:
        try:
            yield
        except OutOfTimeError as error:
            self.complete = False
            print(f"the search on {self.dataset} stopped: {error}")

    def _scores(self, method: str, changes: Sequence[Change]) -> list[Score]:
        jobs = []
        for change in changes:
            options = {name: value for name, value in change.items() if name != "method"}
            jobs.append(trial(self.dataset, change.get("method", method), options))
        results = self.runner.measure(jobs)
        self.trials |= dict.fromkeys(job.name for job in jobs)
        # A run that diverged has no metrics.
        metrics = [result.get("metrics", {"recall_at_1": 0.0, "map_at_r": 0.0}) for result in results]
        return [Score(each["recall_at_1"], each["map_at_r"]) for each in metrics]

    def keep(self, name: str, **found: Any) -> dict[str, Any]:
        """Write what was chosen."""
        about = {"kind": "chosen", "dataset": self.dataset, "complete": self.complete}
        result = {**about, **found, "trials": list(self.trials)}
        write(self.runner.out / f"{name}_{self.dataset}.json", result)
        return result


def search(dataset: str, runner: Runner, families: Iterable[str] = tuple(choosing.FAMILIES)) -> dict[str, Any]:
    """What all methods share, and what each family has of its own; where time runs out, as far as it came."""
    shared = dict(choosing.START)
    if "L" not in BENCHES[dataset].levels:
        shared["frozen_to"] = None
    looking, short = Search(dataset, runner), BENCHES[dataset].short
    steps = choosing.Ladder("steps", (short, 2 * short, 3 * short), 1)
    for best in looking.climb(FAMILIES["unit"], shared, choosing.SHARED[dataset]):
        shared = best
    if looking.complete:
        for best in looking.climb(FAMILIES["unit"], {"steps": short, **shared}, [steps]):
            shared = best
    seen: dict[str, Any] = {}
    for best in looking.climb(FAMILIES["unit"], shared, choosing.VIEWS[dataset]) if looking.complete else ():
        seen = best
    own: dict[str, dict[str, Any]] = {}
    families = tuple(families)
    # Processes that share the work begin with different ones.
    turn = runner.turn % len(families)
    for family in (*families[turn:], *families[:turn]) if looking.complete else ():
        own[family] = _own(looking, family, shared, short)
    own = {family: own[family] for family in families if family in own}
    return looking.keep("chosen", shared={**shared, **seen}, own=own)


def _own(looking: Search, family: str, shared: Change, short: int) -> dict[str, Any]:
    """What a family has beyond what is shared: found in short runs, then its rate again at the length of all.

    There it must be better than what is shared once more, whatever the seed.
    """
    method = FAMILIES[family]
    own: dict[str, Any] = {}
    for best in looking.climb(method, {**shared, "steps": short}, choosing.FAMILIES[family]):
        own = {name: value for name, value in best.items() if name != "steps" and shared.get(name) != value}
    if looking.complete and shared["steps"] > short:
        for best in looking.climb(method, {**shared, **own}, choosing.AT_LENGTH):
            own = {name: value for name, value in best.items() if shared.get(name) != value}
    if looking.complete and own:
        better = looking.final(method, [shared, {**shared, **own}], 2)
        own = {} if better == shared else own
    return own


def search_best(dataset: str, runner: Runner) -> dict[str, Any]:
    """The best recipe with any loss, from what all methods share on."""
    choice, looking, about = chosen(dataset, runner), Search(dataset, runner), choosing.BEST[dataset]
    own = {method: choice["own"].get(METHODS[method].family, {}) for method in about.methods}
    # A method has its family's options and no other's.
    usual = {name: choice["shared"].get(name, USUAL[name]) for options in own.values() for name in options}
    best = {"method": FAMILIES["unit"], **choice["shared"]}
    grid = [{**best, "method": name, **usual, **own[name], **change} for name in own for change in about.changes]
    best = looking.final(FAMILIES["unit"], [best, *grid], about.finalists) or best
    for better in looking.climb(FAMILIES["unit"], best, about.after) if looking.complete else ():
        best = better
    return looking.keep("best", shared=best)


def chosen(dataset: str, runner: Runner, name: str = "chosen") -> dict[str, Any]:
    """What the search has chosen for a dataset."""
    for folder in (runner.out, RESULTS):
        path = folder / f"{name}_{dataset}.json"
        if path.is_file():
            return json.loads(path.read_text())
    raise SystemExit(f"nothing was chosen for {dataset} yet; run --stage search --dataset {dataset} first")


SEARCHES: dict[str, Callable[[str, Runner], dict[str, Any]]] = {
    "search": partial(search, families=[name for name in choosing.FAMILIES if FAMILIES[name] in TARGETS]),
    "search_all": search,
    "search_best": search_best,
}


# The tables


def row(dataset: str, method: str, seed: int, choice: Mapping[str, Any]) -> Job:
    """A run of a table: the whole training split trains, the test split measures, once, at the end."""
    options = {**_decided(dataset, method, choice), "seed": seed, "mirrored": True}
    return Job(f"row_{dataset}_{method}_{seed}", "row", dataset, method, _at_the_end(options), {"seed": seed})


def best_row(dataset: str, seed: int, best: Mapping[str, Any]) -> Job:
    """A run of the best recipe."""
    shared = dict(best["shared"])
    method = shared.pop("method")
    job = row(dataset, method, seed, {"shared": shared, "own": {}})
    return replace(job, name=f"row_{dataset}_best_{seed}", kind="best")


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
    shared = {**choice["shared"], **choice["own"].get(about.family, {})}
    steps = round(choosing.LONGER * shared.pop("steps", bench.short))
    return {**bench.options, **about.options, **choosing.nested(shared), "steps": steps}


def _at_the_end(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with one evaluation and one checkpoint, at the end: nothing is chosen on what is measured."""
    return {**options, "evaluate_every": options["steps"], "checkpoint_every": options["steps"]}


def stage(name: str, dataset: str, runner: Runner) -> list[Job]:
    """The jobs of a stage, the most wanted first; those of levels that the network has not are left out."""
    if name == "5":
        best = chosen(dataset, runner, "best")
        return [best_row(dataset, seed, best) for seed in SEEDS]
    choice = chosen(dataset, runner)
    if name == "4":
        jobs = [ablation(dataset, key, value, choice) for key, about in ABLATIONS.items() for value in about.changes]
        jobs += [curve(dataset, method, choice) for method in CURVES]
    else:
        jobs = [
            row(dataset, method, seed, choice)
            for seed in (SEEDS[:1] if name in "13" else SEEDS[1:])
            for method, about in METHODS.items()
            if (method in TARGETS) == (name in "12") and (about.own or name != "6")
        ]
    return [job for job in jobs if set(job.options.get("levels", "H")) <= set(BENCHES[dataset].levels)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES, nargs="+", required=True)
    parser.add_argument("--dataset", choices=sorted(BENCHES), nargs="+", required=True)
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="faster runs, after a minute for each kind of network")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the decoded photographs for the next time")
    parser.add_argument("--turn", type=int, default=0, help="which one this is of several that share --out: 0, 1, …")
    arguments = parser.parse_args()
    runner = Runner(
        arguments.out,
        arguments.limit_seconds,
        arguments.device,
        arguments.compile,
        arguments.cache,
        arguments.turn,
    )
    for dataset in arguments.dataset:
        for name in arguments.stage:
            if name in SEARCHES:
                found = SEARCHES[name](dataset, runner)
                print(json.dumps({k: v for k, v in found.items() if k != "trials"}))
            else:
                jobs = stage(name, dataset, runner)
                print(f"stage {name} of {dataset}: {sum(not runner.reached(job) for job in jobs)} of {len(jobs)} left")


if __name__ == "__main__":
    main()
