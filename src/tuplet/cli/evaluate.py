"""`tuplet evaluate`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tuplet.cli.arguments import Boxes, Columns, Device, Model, Pattern, open_options
from tuplet.cli.errors import print_stderr
from tuplet.cli.tables import percent, print_table
from tuplet.errors import OptionError, opt

if TYPE_CHECKING:
    from tuplet.data import Dataset


def evaluate(
    model: Model,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="As for tuplet train. [the data of the run]")
    ] = None,
    on: Annotated[Literal["test", "train", "all"], typer.Option(help="The examples to measure on.")] = "test",
    metric: Annotated[
        Literal["euclidean", "cosine", "dot"], typer.Option(help="How to compare vectors.")
    ] = "euclidean",
    bootstrap: Annotated[int, typer.Option(metavar="N", min=0, help="Resamples for 95 % intervals; 0 is none.")] = 0,
    rerank: Annotated[bool, typer.Option("--rerank", help="Measure with re-ranked results too.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of k-means, verification and resampling.")] = 0,
    unreadable: Annotated[
        Literal["stop", "skip"] | None,
        typer.Option(help="Stop at an image that cannot be read, or skip it. [as the run did, or stop]"),
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    columns: Columns = None,
    pattern: Pattern = None,
    boxes: Boxes = False,
) -> None:
    """Measure an embedder: Recall@K, mAP, MAP@R, R-precision, MRR, NMI, F1, AMI and verification.

    A folder of faces in the layout of LFW is also measured by LFW's protocols.

    Examples:
      tuplet evaluate runs/photos                   the run's best embedder on its own test split
      tuplet evaluate runs/photos other/ --on all   on all classes of another folder
      tuplet evaluate dinov2_small photos/          without training
      tuplet evaluate runs/faces lfw/               pairs in ten folds, closed and open set
      tuplet evaluate runs/photos --json > metrics.json
    """
    from tuplet.cli.runs import load_embedder, open_data, read_run_json
    from tuplet.training.evaluate import choose_examples, measure
    from tuplet.training.papers import recall_ks

    embedder = load_embedder(model, device)
    opened = open_data(model, data, "evaluate", **open_options(columns, pattern, boxes))
    settings = (read_run_json(model) or {}).get("settings", {})
    if on != "all" and opened.splits is None and len(opened.classes) < 3 and settings.get("split") != "images":
        count = len(opened.classes)
        raise OptionError(f"the data have {count} class{'es' * (count > 1)}", f"measure all with {opt('on', 'all')}")
    only_tests = opened.splits is not None and "train" not in opened.splits
    chosen = choose_examples(opened, on) if on == "all" or only_tests or not settings else _split(opened, settings, on)
    unreadable = unreadable or settings.get("unreadable", "stop")
    metrics = measure(embedder, chosen, recall_ks(opened), metric, bootstrap, rerank, seed, unreadable)
    if as_json:
        print(json.dumps(metrics, indent=2))
    else:
        print_metrics(metrics)
    measured, count = metrics["classes"], len(opened.classes)
    if data is not None and on != "all" and opened.splits is None and measured < count:
        print_stderr(f"measured {measured} of {count} classes, those of the {on} split; --on all measures all")
    if opened.protocol == "lfw" and opened.pairs is None:
        print_stderr(f"warning: {opened.source} has no pairs.txt, so no pairs are verified; put LFW's list into it")


def _split(data: "Dataset", settings: Mapping[str, Any], on: str) -> "Dataset":
    """Return the training or test examples, as the run has split the data."""
    from tuplet.training.settings import Settings
    from tuplet.training.split import SPLIT_OPTIONS, select_measured, split_examples

    own = {name: settings[name] for name in SPLIT_OPTIONS if name in settings}
    split = split_examples(data, Settings(**own))
    if on == "train":
        return data.select(split.train)
    return select_measured(data, split.test, split.test_gallery)


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Print a table of metrics: value, 95 % interval if there is one, meaning."""
    from tuplet.reports.metrics import describe_gain, describe_metrics

    intervals = metrics.get("intervals", {})
    columns = ["metric", "value", *(["95 %"] if intervals else []), "meaning"]
    rows = []
    for name, (title, value, meaning) in describe_metrics(metrics).items():
        interval = [" to ".join(map(percent, intervals.get(name, ())))] if intervals else []
        rows.append([title, percent(value), *interval, meaning])
    print_table(columns, rows, numbers=("value", "95 %"))
    if gain := describe_gain(metrics):
        print(f"\n{gain}")
    if metrics["classes"] < 2:
        print_stderr("warning: all examples are of one class, so every result is right; test with more classes")
