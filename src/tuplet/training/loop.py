"""The training loop: steps, log, evaluations and checkpoints."""

import copy
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torch import Tensor

from tuplet.data import Batch, batches
from tuplet.errors import spell, warn
from tuplet.models import Embedder
from tuplet.progress import silent, track
from tuplet.signals import RAISING
from tuplet.training.checkpoint import Progress, TrainState
from tuplet.training.data import Examples
from tuplet.training.diagnostics import (
    DivergedError,
    collapse_warning,
    likely_cause,
    mean_cosine,
    step_too_large,
    weights_are_finite,
)
from tuplet.training.ema import AVERAGES, averages
from tuplet.training.evaluate import embed_shared, map_at_r, recalls
from tuplet.training.events import Events
from tuplet.training.folder import CHECKPOINT, RunFolder
from tuplet.training.optimizer import set_lr
from tuplet.training.plan import Plan
from tuplet.training.settings import Settings
from tuplet.training.step import Stepper, StepResult

_logger = logging.getLogger("tuplet")
#: Steps in a row that float16 may skip: halving its first scale, 2¹⁶, this often leads to its smallest number, 2⁻²⁴.
MAX_SKIPPED = 40
#: Steps after which the time left is estimated. The first ones are slower, and are not counted.
ESTIMATE_AFTER, WARM = 10, 3


class Loop:
    """Trains a run from its current state to its end.

    Every process runs the loop on its share of each batch. Only the main process writes files.
    """

    def __init__(
        self, plan: Plan, examples: Examples, state: TrainState, folder: RunFolder, events: Events | None
    ) -> None:
        self.plan, self.settings, self.world = plan, plan.settings, plan.world
        self.examples, self.state, self.folder, self.events = examples, state, folder, events
        self.stepper = Stepper(plan.settings, state, plan.world)
        #: The steps that the device may still be working on.
        self.running: deque[StepResult] = deque()
        #: The number of the latest steps, in a row, whose gradient was not finite.
        self.skipped = 0
        #: The loss of the latest `train` event.
        self.logged_loss = math.nan
        self.collapse_warned = False
        #: The time that the latest evaluation took, and the times of the latest checkpoint and of the first full speed.
        self.evaluation_seconds, self.saved_at, self.warm_at = 0.0, time.perf_counter(), 0.0

    def train(self, interrupted: Callable[[], int] = lambda: 0) -> None:
        """Train to the last step, or stop early if `patience` runs out or `interrupted()` returns a signal."""
        settings, progress = self.settings, self.state.progress
        stream, next_batch = self._batches(), None
        # The next batch is prepared while the device works on this one, unless it depends on the weights.
        prefetch = not self.state.sampler.needs_embeddings
        self._evaluate_start()
        started, first = time.perf_counter() - progress.seconds, progress.step
        if first:
            _logger.info("resuming from step %s of %s", f"{first:,}", f"{settings.steps:,}")

        for step in track(range(first, settings.steps), "training"):
            if is_finished(progress, settings):
                break
            with silent():
                step_started = time.perf_counter()
                batch, inputs = next_batch or next(stream)
                lr = set_lr(self.state.optimizer, settings, step)
                self.running.append(self.stepper.step(step, batch, inputs))
                next_batch = next(stream) if prefetch and step + 1 < settings.steps else None

                progress.step = step + 1
                log, evaluate, checkpoint = self._due()
                # Otherwise the host stays one step ahead, so that the device always has work.
                norm = self._collect(leave=0 if log or evaluate or checkpoint else 1)
                progress.busy_seconds += time.perf_counter() - step_started
                progress.seconds = time.perf_counter() - started
                self._estimate(step - first)
                if log:
                    self._log(lr, norm)
                best = self._evaluate() if evaluate else None
                if best is not None or is_finished(progress, settings) or checkpoint:
                    self._checkpoint(best)
                if signal := interrupted():
                    self._collect()
                    self._checkpoint()
                    RAISING[signal](signal, None)
        # A killed run may have passed the last step already, if it is resumed with fewer steps.
        if progress.last_evaluation < progress.step:
            self._checkpoint(self._evaluate())
        if settings.wise_ft and progress.averaged_step < progress.step:
            self._average_with_start()

    def _due(self) -> tuple[bool, bool, bool]:
        """Return whether to log, to evaluate and to checkpoint after this step; the last is logged and evaluated."""
        settings, step = self.settings, self.state.progress.step
        log, evaluate, checkpoint = (
            step % every == 0 for every in (settings.log_every, settings.evaluate_every, settings.checkpoint_every)
        )
        if log or not self.world.is_distributed:  # several processes agree only where they wait for each other anyway
            late = time.perf_counter() - self.saved_at > 60 * settings.checkpoint_minutes
            checkpoint |= self.world.broadcast(late)
        last = step == settings.steps
        return log or last, evaluate or last, checkpoint

    def _batches(self) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the batches from the next step on, each with the inputs of the network."""
        steps = itertools.count(self.state.progress.step)
        while True:
            for batch in batches(self.examples.train.store, self.state.sampler, self.world.device):
                yield batch, self.examples.inputs(batch, next(steps))

    def _collect(self, leave: int = 0) -> float:
        """Wait for all but the latest `leave` steps; keep their losses and return the last gradient norm.

        Raises:
            DivergedError: a loss or a gradient is not finite.
        """
        norm = math.nan
        while len(self.running) > leave:
            step, examples, embeddings, numbers = self.running.popleft()
            loss, norm = numbers.read()
            self.skipped = 0 if math.isfinite(norm) else self.skipped + 1
            # In float16 the gradient scaler skips a step whose gradient overflows, and halves its scale.
            if not math.isfinite(loss) or self.skipped > (MAX_SKIPPED if self.state.scaler.is_enabled() else 0):
                cause = likely_cause(self.settings, self.state, embeddings, loss)
                indices = itertools.chain(*self.world.gather_objects(examples.tolist()))
                self._stop(step, f"the loss is {loss:g}", cause, [self.examples.path(index) for index in indices])
            self.state.progress.losses.append(loss)
        return norm

    def _log(self, lr: float, norm: float) -> None:
        progress, batch_size = self.state.progress, self.settings.batch_size or 0
        self.logged_loss = sum(progress.losses) / len(progress.losses)
        self._write(
            "train",
            step=progress.step,
            loss=self.logged_loss,
            lr=lr,
            gradient_norm=norm,
            examples_per_second=batch_size * len(progress.losses) / progress.busy_seconds,
            seconds=progress.seconds,
        )
        progress.losses, progress.busy_seconds = [], 0.0

    def _evaluate_start(self) -> None:
        """Measure the start as step 0; it is the best so far if it may be kept, or if no step follows."""
        progress, settings, start = self.state.progress, self.settings, self.plan.start
        if progress.last_evaluation >= 0:
            return
        found = self._measure(start.embedder)
        progress.last_evaluation = 0
        if found:
            self._write("evaluation", step=0, **found)
            split = "validation" if settings.validation else "test"
            _logger.info("before training: %s on the %s split (%s)", _described(found), split, start.about)
        if settings.keep_start or not settings.steps:
            progress.set_best(found.get(settings.select_by, 0.0), step=0)
            if self.world.is_main:
                self.folder.save_last(start.embedder)
            self._checkpoint(start.embedder)

    def _evaluate(self) -> Embedder | None:
        """Measure the current embedder and save it as `last`; return it if it is the best."""
        progress, embedder = self.state.progress, self.state.result
        # Each process has its own BatchNorm statistics. Those of the main process are evaluated and saved.
        self.world.broadcast_module(embedder)
        found = self._measure(embedder)
        # Where nothing is measured, the latest is the best.
        score = found.get(self.settings.select_by, math.inf)
        best = score > progress.best_score or not found
        progress.last_evaluation = progress.step
        progress.since_best = 0 if best else progress.since_best + 1
        if best:
            progress.set_best(score, progress.step)
        if self.world.is_main:
            self.folder.save_last(embedder)
        if found:
            message = collapse_warning(found["mean_cosine"], progress.step, self.settings)
            if message is not None and not self.collapse_warned:
                warn(message)
                self.collapse_warned = True
            self._write("evaluation", step=progress.step, **found)
            done = f"step {progress.step:,} of {self.settings.steps:,} after {progress.seconds:,.0f} s"
            loss = "" if math.isnan(self.logged_loss) else f"loss {self.logged_loss:.4g}, "
            _logger.info("%s: %s%s%s", done, loss, _described(found), ", the best so far" if best else "")
        return embedder if best else None

    def _average_with_start(self) -> None:
        """Measure averages of the start and the last weights; one of them becomes the best if none was better."""
        progress, best = self.state.progress, None
        mixtures = averages(self.plan.start.embedder, self.state.result)
        for share, mixed in track(mixtures, "averaging with the start", total=len(AVERAGES)):
            with silent():
                found = self._measure(mixed)
            self._write("wise_ft", step=progress.step, share=share, **found)
            score = found.get(self.settings.select_by, 0.0)
            if score > progress.best_score if found else share == self.plan.average:
                best = copy.deepcopy(mixed)
                progress.set_best(score, progress.step, share)
        progress.averaged_step = progress.step
        if best is not None:
            share = 100 * (progress.best_average or 0)
            _logger.info("the best: an average of %.0f %% trained and %.0f %% initial weights", share, 100 - share)
        self._checkpoint(best)

    def _measure(self, embedder: Embedder) -> dict[str, float]:
        """Return Recall@K, the metric that selects and the mean cosine on the validation split, if there is one."""
        began, split = time.perf_counter(), self.examples.validation
        if split is None:
            return {}
        with self.stepper.autocast:
            embeddings = embed_shared(embedder, split.store, self.world)
        if not bool(embeddings.isfinite().all()):
            cause = likely_cause(self.settings, self.state, embeddings, math.nan)
            self._stop(self.state.progress.step, "training has diverged", cause)
        found: dict[str, float] = {}
        if self.world.is_main:
            found = recalls(embeddings, split.data, self.examples.ks)
            if self.settings.select_by == "map_at_r":
                found["map_at_r"] = map_at_r(embeddings, split.data)
            found["mean_cosine"] = mean_cosine(embeddings)
        self.evaluation_seconds = time.perf_counter() - began
        return self.world.broadcast(found)

    def _estimate(self, done: int) -> None:
        """Log once, after the first steps, how long the rest takes: steps and evaluations."""
        if done == WARM:
            self.warm_at = time.perf_counter()
        if done != ESTIMATE_AFTER:
            return
        step_seconds = (time.perf_counter() - self.warm_at) / (ESTIMATE_AFTER - WARM)
        settings, left = self.settings, self.settings.steps - self.state.progress.step
        evaluations = math.ceil(left / settings.evaluate_every) + (len(AVERAGES) if settings.wise_ft else 0)
        minutes = (left * step_seconds + evaluations * self.evaluation_seconds) / 60
        if minutes > 0.5:
            _logger.info("%.2g s a step: about %s left", step_seconds, in_words(minutes))

    def _checkpoint(self, best: Embedder | None = None) -> None:
        """Write a checkpoint for exact resume, and save the best embedder if there is a new one.

        The best embedder replaces the former one after the checkpoint that names it, so that the two agree whenever the
        run is killed.
        """
        progress = self.state.progress
        # A step with a finite loss and gradient may still make the weights infinite.
        if not all(self.world.gather_objects(weights_are_finite(self.state))):
            self._stop(progress.step, "training has diverged", step_too_large(self.settings))
        if self.events is not None:
            progress.log_length = self.events.sync()
        if self.world.is_main and best is not None:
            self.folder.save_candidate(best, progress.candidate)
        saved = self.state.save(self.world)
        if self.events is not None:
            self.folder.write_checkpoint({**saved, "identity": self.plan.identity})
            self.events.checkpoint(progress.step, self.folder.path / CHECKPOINT)
            if best is not None:
                self.folder.promote(progress.candidate)
        self.saved_at = time.perf_counter()

    def _write(self, event: str, step: int, **values: Any) -> None:
        """Log an event; only the main process has a log."""
        if self.events is not None:
            self.events.write(event, step, **values)

    def _stop(self, step: int, event: str, cause: str, files: Sequence[str] = ()) -> NoReturn:
        """Log a failure and raise an error; the last checkpoint stays."""
        self._write("failure", step=step, cause=spell(cause), files=files)
        raise DivergedError(step, event, cause, files)


def _described(found: Mapping[str, float]) -> str:
    """Return Recall@1 in words, and MAP@R if it was measured, by which the best checkpoint is then selected.

    >>> _described({"recall_at_1": 0.5, "map_at_r": 0.25})
    'Recall@1 50.00 %, MAP@R 25.00 %'
    """
    titles = {"recall_at_1": "Recall@1", "map_at_r": "MAP@R"}
    return ", ".join(f"{title} {100 * found[name]:.2f} %" for name, title in titles.items() if name in found)


def is_finished(progress: Progress, settings: Settings) -> bool:
    """Return whether all steps are done, or `patience` has run out."""
    out_of_patience = settings.patience is not None and progress.since_best >= settings.patience
    return out_of_patience or progress.step >= settings.steps


def in_words(minutes: float) -> str:
    """Return a duration in minutes, or in hours if there are many.

    >>> in_words(0.7), in_words(2.6), in_words(200)
    ('1 minute', '3 minutes', '3.3 hours')
    """
    if minutes < 1.5:
        return "1 minute"
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
