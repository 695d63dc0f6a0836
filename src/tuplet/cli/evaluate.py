"""`tuplet evaluate`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from tuplet import data as datasets
from tuplet.cli import show
from tuplet.cli.places import embedder_of, run_of
from tuplet.cli.trouble import say
from tuplet.data import Dataset
from tuplet.models import Embedder
from tuplet.reports.metrics import described
from tuplet.training.examples import embed
from tuplet.training.published import recall_ks
from tuplet.training.testing import everything


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or of an embedder.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="As for tuplet train. [the run's own data]")
    ] = None,
    on: Annotated[Literal["test", "train", "all"], typer.Option(help="Which examples.")] = "test",
    metric: Annotated[Literal["euclidean", "cosine", "dot"], typer.Option(help="What near means.")] = "euclidean",
    bootstrap: Annotated[int, typer.Option(metavar="N", min=0, help="Resamples for 95 % intervals; 0 is none.")] = 0,
    seed: Annotated[int, typer.Option(help="Of k-means, verification and resampling.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … [a GPU where there is one]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure an embedder: Recall@K, mAP, MAP@R, R-precision, MRR, NMI, F1, AMI and verification.

    Examples:
      tuplet evaluate runs/photos                   the run's best embedder on its own test split
      tuplet evaluate runs/photos other/ --on all   on all classes of another folder
      tuplet evaluate runs/photos --json > metrics.json
    """
    embedder = embedder_of(model, device)
    about = run_of(model)
    if data is None and about is None:
        raise ValueError(
            f"{model} is an embedder and knows no data; name them: tuplet evaluate {quote(str(model))} DATA"
        )
    opened = datasets.open(data or _own_data(model, str((about or {})["data"])))
    _check_kind(embedder, opened, model)
    chosen = replace(opened, splits=None) if on == "all" else opened.split()[on == "test"]
    settings = (about or {}).get("settings", {})
    pictures = embedder.preprocessing
    size = None if pictures is None else settings.get("stored_size") or pictures.resize
    store = datasets.load(chosen, size, on_error=settings.get("unreadable", "stop"))
    vectors = embed(embedder, store, range(len(store))).float().cpu()
    found = everything(vectors, store.data, recall_ks(opened), seed, metric=metric, bootstrap=bootstrap)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_metrics(found)


def _own_data(run: Path, source: str) -> str:
    """What a run was trained on, if it can still be opened."""
    if source == "glyphs" or Path(source).exists():
        return source
    lost = "were in memory" if source.startswith("Dataset(") else f"are no longer at {source}"
    raise FileNotFoundError(f"the data of {run} {lost}; name them: tuplet evaluate {quote(str(run))} DATA")


def _check_kind(embedder: Embedder, data: Dataset, model: Path) -> None:
    """Refuse data that an embedder cannot take: pictures or vectors where it takes the other, other lengths."""
    kinds = "feature vectors", "pictures"
    takes, holds = kinds[embedder.preprocessing is not None], kinds[data.images is not None]
    name = Path(data.source or "the data").name
    if takes != holds:
        raise ValueError(f"the embedder in {model} takes {takes}, and {name} holds {holds}; give data of its kind")
    width = embedder.config.options.get("features")
    if data.features is not None and width not in (None, data.features.shape[1]):
        raise ValueError(
            f"the embedder in {model} takes vectors of {width} numbers, and those of {name} have "
            f"{data.features.shape[1]}; give the vectors that it was made for"
        )


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Every metric as a table: value, 95 % interval where there is one, meaning."""
    intervals = metrics.get("intervals", {})
    columns = ["metric", "value", *(["95 %"] if intervals else []), "meaning"]
    rows = []
    for name, (title, value, meaning) in described(metrics).items():
        between = [" to ".join(map(show.percent, intervals[name])) if name in intervals else ""] if intervals else []
        rows.append([title, show.percent(value), *between, meaning])
    show.table(columns, rows, numbers=("value", "95 %"))
    if metrics["classes"] < 2:
        say("warning: these examples are of a single class, so that every answer is right; test with more classes")
