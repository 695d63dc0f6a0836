"""Several losses under one protocol, with several seeds, beside what the papers print."""

import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from tuplet import data as data_room
from tuplet.data import Dataset
from tuplet.training.assemble import decide
from tuplet.training.examples import telling_how_to_skip
from tuplet.training.folder import EVALUATION, RunFolder, named
from tuplet.training.objective import LOSSES
from tuplet.training.processes import first_speaks, join
from tuplet.training.published import benchmark, published
from tuplet.training.recipes import RECIPES, recipe_for
from tuplet.training.resolve import resolve
from tuplet.training.run import train
from tuplet.training.settings import check_names, nearest

_teller = logging.getLogger("tuplet")


@first_speaks()
def compare(
    data: str | os.PathLike[str] | Dataset,
    losses: Iterable[str] | Mapping[str, Mapping[str, Any]],
    seeds: Iterable[int] = (0, 1, 2),
    *,
    out: str | os.PathLike[str],
    recipe: str | None = None,
    resume: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Train every loss with every seed, all else alike, and give means and deviations of their metrics.

    `losses` are names of losses or of recipes, whose loss is then meant and nothing else; or a dictionary from labels
    of your own to options, as in {"sharp": {"loss": "ranked_list", "loss_options": {"temperature": 20.0}}}. `recipe`
    and `options` are the protocol. What a loss needs by its nature, unit vectors or pairs, each gets unless the
    protocol says otherwise.

    The runs are kept in `out`, a folder for each, so that a comparison that is interrupted goes on where it was;
    `resume=False` begins all of them again.
    Returned, and written to `out/comparison.json`, is plain data: for each loss its runs, the mean and the deviation
    (None for a single seed) of every metric, and the rows that the papers print for it on the same benchmark.

    >>> import tempfile, torch
    >>> from tuplet.data import from_features
    >>> data = from_features(torch.eye(8).repeat_interleave(5, 0), torch.arange(40) // 5)
    >>> found = compare(data, ["npair", "raw_vthm"], [0], out=tempfile.mkdtemp(), batch_size=8, dim=4, steps=2)
    >>> [(row["loss"], row["deviation"]["recall_at_1"]) for row in found["rows"]]
    [('npair', None), ('raw_vthm', None)]
    """
    folder = named(out)
    opened = data if isinstance(data, Dataset) else data_room.open(data)
    options_of = {label: {**options, **own} for label, own in _chosen(losses, opened).items()}
    seeds = _distinct(seeds)
    if not options_of or not seeds:
        raise ValueError("there is nothing to compare; give at least one loss and one seed")
    _refuse_labels_without_a_folder(options_of)
    for said in options_of.values():
        check_names(said)
        if "seed" in said:
            raise TypeError(f"seed is {said['seed']!r}, and a comparison has several; give seeds=")
    name = benchmark(opened)
    places = {(label, seed): folder / _file_name(label) / f"seed_{seed}" for label in options_of for seed in seeds}
    if not (resume and all((place / EVALUATION).is_file() for place in places.values())):
        opened = _held(opened, recipe, list(options_of.values()))
    rows, team = [], join(options.get("device"))
    for label, said in options_of.items():
        runs: list[dict[str, Any]] = []
        for seed in seeds:
            place = places[label, seed]
            run = train(opened, place, recipe=recipe, seed=seed, resume=resume, **said)
            runs.append({"seed": seed, "folder": str(place), "metrics": run.metrics})
            if team.leads:
                _teller.info("%s, seed %d: Recall@1 %.2f %%", label, seed, 100 * run.metrics["recall_at_1"])
        printed = [row._asdict() for row in published(name, label)]
        rows.append({"loss": label, **_spread([run["metrics"] for run in runs]), "runs": runs, "published": printed})
    result = {"data": opened.source or repr(opened), "benchmark": name, "rows": rows}
    if team.leads:
        RunFolder(folder).write_json("comparison.json", result)
    return result


def _spread(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """The mean and the deviation of every metric over the seeds."""
    measured = {k: [metrics[k] for metrics in found] for k, v in found[0].items() if type(v) is float}
    return {
        "mean": {k: fmean(values) for k, values in measured.items()},
        "deviation": {k: stdev(values) if len(values) > 1 else None for k, values in measured.items()},
    }


def _distinct(seeds: Iterable[int]) -> list[int]:
    if not isinstance(seeds, Iterable):
        raise TypeError(f"seeds is {seeds!r}; give a list, such as range({seeds!r})")
    listed = list(seeds)
    if len(set(listed)) < len(listed):
        raise ValueError(f"seeds are {listed}; give each once")
    return listed


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]+", "_", label)


def _refuse_labels_without_a_folder(labels: Iterable[str]) -> None:
    taken: dict[str, str] = {}
    for label in labels:
        name = _file_name(label)
        if not name.strip("."):
            raise ValueError(f"the label {label!r} names no folder; give another")
        if name in taken:
            raise ValueError(f"the label {label!r} names the same folder as {taken[name]!r}; give another")
        taken[name] = label


def _held(data: Dataset, recipe: str | None, runs: Sequence[Mapping[str, Any]]) -> Dataset:
    """The data with their pictures decoded once, where all can be read and all runs want them of one size.

    What one of the runs would refuse is refused here, before another has trained for long.
    """
    team = join(runs[0].get("device"))
    # Each run will say and draw the same again.
    with warnings.catch_warnings(), torch.random.fork_rng(team.gpus):
        warnings.simplefilter("ignore")
        decided = [decide(data, resolve(recipe, run, data), team)[0] for run in runs]
    if data.images is None or isinstance(data.images, Tensor):
        return data
    sizes = {settings.stored_size or settings.resize for settings in decided}
    if len(sizes) > 1:
        return data
    with warnings.catch_warnings(), telling_how_to_skip():
        warnings.filterwarnings("ignore", message=".*images were skipped")
        held = data_room.hold(data, sizes.pop(), folder=decided[0].cache_folder, on_error=decided[0].unreadable)
    # Each run leaves out what cannot be read itself: it knows its examples by their places among all.
    return held if len(held) == len(data) else data


def _chosen(losses: Iterable[str] | Mapping[str, Mapping[str, Any]], data: Dataset) -> dict[str, dict[str, Any]]:
    """The options of each loss by its label; those of a recipe's are its paper's for these data."""
    if isinstance(losses, Mapping):
        for label, own in losses.items():
            if not isinstance(own, Mapping):
                raise TypeError(f"the options of {label!r} are {own!r}; give a dictionary, such as {{'loss': 'raw'}}")
        return {label: dict(own) for label, own in losses.items()}
    if isinstance(losses, str):
        raise TypeError(f"losses is {losses!r}; give a list of names")
    chosen = {}
    for name in losses:
        if not isinstance(name, str):
            raise TypeError(f"losses has {name!r}; give names, or a dictionary from labels to options")
        if name in RECIPES:
            chosen[name] = {k: v for k, v in recipe_for(name, data).items() if k in ("loss", "loss_options")}
        elif name in LOSSES:
            chosen[name] = {"loss": name}
        else:
            raise ValueError(f"there is no loss {name!r}; {nearest(name, {*LOSSES, *RECIPES})}")
    return chosen
