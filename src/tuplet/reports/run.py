"""What a run folder holds, read back for people to look at."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tuplet import data as datasets
from tuplet.data import Dataset


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its settings, its history, its metrics, and the vectors of its test examples.

    `indices` (N,) place the rows of `embeddings` and `labels` in the dataset. `data` is the dataset where it can still
    be opened and is the same one; where not, `missing` says why.
    """

    folder: Path
    about: dict[str, Any]
    events: list[dict[str, Any]]
    metrics: dict[str, Any]
    embeddings: Tensor
    labels: Tensor
    indices: Tensor
    data: Dataset | None
    missing: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the run was made with."""
        return dict(self.about["settings"])

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Metrics by name to compare with, where the evaluation has some."""
        return dict(self.metrics.get("baselines", {}))

    def of_kind(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind, in order."""
        return [each for each in self.events if each["event"] == event]

    def class_name(self, row: int) -> str:
        """What the class of a row is called, without the folder that all classes lie in."""
        label = int(self.labels[row])
        return str(label) if self.data is None else self.data.class_names[label][self._folder_of_all :]

    @cached_property
    def _folder_of_all(self) -> int:
        alike = os.path.commonprefix(self.data.class_names if self.data else ())  # noqa: RUF071 -- cut at a folder below
        return alike.rfind("/") + 1

    def example(self, row: int) -> str:
        """Which example of the data a row is: its file below them, or its number where they are no files."""
        number = int(self.indices[row])
        if self.data is None or self.data.images is None or isinstance(self.data.images, Tensor):
            return f"number {number}"
        path, source = os.path.abspath(self.data.path(number)), str(self.about["data"])
        above = next((place for place in (source, os.path.dirname(source)) if path.startswith(f"{place}/")), "")
        return path.removeprefix(f"{above}/") if above else path

    def sides(self) -> tuple[Tensor, Tensor]:
        """The rows that query and the rows that are searched: all and all, unless the data have lists for both."""
        everything = torch.arange(len(self.labels))
        if self.data is None or self.data.splits is None:
            return everything, everything
        splits = [self.data.splits[i] for i in self.indices.tolist()]
        if set(splits) != {"query", "gallery"}:
            return everything, everything
        query = torch.tensor([split == "query" for split in splits])
        return everything[query], everything[~query]


def read(folder: str | os.PathLike[str], data: Dataset | str | os.PathLike[str] | None = None) -> Run:
    """Read a run folder; `data` spares opening the dataset again, or says where it lies now."""
    folder = Path(folder)
    if isinstance(data, str | os.PathLike):
        data = datasets.open(data, complete=False)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the run folder {folder} does not exist; make one with: tuplet train DATA --out {folder}"
        )
    about, metrics = read_json(folder / "run.json"), read_json(folder / "evaluation.json")
    history = _present(folder / "events.jsonl")
    events = [_parsed(history, line) for line in history.read_text(encoding="utf-8").splitlines() if line]
    try:
        vectors = load_file(_present(folder / "vectors.safetensors"))
    except SafetensorError as error:
        raise ValueError(
            f"{folder / 'vectors.safetensors'} cannot be read: {error}; train or evaluate again"
        ) from error
    rows = vectors["embeddings"], vectors["labels"], vectors["indices"]
    if data is not None and not _holds(data, *rows[1:]):
        raise ValueError(f"{data} does not hold the examples that the run in {folder} was tested on; give its own data")
    data, missing = (data, "") if data is not None else _reopen(about["data"], *rows[1:])
    return Run(folder, about, events, metrics, *rows, data, missing)


def _reopen(source: str, labels: Tensor, indices: Tensor) -> tuple[Dataset | None, str]:
    """The dataset of a run, if it is still there and still the same; or why it is not."""
    if source.startswith("Dataset("):
        return (
            None,
            "The pictures are not shown: the run's data were in memory; tuplet.reports.write takes them as data=.",
        )
    try:
        data = datasets.open(source, complete=False)
    except (OSError, ValueError, ImportError) as error:
        return None, f"The pictures are not shown: {error}."
    if not _holds(data, labels, indices):
        return None, f"The pictures are not shown: {source} no longer holds the examples that this run was tested on."
    return data, ""


def _holds(data: Dataset, labels: Tensor, indices: Tensor) -> bool:
    """Whether the examples at these places have these labels."""
    return int(indices.max()) < len(data) and torch.equal(data.labels[indices], labels)


def _present(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}, so it holds no finished run; train to the end with: "
            f"tuplet train DATA --out {path.parent}"
        )
    return path


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run says; one that is missing or damaged is named."""
    return _parsed(path, _present(path).read_text(encoding="utf-8"))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}; the run must write it again") from error
