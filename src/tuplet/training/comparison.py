"""Compare losses under one protocol with several seeds, next to the results that the papers print."""

import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from tuplet import data as datasets
from tuplet.data import Dataset
from tuplet.embedding.pipeline import suggest_skipping
from tuplet.errors import OptionError, OptionTypeError, OptionWarning, did_you_mean, opt
from tuplet.losses import LOSSES
from tuplet.training.distributed import World, join_processes, main_raises_first
from tuplet.training.folder import EVALUATION, RunFolder, run_path
from tuplet.training.papers import benchmark, published
from tuplet.training.plan import try_plan
from tuplet.training.recipes import RECIPES, recipe_for
from tuplet.training.run import train
from tuplet.training.settings import check_names

_logger = logging.getLogger("tuplet")
#: The label of the row of the model before training.
UNTRAINED = "untrained"


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
    """Train every loss with every seed under one protocol; return means and standard deviations of the metrics.

    `recipe` and `options` are the protocol. If it does not set the sampler or the length of embeddings, each loss gets
    those that it needs. No run falls back to the model before training unless `keep_start=True` is given.

    Args:
        data: what to train on, as in `tuplet.train`.
        losses: names of losses, or of recipes, of which only the loss and its options are used; or a dictionary from
            your own labels to options, such as {"sharp": {"loss": "ranked_list", "loss_options": {"alpha": 1.4}}}.
        seeds: one run of each loss per seed.
        out: a folder, which gets a folder for each run, and `comparison.json`.
        recipe: the name of a paper's settings, as in `tuplet.train`.
        resume: continue an interrupted comparison; False starts all runs again.
        **options: options of all runs.

    Returns:
        Plain data, also written to `out/comparison.json`: for each loss its runs, the mean and the standard deviation
        (None for one seed) of every metric, and the papers' rows for the loss on this benchmark. The first row,
        "untrained", is the start of the first run.

    >>> import tempfile, torch
    >>> from tuplet.data import from_features
    >>> data = from_features(torch.eye(8).repeat_interleave(5, 0), torch.arange(40) // 5)
    >>> found = compare(data, ["npair", "raw_vthm"], [0], out=tempfile.mkdtemp(), batch_size=8, dim=4, steps=2)
    >>> [(row["loss"], row["std"]["recall_at_1"]) for row in found["rows"]]
    [('untrained', None), ('npair', None), ('raw_vthm', None)]
    """
    with main_raises_first():
        folder = run_path(out, resume, data)
        dataset = data if isinstance(data, Dataset) else datasets.open(data)
        # A loss that falls back to the start shows nothing of itself, and the start has a row of its own.
        protocol = options if recipe else {"keep_start": False, **options}
        by_label = {label: {**protocol, **own} for label, own in _options_by_label(losses, dataset).items()}
        seeds = _check_seeds(seeds)
        if not by_label or not seeds:
            raise OptionError("there is nothing to compare; give at least one loss and one seed")
        for own in by_label.values():
            check_names(own)
            if "seed" in own:
                raise OptionTypeError(f"{opt('seed')} is {own['seed']!r}; a comparison takes {opt('seeds')} instead")
        folders = _folders(folder, by_label)
        name = benchmark(dataset)
        finished = [(folders[label] / f"seed_{seed}" / EVALUATION).is_file() for label in by_label for seed in seeds]
        world = join_processes(options.get("device"))
        if not (resume and all(finished)):
            dataset = decode_once(dataset, recipe, list(by_label.values()), world)
        rows: list[dict[str, Any]] = []
        for label, own in by_label.items():
            runs: list[dict[str, Any]] = []
            for seed in seeds:
                run = train(dataset, folders[label] / f"seed_{seed}", recipe=recipe, seed=seed, resume=resume, **own)
                runs.append({"seed": seed, "folder": str(run.folder), "metrics": run.metrics})
                if world.is_main:
                    _logger.info("%s, seed %d: Recall@1 %.2f %%", label, seed, 100 * run.metrics["recall_at_1"])
            printed = [row._asdict() for row in published(name, label)]
            rows.append({"loss": label, **_mean_and_std(runs), "runs": runs, "published": printed})
        start = {"metrics": rows[0]["runs"][0]["metrics"]["start"]}
        rows.insert(0, {"loss": UNTRAINED, **_mean_and_std([start]), "runs": [], "published": []})
        result = {"data": dataset.source or repr(dataset), "benchmark": name, "rows": rows}
        if world.is_main:
            RunFolder(folder).write_json("comparison.json", result)
        return result


def _mean_and_std(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return the mean and the standard deviation over the seeds of every metric that all of them have.

    >>> runs = [{"metrics": {"recall_at_1": 0.5}}, {"metrics": {"recall_at_1": 0.7, "average_with_start": 0.4}}]
    >>> _mean_and_std(runs[::-1])["mean"]
    {'recall_at_1': 0.6}
    """
    names = [name for name in runs[0]["metrics"] if all(type(run["metrics"].get(name)) is float for run in runs)]
    measured = {name: [run["metrics"][name] for run in runs] for name in names}
    return {
        "mean": {name: fmean(values) for name, values in measured.items()},
        "std": {name: stdev(values) if len(values) > 1 else None for name, values in measured.items()},
    }


def _check_seeds(seeds: Iterable[int]) -> list[int]:
    if not isinstance(seeds, Iterable):
        raise OptionTypeError(f"{opt('seeds')} is {seeds!r}; give a list, such as range({seeds!r})")
    listed = list(seeds)
    if len(set(listed)) < len(listed):
        raise OptionError(f"{opt('seeds')} are {listed}; give each only once")
    return listed


def _folders(folder: Path, labels: Iterable[str]) -> dict[str, Path]:
    """Return the folder of each label; raise an error if two labels share one."""
    labels_of: dict[str, str] = {}
    for label in labels:
        name = re.sub(r"[^\w.-]+", "_", label)
        if not name.strip("."):
            raise ValueError(f"the label {label!r} cannot name a folder; give another")
        if name in labels_of:
            raise ValueError(f"the label {label!r} names the same folder as {labels_of[name]!r}; give another")
        labels_of[name] = label
    return {label: folder / name for name, label in labels_of.items()}


def decode_once(data: Dataset, recipe: str | None, runs: Sequence[Mapping[str, Any]], world: World) -> Dataset:
    """Return the data with decoded images, if all images can be read and all runs want them of one size.

    Errors in the options of any run are raised here, before another run has trained for long.
    """
    plans = (try_plan(data, recipe, run, world) for run in runs)
    planned = [(plan.settings, plan.embedder.preprocessing) for plan in plans]
    if data.images is None or isinstance(data.images, Tensor):
        return data
    crops = {
        (settings.stored_size or settings.resize, prepared.crop if prepared else None) for settings, prepared in planned
    }
    if len(crops) > 1:
        return data
    (stored, crop), first = crops.pop(), planned[0][0]
    with warnings.catch_warnings(), suggest_skipping():
        warnings.simplefilter("ignore", OptionWarning)  # of skipped images: each run warns of them itself
        decoded = datasets.hold(data, stored, folder=first.cache_folder, unreadable=first.unreadable, crop=crop)
    # Each run skips unreadable images itself, since `vectors.safetensors` holds indices into the original data.
    return decoded if len(decoded) == len(data) else data


def _options_by_label(
    losses: Iterable[str] | Mapping[str, Mapping[str, Any]], data: Dataset
) -> dict[str, dict[str, Any]]:
    """Return the options of each loss; the loss of a recipe has its paper's options for these data."""
    if isinstance(losses, Mapping):
        for label, own in losses.items():
            if not isinstance(own, Mapping):
                raise TypeError(f"the options of {label!r} are {own!r}; give a dictionary, such as {{'loss': 'raw'}}")
        return {label: dict(own) for label, own in losses.items()}
    if isinstance(losses, str):
        raise OptionTypeError(f"{opt('losses')} is {losses!r}; give a list of names")
    by_label = {}
    for name in losses:
        if not isinstance(name, str):
            raise OptionTypeError(f"{opt('losses')} has {name!r}; give names, or a dictionary from labels to options")
        if name in RECIPES:
            by_label[name] = {k: v for k, v in recipe_for(name, data).items() if k in ("loss", "loss_options")}
        elif name in LOSSES:
            by_label[name] = {"loss": name}
        else:
            raise OptionError(f"there is no loss {name!r}; {did_you_mean(name, {*LOSSES, *RECIPES})}")
    return by_label
