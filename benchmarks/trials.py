"""Read and append the trials of the hyper-parameter search: the rows of trials.csv in a folder of results."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tuplet.atomic import lock, write_atomic

_METRICS = ("recall_at_1", "map_at_r", "nmi")
#: `options` is JSON, the keywords of `tuplet.train`; `error` is set if the run diverged.
_ABOUT = ("steps", "seed", "seconds", "device", "versions", "error", "options", "command")
COLUMNS = ("trial", "dataset", "method", *_METRICS, *_ABOUT)
_NAME = "trials.csv"


def read(folder: Path) -> Sequence[Mapping[str, Any]]:
    """Return the trials of a folder with `options` and `metrics` as dictionaries; empty where there is no file."""
    path = folder / _NAME
    if not path.is_file():
        return ()
    state = path.stat()
    return _parse(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _parse(path: Path, changed: int, size: int) -> Sequence[Mapping[str, Any]]:
    """Parse a file; its time of change and its size are part of the cache's key."""
    with path.open(newline="") as file:
        return tuple(_from_row(row) for row in csv.DictReader(file))


def _from_row(row: dict[str, str]) -> dict[str, Any]:
    trial: dict[str, Any] = {**row, "options": json.loads(row["options"])}
    if not row["error"]:
        trial["metrics"] = {name: float(row[name]) for name in _METRICS}
    return trial


def find(folders: Sequence[Path], dataset: str, method: str, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the trial with exactly these options, from the first folder that has it, or None."""
    for folder in folders:
        for trial in read(folder):
            if (trial["dataset"], trial["method"], trial["options"]) == (dataset, method, options):
                return trial
    return None


def append(
    folder: Path, name: str, result: Mapping[str, Any], command: Callable[[str], str], also: Sequence[Path] = ()
) -> str:
    """Append a trial and return the name that it gets: `name` and the next free number.

    The file is replaced as a whole under a lock, so that several processes can append and none reads half a row.

    Args:
        folder: where trials.csv is.
        name: what all trials of this method are called, for example "trial_cub200_nra".
        result: the result of the run.
        command: returns the command of the run for the trial's name.
        also: other folders whose numbers are taken too.
    """
    path = folder / _NAME
    with lock(lock_file(path)):
        taken = {trial["trial"] for each in (folder, *also) for trial in read(each)}
        number = next(n for n in range(1, len(taken) + 2) if f"{name}_{n}" not in taken)
        named = f"{name}_{number}"
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
        if not path.is_file():
            writer.writeheader()
        writer.writerow({**_to_row(result), "trial": named, "command": command(named)})
        before = path.read_text() if path.is_file() else ""
        write_atomic(path, lambda part: part.write_text(before + text.getvalue(), newline=""))
    return named


def _to_row(result: Mapping[str, Any]) -> dict[str, Any]:
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    metrics = {name: result["metrics"][name] for name in _METRICS} if "metrics" in result else {}
    options = result["options"]
    about = {"steps": options["steps"], "seed": options["seed"], "options": json.dumps(options), "versions": versions}
    return {**result, **metrics, **about}


def lock_file(path: Path) -> Path:
    """Return the lock file of a result; lock files stay in a folder of their own."""
    folder = path.parent / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{path.name}.lock"
