"""Trackers of experiments as callbacks: Weights & Biases and MLflow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from tuplet.errors import OptionError, did_you_mean, opt
from tuplet.extras import need
from tuplet.training.events import Callback


class _Tracker(Callback):
    """Logs numbers under the names that `events.jsonl` has: train/loss, evaluation/recall_at_1, end/recall_at_1."""

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Send numbers of a step."""
        raise NotImplementedError

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the numbers of a step."""
        self.log(_numbers("train", values), step)

    def on_evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the metrics of an evaluation."""
        self.log(_numbers("evaluation", values), step)

    def on_end(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the result."""
        self.log(_numbers("end", values), step)


class WandbTracker(_Tracker):
    """Logs to Weights & Biases; a resumed run continues there. Needs `pip install 'tuplet[wandb]'`.

    Its own environment variables choose the project and the mode: WANDB_PROJECT, WANDB_MODE=offline.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        wandb = need("wandb", extra="wandb", purpose="logging to Weights & Biases")
        same = folder / "wandb.id"
        if not same.is_file():
            same.write_text(uuid4().hex[:8])
        self._run = wandb.init(
            id=same.read_text(), resume="allow", name=folder.name, dir=folder, config=dict(about["settings"])
        )

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Send numbers of a step."""
        self._run.log(numbers, step=step)

    def on_end(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the result, and finish."""
        super().on_end(step, values)
        self._run.finish()


class MlflowTracker(_Tracker):
    """Logs to MLflow; a resumed run continues there. Needs `pip install 'tuplet[mlflow]'`.

    Its own environment variables choose the server and the experiment: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._mlflow = need("mlflow", extra="mlflow", purpose="logging to MLflow")
        same = folder / "mlflow.id"
        known = same.read_text() if same.is_file() else None
        self._run = self._mlflow.start_run(run_id=known, run_name=None if known else folder.name)
        if known is None:
            same.write_text(self._run.info.run_id)
            self._mlflow.log_params({name: str(value)[:500] for name, value in about["settings"].items()})

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Send numbers of a step."""
        self._mlflow.log_metrics(numbers, step=step)

    def on_end(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the result, and finish."""
        super().on_end(step, values)
        self._mlflow.end_run()


TrackerClass: TypeAlias = type[WandbTracker] | type[MlflowTracker]
TRACKERS: dict[str, TrackerClass] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


def find_tracker(name: str) -> TrackerClass:
    """Return the tracker of a name, whose package is installed; raise an error before training otherwise.

    >>> find_tracker("wand")
    Traceback (most recent call last):
    tuplet.errors.OptionError: log is 'wand'; did you mean 'wandb'?
    """
    if name not in TRACKERS:
        raise OptionError(f"{opt('log')} is {name!r}; {did_you_mean(name, TRACKERS)}")
    need(name, extra=name, purpose=f"logging to {name}")
    return TRACKERS[name]


def _numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {f"{kind}/{name}": float(value) for name, value in values.items() if isinstance(value, int | float)}
