"""Read the folder of a run, finished or not."""

import json
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tuplet import data as datasets
from tuplet.data import CentreCrop, Dataset
from tuplet.progress import track
from tuplet.reports.examples import ShownExamples, as_webp, read_kept
from tuplet.threads import map_in_threads

#: What a folder with a file of this name is, and the command that writes it.
_KINDS = {"run.json": ("run", "train"), "comparison.json": ("comparison", "compare"), "tuning.json": ("tuning", "tune")}


@dataclass(frozen=True, eq=False)
class RunLog:
    """The files that a run has written so far: `about` is run.json, `events` is events.jsonl."""

    folder: Path
    about: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run."""
        return dict(self.about["settings"])

    @property
    def source(self) -> str:
        """The name of the dataset."""
        return Path(self.about["data"]).name

    def of_kind(self, event: str) -> list[dict[str, Any]]:
        """Return the events of one kind, in order."""
        return [each for each in self.events if each["event"] == event]


@dataclass(frozen=True, eq=False)
class FinishedRun(RunLog):
    """A finished run: settings, events, metrics, and the vectors of the test examples.

    `metrics` is evaluation.json. `indices` (N,) are the positions of the rows of `embeddings` and `labels` in the
    dataset. `data` is None if the dataset is gone or has changed; `missing` is then the reason. `is_query` marks the
    queries among the rows, where the others are their gallery.
    """

    metrics: dict[str, Any]
    embeddings: Tensor
    labels: Tensor
    indices: Tensor
    data: Dataset | None
    missing: str
    shown: ShownExamples
    is_query: Tensor | None = None

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Metrics to compare with, by the name of the baseline; empty if the evaluation has none."""
        start = self.metrics.get("start")
        return {**({"before training": start} if start else {}), **self.metrics.get("baselines", {})}

    @cached_property
    def targets(self) -> Tensor:
        """The labels by which examples are the same: (N, L), padded with −1; L is 1 unless examples have several."""
        if self.data is None or self.data.targets.ndim == 1:
            return self.labels[:, None]
        return self.data.targets[self.indices]

    @property
    def has_groups(self) -> bool:
        """True if a query does not search among the examples of its class and its group."""
        return self.data is not None and self.data.groups is not None

    def groups_of(self, rows: Tensor) -> Tensor:
        """Return the groups of rows; all 0 without groups."""
        if self.data is None or self.data.groups is None:
            return torch.zeros_like(rows)
        return self.data.groups.codes[self.indices[rows]]

    def thumbnails(self, rows: Sequence[int], size: int, progress: str) -> list[bytes]:
        """Return the central square of the image of each row as WebP; b"" if it is not known."""
        if self.data is not None and self.data.images is not None:
            made = track(map_in_threads(lambda row: self._thumbnail(row, size), rows, 64), progress, total=len(rows))
            self.shown.images.update({(size, row): image for row, image in zip(rows, made, strict=True)})
        return [self.shown.images.get((size, row), b"") for row in rows]

    def _thumbnail(self, row: int, size: int) -> bytes:
        assert self.data is not None
        index = int(self.indices[row])
        aspect = None if self.data.aspects is None else float(self.data.aspects[index])
        return as_webp(CentreCrop(size, size).crop(self.data.image(index, least=2 * size), aspect))

    def queries_and_gallery(self) -> tuple[Tensor, Tensor]:
        """Return the rows of the queries and of the gallery: all rows twice, unless the run tested with a gallery."""
        everything = torch.arange(len(self.labels))
        if self.is_query is None:
            return everything, everything
        return everything[self.is_query], everything[~self.is_query]


def read_run(
    folder: str | os.PathLike[str], data: Dataset | str | os.PathLike[str] | None = None
) -> FinishedRun | RunLog:
    """Read the folder of a run; the log alone if it is not finished.

    `data` is its dataset, or the path to which it was moved.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the run folder {folder} does not exist; make one with: tuplet train DATA --out {folder}"
        )
    about, is_finished = read_about(folder / "run.json"), (folder / "evaluation.json").is_file()
    events = _read_events(folder / "events.jsonl", is_finished)
    if not is_finished:
        return RunLog(folder, about, events)
    metrics = read_json(folder / "evaluation.json")
    _check(folder / "evaluation.json", metrics, recall_at_1=float)
    try:
        vectors = load_file(_existing(folder / "vectors.safetensors"))
    except SafetensorError as error:
        raise ValueError(
            f"{folder / 'vectors.safetensors'} cannot be read: {error}; train or evaluate again"
        ) from error
    for name in ("embeddings", "labels", "indices"):
        if name not in vectors:
            raise ValueError(f"{folder / 'vectors.safetensors'} has no {name}; train or evaluate again")
    rows = vectors["embeddings"], vectors["labels"], vectors["indices"]
    if isinstance(data, str | os.PathLike):
        data = datasets.open(data, complete=False, **about.get("opened_with", {}))
    if data is not None and not _contains(data, *rows[1:]):
        raise ValueError(
            f"{data} does not contain the test examples of the run in {folder}; give the dataset of that run"
        )
    data, missing = (data, "") if data is not None else _reopen(about, *rows[1:])
    shown = _shown(folder, about["data"], data, *rows[1:])
    return FinishedRun(folder, about, events, metrics, *rows, data, missing, shown, vectors.get("is_query"))


def _shown(folder: Path, source: str, data: Dataset | None, labels: Tensor, indices: Tensor) -> ShownExamples:
    """Describe the test examples by the dataset, by what the run has kept of it, or by numbers alone."""
    positions = indices.tolist()
    if data is None:
        by_number = [f"number {i}" for i in positions]
        kept = read_kept(folder, positions)
        return kept or ShownExamples(positions, [str(label) for label in labels.tolist()], by_number, has_images=False)
    names = data.class_names
    prefix = os.path.commonprefix(names).rfind("/") + 1  # noqa: RUF071 -- cut at a folder
    class_names = [_readable(names[label][prefix:]) for label in labels.tolist()]
    return ShownExamples(positions, class_names, [_file(data, source, i) for i in positions], data.images is not None)


def _readable(name: str) -> str:
    """Return the name of a class as the search page shows it, without its number and with blanks.

    >>> _readable("001.Black_footed_Albatross")
    'Black footed Albatross'
    """
    return re.sub(r"^\d+\.", "", name).replace("_", " ")


def _file(data: Dataset, source: str, index: int) -> str:
    """Return the file of an example, relative to the dataset, or its number if the dataset has no files."""
    if data.images is None or isinstance(data.images, Tensor):
        return f"number {index}"
    path = os.path.abspath(data.path(index))
    parent = next((folder for folder in (source, os.path.dirname(source)) if path.startswith(f"{folder}/")), "")
    return path.removeprefix(f"{parent}/") if parent else path


def _read_events(path: Path, is_finished: bool) -> list[dict[str, Any]]:
    """Read the log; a last line that is still being written is left out."""
    lines = _existing(path).read_text(encoding="utf-8").split("\n")
    lines = lines if is_finished else lines[:-1]
    return [_parse(path, line) for line in lines if line]


def _reopen(about: Mapping[str, Any], labels: Tensor, indices: Tensor) -> tuple[Dataset | None, str]:
    """Return the dataset of a run and "", or None and the reason if it is gone or has changed."""
    source = str(about["data"])
    if source.startswith("Dataset("):
        return None, "the dataset was in memory; give it to tuplet.reports.write as data="
    if source != "glyphs" and not Path(source).exists():
        return None, f"{source} does not exist"
    try:
        data = datasets.open(source, complete=False, **about.get("opened_with", {}))
    except (OSError, ValueError, ImportError) as error:
        return None, str(error)
    if not _contains(data, labels, indices):
        return None, f"{source} has changed since this run"
    return data, ""


def _contains(data: Dataset, labels: Tensor, indices: Tensor) -> bool:
    """Return True if the dataset has these labels at these indices."""
    return int(indices.max()) < len(data) and torch.equal(data.labels[indices], labels)


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if path.name in _KINDS:
        kind, command = _KINDS[path.name]
        raise FileNotFoundError(
            f"{path.parent} is no {kind}: it has no {path.name}; give the folder that tuplet {command} wrote"
        )
    raise FileNotFoundError(
        f"{path.parent} has no {path.name}, so it contains no complete run; finish it with: "
        f"tuplet train DATA --out {path.parent}"
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run; raise an error that names the file if it is missing or damaged."""
    return _parse(path, _existing(path).read_text(encoding="utf-8"))


def read_about(path: Path) -> dict[str, Any]:
    """Read a run.json; raise an error if it lacks what a report and an evaluation need."""
    about = read_json(path)
    _check(path, about, data=str, settings=dict, tuplet=str)
    return about


def _check(path: Path, content: dict[str, Any], **kinds: type) -> None:
    """Raise ValueError if a file of a run lacks what the report needs."""
    for name, kind in kinds.items():
        if not isinstance(content.get(name), kind):
            given = reprlib.repr(content[name]) if name in content else "missing"
            raise ValueError(f"{path} is damaged: {name} is {given}; train again")


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {str(error)[:100]}; train again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object but a {type(content).__name__}; train again")
    return content
