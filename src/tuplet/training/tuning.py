"""Tune the options of training with Optuna, on validation classes."""

import logging
import math
import os
import shutil
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tuplet import data as datasets
from tuplet.data import Dataset
from tuplet.errors import OptionError, OptionTypeError, first_line, opt
from tuplet.extras import need
from tuplet.training.checkpoint import check_same_run, plain_settings
from tuplet.training.comparison import decode_once
from tuplet.training.diagnostics import DivergedError
from tuplet.training.distributed import join_processes
from tuplet.training.events import Callback, StopTraining
from tuplet.training.folder import CHECKPOINT, EVALUATION, VECTORS, RunFolder, run_path
from tuplet.training.plan import try_plan
from tuplet.training.resolve import given_options, resolve_settings
from tuplet.training.run import train
from tuplet.training.search_space import (
    Space,
    check_space,
    default_space,
    first_parameters,
    keep_usable,
    plain_space,
    suggest,
)
from tuplet.training.settings import Settings

_logger = logging.getLogger("tuplet")
#: The result, Optuna's storage and the folder of the runs.
TUNING, STUDY, TRIALS = "tuning.json", "study.db", "trials"
#: Evaluations of a trial. They are at equal shares of its steps, so that trials of any length can be compared.
EVALUATIONS = 5
#: The best trials that are trained with further seeds, beside the first one, which has the defaults.
FINALISTS = 3
#: Completed trials below which the importance of options says nothing.
FEWEST_FOR_IMPORTANCE = 8


def tune(
    data: str | os.PathLike[str] | Dataset | torch.utils.data.Dataset[Any],
    out: str | os.PathLike[str],
    trials: int = 40,
    *,
    minutes: float | None = None,
    seeds: int = 3,
    space: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    resume: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Search for good options of `tuplet.train`; trials are measured on validation classes, never on the test split.

    The first trial has the defaults, as far as they are in the space. Optuna chooses the others, and stops those that
    are worse than half of the earlier ones at the same share of their steps. At the end the best three and the first
    are trained with further seeds, which draw other validation classes; the best mean wins. Needs the extra `tune`.

    Args:
        data: what to train on, as in `tuplet.train`.
        out: a folder, which gets `tuning.json`, Optuna's storage `study.db`, and the logs of all runs.
        trials: the number of trials, those of earlier calls included.
        minutes: the time for this call. No trial begins that would end too late, judged by the longest one so far.
        seeds: the number of seeds of the best trials; 1 takes the best trial without training it again.
        space: the options to try: a list of alternatives, or a tuple of the smallest and the largest number, as in
            {"loss": ["triplet", "margin"], "lr": (1e-5, 1e-3)}. By default loss, lr, steps and per_class, and for
            images augmentation, head_lr_scale and freeze_to, as far as they suit the data, the model and the device.
        recipe: the name of a paper's settings, as in `tuplet.train`; the search is around them.
        resume: continue the tuning in the folder; finished trials are not repeated. False starts again.
        **options: options of all trials, which are then not searched.

    Returns:
        Plain data, also written to `out/tuning.json`. `best["options"]` are what to give to `tuplet.train`, beside
        `options`. `importance` is the share of each option in what makes trials good (PED-ANOVA, Watanabe et al. 2023).

    Raises:
        FloatingPointError: every trial diverged or ran out of memory.

    >>> import tempfile
    >>> from tuplet.data import from_features
    >>> examples = from_features(torch.eye(12).repeat_interleave(5, 0), torch.arange(60) // 5)
    >>> found = tune(examples, tempfile.mkdtemp(), trials=2, seeds=1, space={"lr": (1e-4, 1e-2)}, steps=4, dim=4)
    >>> [trial["state"] for trial in found["trials"]], sorted(found["best"]["options"])
    (['complete', 'complete'], ['evaluate_every', 'lr'])
    """
    optuna = need("optuna", extra="tune", purpose="tuning")
    path = run_path(out, resume, data)
    _check_counts(trials, seeds, minutes)
    dataset = data if isinstance(data, Dataset) else datasets.open(data)
    world = join_processes(options.get("device"))
    if world.is_distributed:
        raise OptionError("tuning runs in one process; start it without torchrun, on one device")
    given = given_options(_measured_on_validation(recipe, options, dataset))
    planned = try_plan(dataset, recipe, given, world)
    if not planned.settings.steps:
        raise OptionError(f"{opt('steps')} is 0, which trains nothing; give more, or leave it out")
    if space is None:
        suited = default_space(planned.settings, given, dataset, on_gpu=world.device.type == "cuda")
        tried = keep_usable(suited, lambda value: try_plan(dataset, recipe, {**given, **value}, world))
    else:
        tried = check_space(space, options)
    if not tried:
        raise OptionError("all options that would be tried are given; leave some out, or give a space")
    alternatives = [{name: v} for name, values in (space or {}).items() if isinstance(values, list) for v in values]
    dataset = decode_once(dataset, recipe, [{**given, **value} for value in alternatives] or [given], world)
    folder = RunFolder(path)
    with folder.locked(), _quiet(optuna):
        if not resume:
            _clear(folder.path)
        known = {*options, "test_on", "final", "keep_start"}
        tuning = _Tuning(optuna, dataset, folder.path, tried, recipe, given, known, planned.settings)
        tuning.open_study(planned.identity)
        tuning.search(trials, seeds, minutes)
        result = {"data": dataset.source or repr(dataset), "recipe": recipe, **tuning.result(seeds)}
        folder.write_json(TUNING, result)
    return result


@dataclass(eq=False)
class _Tuning:
    """The trials of one tuning: asks Optuna for options, trains with them, and tells Optuna the score.

    Attributes:
        space: the options that are tried.
        given: the options of all trials.
        known: names of options that the result leaves out: those of the call, and those that tuning itself sets.
        base: the settings of a run without the options that are tried.
    """

    optuna: Any
    data: Dataset
    path: Path
    space: Space
    recipe: str | None
    given: Mapping[str, Any]
    known: Collection[str]
    base: Settings

    def open_study(self, identity: dict[str, Any]) -> None:
        """Open the study in the folder, or make one whose first trial has the defaults."""
        optuna, url = self.optuna, need("sqlalchemy", extra="tune", purpose="tuning").URL
        self.study = optuna.create_study(
            storage=url.create("sqlite", database=str(self.path / STUDY)).render_as_string(),
            study_name="tuplet",
            direction="maximize",
            load_if_exists=True,
            # Nothing is stopped before the second of the evaluations.
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2),
        )
        first, self.first_is_default = first_parameters(plain_settings(self.base), self.space)
        saved, space = self.study.user_attrs, plain_space(self.space)
        if "identity" not in saved:
            self.study.enqueue_trial(first, skip_if_exists=True)
            self.study.set_user_attr("space", space)
            self.study.set_user_attr("identity", identity)
            return
        check_same_run(saved["identity"], identity, self.path)
        if saved["space"] != space:
            raise OptionError(
                f"{self.path} holds a tuning of {', '.join(saved['space'])} with other values than now",
                f"give another folder, or {opt('resume', False)} to start again",
            )

    def search(self, trials: int, seeds: int, minutes: float | None) -> None:
        """Run trials up to this number, or until the time is over."""
        state, ended = self.optuna.trial.TrialState, math.inf if minutes is None else time.monotonic() + 60 * minutes
        longest = 0.0
        while True:
            known = self.study.trials
            running = [trial for trial in known if trial.state == state.RUNNING]
            finished = [trial for trial in known if trial.state.is_finished()]
            runs_after = (FINALISTS + 1) * (seeds - 1) if finished else 0
            late = time.monotonic() + (1 + runs_after) * longest > ended
            if len(finished) >= trials or (finished and late and not running):
                return
            began = time.monotonic()
            # The choice follows from the earlier trials and the number alone, so a resumed tuning chooses the same.
            self.study.sampler = self.optuna.samplers.TPESampler(seed=self.base.seed + len(finished))
            # A trial that was killed goes on from its checkpoint.
            trial = self.optuna.Trial(self.study, running[0]._trial_id) if running else self.study.ask()
            self._run(trial)
            longest = max(longest, time.monotonic() - began)

    def _run(self, trial: Any) -> None:
        """Train one trial and tell Optuna how it ended."""
        options = self._options(suggest(trial, self.space))
        watch = _Watch(self.study, trial, self.base.select_by, options["steps"])
        folder, state = self.path / TRIALS / f"{trial.number:03}", self.optuna.trial.TrialState
        trial.set_user_attr("options", {name: options[name] for name in options if name not in self.known})
        words = ", ".join(f"{name}={options[name]!r}" for name in self.space)
        try:
            # The first trial has the defaults. What it warns of holds for all of them.
            score = self._train(folder, options, [watch], warn=trial.number == 0)
        except StopTraining:
            trial.set_user_attr("seconds", watch.seconds)
            self.study.tell(trial, state=state.PRUNED)
            _logger.info("trial %d: stopped early at %s (%s)", trial.number, _percent(watch.last), words)
        except (DivergedError, torch.OutOfMemoryError) as error:
            trial.set_user_attr("failure", first_line(error))
            self.study.tell(trial, state=state.PRUNED)  # unlike a failed trial, it tells the sampler what to avoid
            _logger.info("trial %d: %s (%s)", trial.number, first_line(error), words)
        else:
            trial.set_user_attr("seconds", watch.seconds)
            self.study.tell(trial, score)
            _logger.info("trial %d: %s %s (%s)", trial.number, self.base.select_by, _percent(score), words)
        _remove_weights(folder)

    def _options(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of a run: those given, those chosen, and evaluations at equal shares of the steps."""
        options = {"steps": self.base.steps, **self.given, **chosen}
        return {"evaluate_every": max(1, math.ceil(options["steps"] / EVALUATIONS)), **options}

    def _train(self, folder: Path, options: Mapping[str, Any], callbacks: Sequence[Callback], warn: bool) -> float:
        """Train in a folder, or read the result of the finished run in it; return its score."""
        metrics = RunFolder(folder).read_json(EVALUATION)
        if metrics is None:
            with warnings.catch_warnings():
                if not warn:
                    warnings.simplefilter("ignore")
                metrics = train(self.data, folder, recipe=self.recipe, callbacks=callbacks, **options).metrics
        return float(metrics[self.base.select_by])

    def _scores(self, number: int, options: Mapping[str, Any], first: float, seeds: int) -> list[float]:
        """Return the scores of a trial with several seeds; 0 for a seed with which it diverges."""
        scores = [first]
        for seed in range(self.base.seed + 1, self.base.seed + seeds):
            folder = self.path / TRIALS / f"{number:03}_seed_{seed}"
            try:
                scores.append(self._train(folder, {**self._options(options), "seed": seed}, (), warn=False))
            except DivergedError:
                scores.append(0.0)
            _remove_weights(folder)
            _logger.info("trial %d, seed %d: %s %s", number, seed, self.base.select_by, _percent(scores[-1]))
        return scores

    def result(self, seeds: int) -> dict[str, Any]:
        """Train the best trials with further seeds, and return everything that was found."""
        rows = [self._row(trial) for trial in self.study.trials if trial.state.is_finished()]
        complete = sorted((row for row in rows if row["state"] == "complete"), key=lambda row: -row["score"])
        if not complete:
            raise FloatingPointError(f"none of {len(rows)} trials reached its end; the last one: {rows[-1]['failure']}")
        finalists = complete[:FINALISTS] + [row for row in complete[FINALISTS:] if row["trial"] == 0]
        for row in finalists if len(complete) > 1 else []:
            row["scores"] = self._scores(row["trial"], row["options"], row["score"], seeds)
        best = max(finalists, key=lambda row: (fmean(row["scores"]), -row["trial"]))
        return {
            "metric": self.base.select_by,
            "space": plain_space(self.space),
            "first_is_default": self.first_is_default,
            "trials": rows,
            "importance": self._importance(len(complete)),
            "best": best,
        }

    def _row(self, trial: Any) -> dict[str, Any]:
        attributes = trial.user_attrs
        state = "failed" if "failure" in attributes else "complete" if trial.state.name == "COMPLETE" else "stopped"
        row = {"trial": trial.number, "state": state, "score": trial.value, "seconds": attributes.get("seconds")}
        if state == "failed":
            row["failure"] = attributes["failure"]
        scores = [] if trial.value is None else [trial.value]
        return {**row, "scores": scores, "options": attributes["options"]}

    def _importance(self, complete: int) -> dict[str, float]:
        if complete < FEWEST_FOR_IMPORTANCE or len(self.space) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 4 calls it experimental
            evaluator = self.optuna.importance.PedAnovaImportanceEvaluator()
            found = self.optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class _Watch(Callback):
    """Reports the evaluations of a trial to Optuna, and stops the trial if Optuna prunes it."""

    def __init__(self, study: Any, trial: Any, metric: str, steps: int) -> None:
        self.trial, self.metric, self.steps = trial, metric, steps
        # A resumed run evaluates the steps after its last checkpoint again.
        self.reported = set(study.trials[trial.number].intermediate_values)
        self.last, self.seconds = 0.0, 0.0

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self.seconds = values["seconds"]

    def on_evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        if step == 0:  # before training all trials are the same
            return
        place, self.last = round(EVALUATIONS * step / self.steps), values[self.metric]
        if place not in self.reported:
            self.trial.report(self.last, place)
            self.reported.add(place)
        if step < self.steps and self.trial.should_prune():
            raise StopTraining


def _measured_on_validation(recipe: str | None, options: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """Return the options with the final test on the validation classes; raise an error for what contradicts that."""
    for name, wanted in (("test_on", "validation"), ("final", False)):
        if options.get(name, wanted) != wanted:
            raise OptionError(f"{opt(name)} is {options[name]!r}; tuning leaves the test split unused, so leave it out")
    if "validation" in options and not options["validation"]:
        raise OptionError(f"{opt('validation', 0)} would choose on the test split; tuning needs validation classes")
    kept: dict[str, Any] = {**options, "final": False}
    if recipe is None:
        kept.setdefault("keep_start", False)  # a trial that falls back to the start would have its score
    if "validation" not in options and not resolve_settings(recipe, options, data).validation:
        kept["validation"] = Settings.validation  # the papers' recipes have 0
    return {**kept, "test_on": "validation"}


def _check_counts(trials: int, seeds: int, minutes: float | None) -> None:
    for name, value in (("trials", trials), ("seeds", seeds)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionTypeError(f"{opt(name)} is {value!r}; it must be a whole number, 1 or more")
    if minutes is not None and not minutes > 0:
        raise OptionError(f"{opt('minutes')} is {minutes!r}; it must be above 0")


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Silence Optuna's log and the log lines of the single runs; warnings are still shown."""

    def own(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or record.pathname == __file__

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _logger.addFilter(own)
    try:
        yield
    finally:
        _logger.removeFilter(own)
        optuna.logging.set_verbosity(before)


def _remove_weights(folder: Path) -> None:
    """Remove the large files of a finished run; its log and its metrics stay."""
    for name in ("best", "last"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (CHECKPOINT, VECTORS):
        (folder / name).unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove an earlier tuning and no other files."""
    (path / STUDY).unlink(missing_ok=True)
    (path / TUNING).unlink(missing_ok=True)
    for trial in (path / TRIALS).glob("[0-9][0-9][0-9]*"):
        shutil.rmtree(trial)


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
