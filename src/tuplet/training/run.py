"""Training as one call."""

import logging
import os
import platform
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tuplet
from tuplet import data as data_room
from tuplet.data import Dataset
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.training.assemble import assemble, decide
from tuplet.training.events import Events
from tuplet.training.folder import EVALUATION, RunFolder, named
from tuplet.training.identity import identity_of, refuse_another_run
from tuplet.training.loop import Loop, finished
from tuplet.training.processes import Team, first_speaks, join
from tuplet.training.resolve import Unsaid, resolve
from tuplet.training.settings import Settings
from tuplet.training.state import Progress
from tuplet.training.stopping import postponed

_teller = logging.getLogger("tuplet")
_USUAL_MODEL = Unsaid("resnet50")


@dataclass(frozen=True)
class Run:
    """A finished run: the best embedder, on the device of the training; its metrics on the test split; the folder."""

    embedder: Embedder
    metrics: dict[str, Any]
    folder: Path


def train(
    data: str | os.PathLike[str] | Dataset,
    out: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    loss: str | RowLoss | None = None,
    model: str | Embedder = _USUAL_MODEL,
    steps: int | None = None,
    seed: int = 0,
    resume: bool = True,
    **overrides: Any,
) -> Run:
    """Train an embedder on a dataset, test it on classes that it has not seen, and keep all of it in the folder `out`.

    Args:
        data: whatever `tuplet.data.open` opens, or a `Dataset`. Its own split is used, or else half of the classes.
        out: the folder of the run: settings, events, checkpoint, the best and the last embedder, results.
        recipe: a paper's settings by name (`tuplet.training.RECIPES`); what else is said here takes precedence.
        loss: a name (`tuplet.training.LOSSES`), or a loss object.
        model: a backbone's name, or an embedder from `tuplet.models.create`. Feature vectors get an mlp by default.
        steps: how many batches.
        seed: of everything that is drawn; on a CPU the same seed gives the same weights.
        resume: go on with a run that is in the folder already, exactly as if it had not been interrupted, or return
            the result of one that is finished. False begins again.
        **overrides: any other option of `tuplet.training.Settings`.

    What cannot work, in the options, the data or the folder, is refused before training: a ValueError, TypeError or
    OSError. A loss or gradient that is not finite is a FloatingPointError. Ctrl-C writes a checkpoint, then is a
    KeyboardInterrupt.

    >>> import tempfile, torch
    >>> from tuplet.data import from_features
    >>> data = from_features(torch.eye(8).repeat_interleave(5, 0), torch.arange(40) // 5)
    >>> run = train(data, tempfile.mkdtemp(), loss="raw", steps=2, batch_size=16, dim=4)
    >>> sorted(path.name for path in run.folder.glob("[a-z]*.*"))
    ['checkpoint.pt', 'evaluation.json', 'events.jsonl', 'run.json', 'vectors.safetensors']
    """
    with first_speaks():
        place = named(out)
        if not isinstance(resume, bool):  # None or 0 would wipe out the run that is there
            raise TypeError(f"resume is {resume!r}; give True to go on with a run, or False to begin again")
        opened = data if isinstance(data, Dataset) else data_room.open(data)
        said = {"loss": loss, "model": model, "steps": steps, "seed": seed}
        settings = resolve(recipe, {**said, **overrides}, opened)
        about = {
            "tuplet": tuplet.__version__,
            "data": opened.source or repr(opened),
            "recipe": recipe,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        team = join(settings.device)
        # The caller's random numbers are left as they were.
        with team.one_voice(), torch.random.fork_rng(team.gpus):
            run = _run(opened, place, settings, about, resume, team)
        # A process that ended while others still talk to it would leave them waiting.
        team.meet()
        return run


def _run(data: Dataset, place: Path, settings: Settings, about: dict[str, Any], resume: bool, team: Team) -> Run:
    settings, split, embedder = decide(data, settings, team)
    identity = identity_of(settings, data, embedder)
    folder = RunFolder(place)  # not before, so that what is refused leaves no folder behind
    with folder.locked() if team.leads else nullcontext():
        saved = team.from_leader(folder.read_checkpoint() if team.leads and resume else None)
        if saved is not None:
            refuse_another_run(saved["identity"], identity, folder.path)
        progress = Progress() if saved is None else Progress(**saved["progress"])
        if team.from_leader(finished(progress, settings) and folder.read_json(EVALUATION) is not None):
            if team.leads:
                _teller.info("%s holds this run, finished after %s steps", folder.path, f"{progress.step:,}")
        else:
            examples, state = assemble(data, settings, split, embedder, team)
            events = None
            if team.leads:
                folder.begin(saved is None, progress.best_step)
                folder.write_json("run.json", {**about, "settings": identity["settings"]})
                events = Events(folder.path, progress.log_length, progress.step)
            if saved is not None:
                state.restore(saved, team)
            loop = Loop(settings, examples, state, folder, events, team, identity)
            try:
                # Several processes would stop after different steps, and could not agree on what to keep.
                with postponed(wanted=not team.many) as pressed:
                    loop.train(pressed)
                loop.evaluate_best()
            finally:
                if events is not None:
                    events.close()
        folder.load_embedder("best", embedder, team)
        return Run(embedder.eval(), team.from_leader(folder.read_json(EVALUATION) or {}), folder.path)
