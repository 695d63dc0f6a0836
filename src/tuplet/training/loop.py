"""The training loop."""

import itertools
import logging
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from tuplet.data import Batch, batches
from tuplet.evaluation import average_views
from tuplet.progress import silent, track
from tuplet.training.events import Events
from tuplet.training.examples import Examples
from tuplet.training.folder import EVALUATION, VECTORS, RunFolder
from tuplet.training.optimizer import set_rate
from tuplet.training.processes import Team
from tuplet.training.settings import Settings
from tuplet.training.state import Progress, State
from tuplet.training.step import Launched, Stepper
from tuplet.training.testing import everything, recalls, vectors_of
from tuplet.training.trouble import collapsed, complaint, likely_cause, mean_cosine, too_far, weights_are_finite

#: Tells what a run has reached, to whoever listens: bars are for terminals alone.
_teller = logging.getLogger("tuplet")
#: Halvings of float16's first scale, 2¹⁶, down to the smallest number that it has, 2⁻²⁴.
SCALES = 40


@dataclass
class Loop:
    """A run from where its state stands to its end.

    Every process runs the loop on its share of each batch; the one that leads has `events` and writes the files.
    """

    settings: Settings
    examples: Examples
    state: State
    folder: RunFolder
    events: Events | None
    team: Team
    identity: dict[str, Any]
    warned: bool = False
    """Whether a collapse was spoken of."""
    left_out: int = 0
    """Steps in a row whose gradient was not finite."""
    loss: float = math.nan
    """As it was logged last."""

    def train(self, pressed: Callable[[], bool] = lambda: False) -> None:
        """Go on until the last step, until nothing has become better for long enough, or until ctrl-C was `pressed`."""
        settings, progress = self.settings, self.state.progress
        stepper = Stepper(settings, self.state, self.team)
        stream, upcoming = self._batches(), None
        launched: deque[Launched] = deque()
        # The next batch is made while the device still works on this one, unless it depends on the weights.
        ahead = settings.sampler != "hard_class"
        began = time.perf_counter() - progress.seconds
        if progress.step and self.events is not None:
            _teller.info("going on from step %s of %s", f"{progress.step:,}", f"{settings.steps:,}")

        for step in track(range(progress.step, settings.steps), "training"):
            if finished(progress, settings):
                break
            with silent():
                step_began = time.perf_counter()
                batch, inputs = upcoming or next(stream)
                rate = set_rate(self.state.optimizer, settings, step)
                launched.append(stepper.step(step, batch, inputs))
                upcoming = next(stream) if ahead and step + 1 < settings.steps else None

                progress.step = step + 1
                last = progress.step == settings.steps
                logs, evaluates, saves = (
                    progress.step % every == 0
                    for every in (settings.log_every, settings.evaluate_every, settings.checkpoint_every)
                )
                # Elsewhere the host is a step ahead of the device, which then always has something to do.
                gradient = self._take_in(launched, but=0 if last or logs or evaluates or saves else 1)
                progress.busy += time.perf_counter() - step_began
                progress.seconds = time.perf_counter() - began
                if last or logs:
                    self._log(rate, gradient)
                better = False
                if last or evaluates:
                    with stepper.precision:
                        better = self._evaluate()
                if better or finished(progress, settings) or saves:
                    self._checkpoint(better)
                if pressed():
                    self._take_in(launched, but=0)
                    self._checkpoint(best=False)
                    raise KeyboardInterrupt
        # A run that was killed may have come farther already than it is to go now.
        if progress.evaluated < progress.step:
            with stepper.precision:
                better = self._evaluate()
            self._checkpoint(better)

    def evaluate_best(self) -> None:
        """Every metric of the best embedder on the test split, and its vectors."""
        progress, test = self.state.progress, self.examples.test
        if self.events is not None:
            # k-means with thousands of classes takes many minutes on a CPU, and without a terminal there is no bar.
            _teller.info(
                "testing the embedder of step %s on %s examples", f"{progress.best_step:,}", f"{len(test.store):,}"
            )
        self.folder.load_embedder("best", self.state.embedder, self.team)
        sides = (False, True) if self.settings.mirrored else (False,)
        views = [vectors_of(self.state.embedder, test, self.team, mirror).float() for mirror in sides]
        if self.events is not None:
            metrics = everything(views[0], test.data, self.examples.ks, self.settings.seed)
            if self.settings.mirrored:
                metrics["mirrored"] = recalls(average_views(views), test.data, self.examples.ks, metric="cosine")
            metrics |= {"split": self.settings.test_on, "embedder": "best", "step": progress.best_step}
            metrics["chosen_on"] = "validation" if self.settings.validation else "test"
            tensors = {"embeddings": views[0].cpu(), "labels": test.data.labels, "indices": test.indices}
            self.folder.write_tensors(VECTORS, tensors)
            found = {"best_step": progress.best_step, "recall_at_1": metrics["recall_at_1"]}
            self.events.write("end", step=progress.step, **found, seconds=progress.seconds)
            self.events.sync()
            # Written last: it says that the run is finished.
            self.folder.write_json(EVALUATION, metrics)

    def _batches(self) -> Iterator[tuple[Batch, Tensor]]:
        """The batches from the next step on, each with what the network sees of it."""
        steps = itertools.count(self.state.progress.step)
        while True:
            for batch in batches(self.examples.train.store, self.state.sampler, self.team.device):
                yield batch, self.examples.inputs(batch, next(steps))

    def _log(self, rate: float, gradient: float) -> None:
        progress, size = self.state.progress, self.settings.batch_size or 0
        self.loss = sum(progress.losses) / len(progress.losses)
        if self.events is not None:
            self.events.write(
                "train",
                step=progress.step,
                loss=self.loss,
                rate=rate,
                gradient=gradient,
                examples_per_second=size * len(progress.losses) / progress.busy,
                seconds=progress.seconds,
            )
        progress.losses, progress.busy = [], 0.0

    def _evaluate(self) -> bool:
        """Measure what there is; whether it is the best so far."""
        state, progress, part = self.state, self.state.progress, self.examples.validation
        # Each process has its own statistics of BatchNorm, and the first one's are kept.
        self.team.align(state.result)
        vectors = vectors_of(state.result, part, self.team)
        if not bool(vectors.isfinite().all()):
            cause = likely_cause(self.settings, state, vectors, math.nan)
            self._stop(progress.step, "it has diverged", cause)
        found = self.team.from_leader(recalls(vectors, part.data, self.examples.ks) if self.team.leads else {})
        better = found["recall_at_1"] > progress.best
        progress.evaluated = progress.step
        progress.since_best = 0 if better else progress.since_best + 1
        if better:
            progress.best, progress.best_step = found["recall_at_1"], progress.step
        if self.events is not None:
            alike = mean_cosine(vectors)
            said = collapsed(alike, progress.step, self.settings)
            if said is not None and not self.warned:
                warnings.warn(said, stacklevel=5)
                self.warned = True
            self.events.write("evaluation", step=progress.step, **found, mean_cosine=alike)
            self.folder.save_last(state.result)
            self._tell(found["recall_at_1"], better)
        return better

    def _tell(self, recall: float, better: bool) -> None:
        progress = self.state.progress
        where = f"step {progress.step:,} of {self.settings.steps:,} after {progress.seconds:,.0f} s"
        loss = "" if math.isnan(self.loss) else f"loss {self.loss:.4g}, "
        _teller.info("%s: %sRecall@1 %.2f %%%s", where, loss, 100 * recall, ", the best so far" if better else "")

    def _checkpoint(self, best: bool) -> None:
        """Keep everything, so that a run that is killed goes on from here, and with it the embedder if it is the best.

        The best takes its place after the checkpoint that speaks of it: whenever a run is killed, the two agree.
        """
        progress = self.state.progress
        # A step whose numbers are all finite may still throw the weights out of range.
        if not weights_are_finite(self.state):
            self._stop(progress.step, "it has diverged", too_far(self.settings))
        if self.events is not None:
            progress.log_length = self.events.sync()
            if best:
                self.folder.save_candidate(self.state.result, progress.step)
        saved = self.state.save(self.team)
        if self.events is not None:
            self.folder.write_checkpoint({**saved, "identity": self.identity})
            if best:
                self.folder.crown(progress.step)

    def _take_in(self, launched: deque[Launched], but: int) -> float:
        """Take in the losses of all steps but the last few, and give the length of the last gradient among them."""
        gradient = math.nan
        while len(launched) > but:
            step, examples, embeddings, numbers = launched.popleft()
            loss, gradient = numbers.read()
            self.left_out = 0 if math.isfinite(gradient) else self.left_out + 1
            # With float16 the scaler leaves out a step whose gradient overflows, and goes on at half the scale.
            if not math.isfinite(loss) or self.left_out > (SCALES if self.state.scaler.is_enabled() else 0):
                cause = likely_cause(self.settings, self.state, embeddings, loss)
                places = [place for own in self.team.of_all(examples.tolist()) for place in own]
                files = [self.examples.path(place) for place in places]
                self._stop(step, f"the loss is {loss:g}", cause, files)
            self.state.progress.losses.append(loss)
        return gradient

    def _stop(self, step: int, what: str, cause: str, files: Sequence[str] = ()) -> NoReturn:
        """Say at which step, why and on which files it goes no further; the checkpoint before it stays."""
        if self.events is not None:
            self.events.write("failure", step=step, cause=cause, files=files)
        raise FloatingPointError(complaint(step, what, cause, files))


def finished(progress: Progress, settings: Settings) -> bool:
    """Whether there is nothing left to train: all steps are done, or too many evaluations have brought nothing."""
    stale = settings.patience is not None and progress.since_best >= settings.patience
    return stale or progress.step >= settings.steps
