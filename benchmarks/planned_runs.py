"""The runs that the protocol plans: trials of the searches, rows of the tables, ablations and recipes on other data."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import hyperparameter_space as space
from ablations import ABLATIONS, CAUSES
from hyperparameter_search import Options, nest
from methods import DATASETS, LITE_NETWORKS, METHODS, RECIPES, SEEDS, SYSTEMS, TARGETS
from runs import RESULTS, Job, Runner
from tuplet.training.settings import describe_options

DEFAULTS = {option.name: option.default for option in describe_options()}


def trial(dataset: str, method: str, options: Options) -> Job:
    """Return a run on the training classes alone: two thirds of them train, the others validate."""
    about = DATASETS[dataset]
    every = {**about.options, **METHODS[method].options, "steps": about.trial_steps}
    every = _evaluate_at_end(_scaled({**every, **space.VALIDATION, **nest(options)}, METHODS[method].steps))
    return Job(f"trial_{dataset}_{method}", "trial", dataset, method, every)


def chosen(dataset: str, runner: Runner, name: str = "chosen") -> dict[str, Any]:
    """Return the choice of a search, from the runner's folder or from the stored results."""
    for folder in (runner.out, RESULTS):
        path = folder / f"{name}_{dataset}.json"
        if path.is_file():
            return json.loads(path.read_text())
    raise SystemExit(f"no options are chosen for {dataset}; run --stage search --dataset {dataset} first")


def with_systems(dataset: str, runner: Runner) -> dict[str, Any]:
    """Return the choice for all methods, with the learning rates of the systems."""
    choice, systems = chosen(dataset, runner), chosen(dataset, runner, "systems")
    return {**choice, "per_family": {**choice["per_family"], **systems["per_family"]}}


def row(dataset: str, method: str, seed: int, choice: Mapping[str, Any]) -> Job:
    """Return a run of a table: all training classes train, the test classes are measured once, at the end."""
    options = {**_chosen_options(dataset, method, choice), "seed": seed, "flip_test": True}
    return Job(f"row_{dataset}_{method}_{seed}", "row", dataset, method, _evaluate_at_end(options), {"seed": seed})


def recipe_row(dataset: str, name: str, seed: int, best: Mapping[str, Any]) -> Job:
    """Return a run of a recipe (`methods.RECIPE_ROWS`)."""
    shared = {**best["shared"], **LITE_NETWORKS.get(name, {})}
    method = shared.pop("method")
    job = row(dataset, method, seed, {"shared": shared, "per_family": {}})
    return replace(job, name=f"row_{dataset}_{name}_{seed}", kind=name)


def transfer(dataset: str, name: str, origin: str, best: Mapping[str, Any]) -> Job:
    """Return a run of a recipe that was chosen on another dataset, its origin."""
    job, facts = recipe_row(dataset, name, SEEDS[0], best), {"recipe": name, "origin": origin}
    return replace(job, name=f"transfer_{dataset}_{name}_{origin}", kind="transfer", facts={**job.facts, **facts})


def ablation(dataset: str, name: str, value: str, choice: Mapping[str, Any]) -> Job:
    """Return a run with one value of an option that a paper varies, with half the steps of a row."""
    about = (ABLATIONS | CAUSES)[name]
    options = {**_chosen_options(dataset, about.method, choice), "seed": 0}
    options |= {"steps": math.ceil(options["steps"] / 2), **about.changes[value]}
    facts, number = {"ablation": name, "value": value}, list(about.changes).index(value)
    file = f"ablation_{dataset}_{name}_{number}"
    return Job(file, "ablation", dataset, about.method, _evaluate_at_end(options), facts)


def _chosen_options(dataset: str, method: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    about, of_method = DATASETS[dataset], METHODS[method]
    options = {**choice["shared"], **choice["per_family"].get(of_method.family, {})}
    steps = round(space.STEPS_FACTOR * options.pop("steps", about.trial_steps))
    return _scaled({**about.options, **of_method.options, **nest(options), "steps": steps}, of_method.steps)


def _scaled(options: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Scale the options that are counted in steps: fewer and larger batches see the same number of images.

    >>> _scaled({"lr": 1e-4, "steps": 400, "ema": 0.99}, share=0.1)
    {'lr': 0.0001, 'steps': 40, 'ema': 0.9}
    """
    scaled = {name: math.ceil(share * options[name]) for name in ("steps", "head_steps", "warmup") if name in options}
    if "ema" in options:
        scaled["ema"] = round(1 - (1 - options["ema"]) / share, 4)
    return {**options, **scaled}


def _evaluate_at_end(options: Mapping[str, Any]) -> dict[str, Any]:
    """Add one evaluation, after the last step: no checkpoint is chosen, and all classes train unless options differ."""
    steps = options["steps"]
    return {"validation": 0.0, **options, "evaluate_every": steps, "checkpoint_every": steps}


def stage(name: str, dataset: str, runner: Runner) -> list[Job]:
    """Return the jobs of a stage that the dataset's network has the levels for, the most important first."""
    if name == "11":
        origin = space.TRANSFERS.get(dataset)
        return [transfer(dataset, each, origin, chosen(origin, runner, each)) for each in ("best", "vit") if origin]
    if name in ("5", "7", "10"):
        recipes, seeds = {"5": (["best"], SEEDS), "7": (["vit"], SEEDS), "10": (list(LITE_NETWORKS), SEEDS[:1])}[name]
        return [
            recipe_row(dataset, recipe, seed, chosen(dataset, runner, RECIPES[recipe]))
            for recipe in recipes
            for seed in seeds
        ]
    choice = with_systems(dataset, runner) if name in "89" else chosen(dataset, runner)
    if name in "49":
        jobs = [
            ablation(dataset, key, value, choice)
            for key, about in (ABLATIONS if name == "4" else CAUSES).items()
            for value in about.changes
            if dataset in about.datasets
        ]
    elif name == "8":
        jobs = [row(dataset, method, SEEDS[0], choice) for method in SYSTEMS]
    else:
        jobs = [
            row(dataset, method, seed, choice)
            for seed in (SEEDS[:1] if name in "13" else SEEDS[1:])
            for method, about in METHODS.items()
            if (method in TARGETS) == (name in "12") and (about.proposed or name != "6") and method not in SYSTEMS
        ]
    return [job for job in jobs if has_levels(dataset, job.options)]


def select(jobs: Sequence[Job], patterns: Sequence[str]) -> list[Job]:
    """Return the jobs whose names fit a pattern, in the order of the patterns."""
    names = ", ".join(job.name for job in jobs)
    found = {pattern: [job for job in jobs if fnmatch(job.name, pattern)] for pattern in patterns}
    for pattern, fitting in found.items():
        if not fitting:
            raise SystemExit(f"--only {pattern} fits no run of these stages; give names of {names}")
    return list({job.name: job for fitting in found.values() for job in fitting}.values())


def has_levels(dataset: str, options: Options) -> bool:
    """Return whether the dataset's network has the levels that a run needs; attention needs all of them."""
    needed = "LMH" if "attention" in options.get("model_options", {}) else options.get("levels", "H")
    return set(needed) <= set(DATASETS[dataset].levels)
