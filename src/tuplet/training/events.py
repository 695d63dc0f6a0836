"""The log of a run: JSON lines, TensorBoard if it is installed, callbacks, Weights & Biases and MLflow."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

from tuplet.atomic import explain_write_errors
from tuplet.errors import OptionError, OptionTypeError, did_you_mean, first_line, opt
from tuplet.extras import need

_logger = logging.getLogger("tuplet")


class StopTraining(Exception):  # noqa: N818 - a decision, not an error
    """Raised by a callback to stop the run at once; `tuplet.train` passes it on. For runs of one process."""


class Callback:
    """Watch a run: override the methods that you need, and give an object as `tuplet.train(callbacks=[…])`.

    The methods are called in the main process alone.

    An exception in a callback is logged and ends the callback, not the run. A resumed run may report the steps after
    its last checkpoint a second time.

    >>> class Print(Callback):
    ...     def on_evaluate(self, step, values):
    ...         print(step, values["recall_at_1"])
    """

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Get the numbers of a logged step (`log_every`): loss, lr, gradient_norm, examples_per_second, seconds."""

    def on_evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Get the metrics of an evaluation: recall_at_1 and so on."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Get the path of a checkpoint that was written."""

    def on_end(self, step: int, values: Mapping[str, Any]) -> None:
        """Get the result of the run: best_step, recall_at_1 on the test split, seconds."""


#: The method of a callback for each kind of event; other events stay in the log.
_METHODS = {"train": "on_step", "evaluation": "on_evaluate", "end": "on_end"}


class Events:
    """Appends events to `events.jsonl`, one JSON object per line; passes them to TensorBoard and to callbacks.

    A checkpoint holds the length of the log. A resumed run truncates the log to it, so that no step is logged twice.

    Args:
        folder: the folder of the run.
        length: number of bytes of an existing log to keep.
        step: the last step of the log.
        callbacks: objects that are told of the events.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> events = Events(folder, length=0, step=0)
    >>> events.write("train", step=1, loss=0.5)
    >>> events.sync(), (folder / "events.jsonl").read_text().splitlines()
    (43, ['{"event": "train", "step": 1, "loss": 0.5}'])
    """

    def __init__(self, folder: Path, length: int, step: int, callbacks: Iterable[Callback] = ()) -> None:
        self.path = folder / "events.jsonl"
        self._file = self.path.open("ab", buffering=0)
        # Truncating to more than the size would fill up a log that was removed or shortened.
        self._file.truncate(min(length, os.fstat(self._file.fileno()).st_size))
        self._tensorboard = _tensorboard(folder, step)
        self._callbacks = list(callbacks)

    def write(self, event: str, step: int, **values: Any) -> None:
        """Append an event."""
        # JSON has no NaN and no infinity.
        values = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in values.items()}
        line = json.dumps({"event": event, "step": step, **values}, ensure_ascii=False)
        with explain_write_errors(self.path):
            self._append(f"{line}\n".encode(errors="backslashreplace"))  # a path that is not UTF-8
        if self._tensorboard is not None:
            for name, value in _numbers(event, values).items():
                self._tensorboard.add_scalar(name, value, step)
        if event in _METHODS:
            self._tell(_METHODS[event], step, values)

    def checkpoint(self, step: int, path: Path) -> None:
        """Tell the callbacks that a checkpoint was written."""
        self._tell("on_checkpoint", step, path)

    def _tell(self, method: str, step: int, what: Any) -> None:
        for callback in list(self._callbacks):
            try:
                getattr(callback, method)(step, what)
            except StopTraining:
                raise
            except Exception as error:  # of any type: a callback must not end a run
                self._callbacks.remove(callback)
                name = type(callback).__name__
                _logger.warning("the callback %s failed in %s (%s) and is left out", name, method, first_line(error))

    def _append(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]

    def sync(self) -> int:
        """Wait until the log is on the disk, and return its length in bytes."""
        with explain_write_errors(self.path):
            os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()


def _tensorboard(folder: Path, step: int) -> Any:
    """Return a writer that discards events after this step, or None if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)


def _numbers(event: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {f"{event}/{name}": float(value) for name, value in values.items() if isinstance(value, int | float)}


class _Tracker(Callback):
    """Sends numbers to a service under names such as train/loss, evaluation/recall_at_1 and end/recall_at_1."""

    log: Callable[..., object]
    finish: Callable[[], object]

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self.log(_numbers("train", values), step=step)

    def on_evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        self.log(_numbers("evaluation", values), step=step)

    def on_end(self, step: int, values: Mapping[str, Any]) -> None:
        self.log(_numbers("end", values), step=step)
        self.finish()


class WandbTracker(_Tracker):
    """Logs to Weights & Biases; its variables WANDB_PROJECT and WANDB_MODE choose the project and the mode."""

    def __init__(self, wandb: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        same = folder / "wandb.id"
        if not same.is_file():
            same.write_text(uuid4().hex[:8])
        run = wandb.init(id=same.read_text(), resume="allow", name=folder.name, dir=folder, config=dict(settings))
        self.log, self.finish = run.log, run.finish


class MlflowTracker(_Tracker):
    """Logs to MLflow; its variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME choose server and experiment."""

    def __init__(self, mlflow: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        same = folder / "mlflow.id"
        known = same.read_text() if same.is_file() else None
        run = mlflow.start_run(run_id=known, run_name=None if known else folder.name)
        if known is None:
            same.write_text(run.info.run_id)
            mlflow.log_params({name: str(value)[:500] for name, value in settings.items()})
        self.log, self.finish = mlflow.log_metrics, mlflow.end_run


_TRACKERS: dict[str, type[WandbTracker] | type[MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


def start_tracker(name: str, folder: Path, settings: Mapping[str, Any]) -> Callback:
    """Start a tracker for the run in a folder; a resumed run continues its record there."""
    try:
        return _TRACKERS[name](_tracker_package(name), folder, settings)
    except Exception as error:  # of a type of the tracker, such as for a missing login
        raise OptionError(f"{opt('log')} is {name!r}, which does not start ({first_line(error)})") from error


def check_callback(callback: Callback | str) -> None:
    """Raise an error for what is no callback, no name of a tracker, or a tracker whose package is not installed.

    >>> check_callback("wand")
    Traceback (most recent call last):
    tuplet.errors.OptionError: log is 'wand'; did you mean 'wandb'?
    """
    if isinstance(callback, str):
        if callback not in _TRACKERS:
            raise OptionError(f"{opt('log')} is {callback!r}; {did_you_mean(callback, _TRACKERS)}")
        _tracker_package(callback)
    elif not isinstance(callback, Callback):
        raise OptionTypeError(
            f"{opt('callbacks')} has {callback!r}; give objects of subclasses of tuplet.training.Callback, or names of "
            "trackers"
        )


def _tracker_package(name: str) -> Any:
    return need(name, extra=name, purpose=f"logging to {name}")
