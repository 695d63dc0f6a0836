"""Measure the papers' tables: every method under one protocol, one result file a run.

    TUPLET_DATA=folder python benchmarks/protocols.py --stage search 1 --dataset cub200 cars196 --compile
    TUPLET_DATA=folder python benchmarks/protocols.py --stage 2 --dataset cub200 --limit-seconds 540 --out folder

Stages, in the order in which they are needed:

    search       choose the options of the main rows' families on validation classes (trials.csv, chosen_*.json)
    1            the main rows, seed 0
    2            the main rows, seeds 1 and 2
    search_all   choose the options of the other families
    3            the other methods, seed 0
    4            the options that the papers vary
    search_best  choose the best recipe with any loss (best_*.json)
    5            the best recipe, three seeds
    6            the other methods that the papers propose, seeds 1 and 2
    search_vit   choose the best recipe with a vision transformer (vit_*.json)
    7            that recipe, three seeds
    search_systems  choose the learning rates of the systems that the papers compare with (systems_*.json)
    8            those systems, seed 0
    9            why some rows are below their papers' numbers
    search_lite  choose the recipe of small networks (lite_*.json)
    10           that recipe with each of them
    11           recipes on data that they were not chosen on; the only stage of omniglot

Results are written to --out as they are measured. A run that was measured before is not repeated, and none starts
after --limit-seconds; the same command continues where it stopped. `--workers 5` starts five processes that share the
work, which uses a GPU better than one, most of all after `nvidia-cuda-mps-control -d`; each needs about 20 GB of its
memory at 336 pixels. `--only` runs the results whose names fit its patterns, in their order, over all stages and
datasets: `--stage 3 9 --only 'ablation_cars196_hdc*' row_cars196_nra_64_0`. `--dataset glyphs` tries everything out in
minutes.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

import hyperparameter_space as space
from hyperparameter_search import Coordinate, Options, Ordered, Score, best_over_seeds, coordinate_search
from methods import DATASETS, FAMILIES, METHODS, SEEDS, SYSTEMS, TARGETS
from planned_runs import DEFAULTS, chosen, has_levels, select, stage, trial
from runs import RESULTS, Job, OutOfTimeError, Runner, write

STAGES = (
    *("search", "1", "2", "search_all", "3", "4", "search_best", "5", "6", "search_vit", "7"),
    *("search_systems", "8", "9", "search_lite", "10", "11"),
)


class Search:
    """A search on one dataset, for as long as time is left; `trials` names the trials that it compared."""

    def __init__(self, dataset: str, runner: Runner) -> None:
        self.dataset, self.runner = dataset, runner
        self.trials: dict[str, None] = {}
        self.complete = True

    def improve(self, method: str, start: Options, coordinates: Iterable[Coordinate]) -> Iterator[dict[str, Any]]:
        """Yield the best options so far; the option "method", where there is one, replaces `method`."""
        with self.until_out_of_time():
            yield from coordinate_search(start, coordinates, partial(self._scores, method))

    def best_lrs(self, methods: Sequence[str], shared: Options, lrs: Sequence[float]) -> dict[str, float]:
        """Return the best learning rate of each method: the first three are tried, and the next while one is the best.

        Args:
            methods: the methods.
            shared: the other options.
            lrs: the learning rates, ascending; the three in the middle are the first.
        """
        middle = len(lrs) // 2
        tried: dict[str, dict[int, Score]] = {method: {} for method in methods}
        todo = [(method, n) for method in methods for n in (middle - 1, middle, middle + 1)]
        while todo:
            candidates = [{**shared, "method": method, "lr": lrs[n]} for method, n in todo]
            for (method, n), score in zip(todo, self._scores("", candidates), strict=True):
                tried[method][n] = score
            best = {method: max(scores, key=scores.__getitem__) for method, scores in tried.items()}
            todo = [(method, n) for method, k in best.items() for n in (k - 1, k + 1)]
            todo = [(method, n) for method, n in todo if n in range(len(lrs)) and n not in tried[method]]
        return {method: lrs[n] for method, n in best.items()}

    def best_over_seeds(self, method: str, candidates: Sequence[Options], count: int) -> dict[str, Any] | None:
        """Return the best of the `count` best candidates by the mean over seeds; None if time runs out."""
        with self.until_out_of_time():
            return dict(best_over_seeds(candidates, count, SEEDS, partial(self._scores, method)))
        return None

    @contextmanager
    def until_out_of_time(self) -> Iterator[None]:
        """End the block quietly where no time is left for its next trial."""
        try:
            yield
        except OutOfTimeError as error:
            self.complete = False
            print(f"the search on {self.dataset} stopped: {error}")

    def _scores(self, method: str, candidates: Sequence[Options]) -> list[Score]:
        jobs = []
        for candidate in candidates:
            options = {name: value for name, value in candidate.items() if name != "method"}
            jobs.append(trial(self.dataset, candidate.get("method", method), options))
        results = self.runner.measure(jobs)
        self.trials |= dict.fromkeys(result["trial"] for result in results)
        # A run that diverged has no metrics.
        metrics = [result.get("metrics", {"recall_at_1": 0.0, "map_at_r": 0.0}) for result in results]
        return [Score(each["recall_at_1"], each["map_at_r"]) for each in metrics]

    def save(self, name: str, **found: Any) -> dict[str, Any]:
        """Write the choice to NAME_DATASET.json and return it."""
        about = {"kind": "chosen", "dataset": self.dataset, "complete": self.complete}
        result = {**about, **found, "trials": list(self.trials)}
        write(self.runner.out / f"{name}_{self.dataset}.json", result)
        return result


def search(dataset: str, runner: Runner, families: Iterable[str] = tuple(space.FAMILIES)) -> dict[str, Any]:
    """Choose the options that all methods share, then those of each family, as far as time allows."""
    current, short = Search(dataset, runner), DATASETS[dataset].trial_steps
    shared, families = dict(space.START), tuple(families)
    if "L" not in DATASETS[dataset].levels:
        shared["freeze_to"] = None
    for best in current.improve(FAMILIES["unit"], shared, space.SHARED[dataset]):
        shared = best
    steps = Ordered("steps", (short, 2 * short, 3 * short), 1)
    if current.complete:
        for best in current.improve(FAMILIES["unit"], {"steps": short, **shared}, [steps]):
            shared = best
    with_resize: dict[str, Any] = {}
    if current.complete:
        for best in current.improve(FAMILIES["unit"], shared, space.TEST_RESIZE[dataset]):
            with_resize = best
    per_family: dict[str, dict[str, Any]] = {}
    # Processes that share the work start with different families.
    first = runner.worker % len(families)
    for family in (*families[first:], *families[:first]) if current.complete else ():
        per_family[family] = _search_family(current, family, shared, short)
    per_family = {family: per_family[family] for family in families if family in per_family}
    return current.save("chosen", shared={**shared, **with_resize}, per_family=per_family)


def _search_family(current: Search, family: str, shared: Options, short: int) -> dict[str, Any]:
    """Return the options of a family that differ from the shared ones.

    They are found in short runs; then the learning rate is chosen again at full length, and all of them must beat the
    shared options over three seeds.
    """
    method = FAMILIES[family]
    different: dict[str, Any] = {}
    for best in current.improve(method, {**shared, "steps": short}, space.FAMILIES[family]):
        different = {name: value for name, value in best.items() if name != "steps" and shared.get(name) != value}
    if current.complete and shared["steps"] > short:
        for best in current.improve(method, {**shared, **different}, space.FULL_LENGTH):
            different = {name: value for name, value in best.items() if shared.get(name) != value}
    if current.complete and different:
        better = current.best_over_seeds(method, [shared, {**shared, **different}], 2)
        different = {} if better == shared else different
    return different


def search_best(dataset: str, runner: Runner) -> dict[str, Any]:
    """Choose the best recipe with any loss, starting from the shared options."""
    choice, current, about = chosen(dataset, runner), Search(dataset, runner), space.BEST[dataset]
    per_method = {method: choice["per_family"].get(METHODS[method].family, {}) for method in about.methods}
    # A method has the options of its family; those of other families are set to their defaults.
    defaults = {name: choice["shared"].get(name, DEFAULTS[name]) for own in per_method.values() for name in own}
    best = {"method": FAMILIES["unit"], **choice["shared"]}
    grid = [
        {**best, "method": name, **defaults, **own, **alternative}
        for name, own in per_method.items()
        for alternative in about.alternatives
    ]
    best = current.best_over_seeds(FAMILIES["unit"], [best, *grid], about.finalists) or best
    for better in current.improve(FAMILIES["unit"], best, about.coordinates) if current.complete else ():
        best = better
    return current.save("best", shared=best)


def search_recipe(dataset: str, runner: Runner, name: str, spaces: Mapping[str, space.RecipeSpace]) -> dict[str, Any]:
    """Choose a recipe with Proxy-Anchor: all candidates side by side, then the best ones over three seeds."""
    current, candidates = Search(dataset, runner), spaces[dataset].candidates()
    best = current.best_over_seeds("proxy_anchor", candidates, spaces[dataset].finalists) or candidates[0]
    return current.save(name, shared={"method": "proxy_anchor", **best})


search_vit = partial(search_recipe, name="vit", spaces=space.VIT)
search_lite = partial(search_recipe, name="lite", spaces=space.LITE)


def search_systems(dataset: str, runner: Runner) -> dict[str, Any]:
    """Choose the learning rate of each system in short runs with the shared options; all candidates at once.

    A dataset of `hyperparameter_space.SYSTEM_LRS_LIKE` needs no runs of its own.
    """
    current, shared = Search(dataset, runner), chosen(dataset, runner)["shared"]
    lrs: dict[str, float] = {}
    if like := space.SYSTEM_LRS_LIKE.get(dataset):
        scale = shared["lr"] / chosen(like, runner)["shared"]["lr"]
        systems = chosen(like, runner, "systems")["per_family"]
        lrs = {name: float(f"{scale * options['lr']:.1g}") for name, options in systems.items()}
    else:
        short = {**shared, "steps": DATASETS[dataset].trial_steps}
        own = [name for name in SYSTEMS if name in FAMILIES and has_levels(dataset, METHODS[name].options)]
        with current.until_out_of_time():
            lrs = current.best_lrs(own, short, space.SYSTEM_LRS[dataset])
    return current.save("systems", per_family={name: {"lr": lr} for name, lr in lrs.items() if lr != shared["lr"]})


SEARCHES: dict[str, Callable[[str, Runner], dict[str, Any]]] = {
    "search": partial(search, families=[name for name in space.FAMILIES if FAMILIES[name] in TARGETS]),
    "search_all": search,
    "search_best": search_best,
    "search_vit": search_vit,
    "search_systems": search_systems,
    "search_lite": search_lite,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES, nargs="+", required=True)
    parser.add_argument("--dataset", choices=sorted(DATASETS), nargs="+", required=True)
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="PATTERN", help="names of results, such as 'row_*_64_0'"
    )
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="faster runs, after a minute for each kind of network")
    parser.add_argument("--again", action="store_true", help="repeat runs that are stored elsewhere than in --out")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the decoded images for the next time")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)  # the number of one of them
    arguments = parser.parse_args()
    if arguments.workers > 1:
        _share(arguments.workers, arguments.out)
    else:
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    """Run the searches at once, and the runs in their order."""
    runner = Runner(
        arguments.out,
        arguments.limit_seconds,
        arguments.device,
        arguments.compile,
        arguments.cache,
        arguments.worker,
        known=() if arguments.again else (RESULTS,),
    )
    selected: list[Job] = []
    for dataset in arguments.dataset:
        for name in arguments.stage:
            if name in SEARCHES:
                found = SEARCHES[name](dataset, runner)
                print(json.dumps({k: v for k, v in found.items() if k != "trials"}))
            elif arguments.only:
                selected += stage(name, dataset, runner)
            else:
                _measure(f"stage {name} of {dataset}", stage(name, dataset, runner), runner)
    if arguments.only:
        _measure("--only", select(selected, arguments.only), runner)


def _share(workers: int, out: Path) -> None:
    """Run this command in several processes, each with its log in `out`; end with an error if one of them did."""
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for worker in range(workers):
            log = stack.enter_context((out / f"worker_{worker}.log").open("w"))
            words = [sys.executable, "-u", *sys.argv, "--workers", "1", "--worker", str(worker)]
            processes.append(subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT))
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit(f"a worker failed; {out}/worker_*.log say why")


def _measure(title: str, jobs: Sequence[Job], runner: Runner) -> None:
    print(f"{title}: {sum(not runner.reached(job) for job in jobs)} of {len(jobs)} left")


if __name__ == "__main__":
    main()
