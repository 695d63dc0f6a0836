"""Training as one call: settings → parts → loop → result."""

import logging
import os
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tuplet
from tuplet import data as datasets
from tuplet.data import Dataset
from tuplet.errors import spell
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.card import write_card
from tuplet.signals import delay_signals
from tuplet.training.checkpoint import Progress, TrainState, check_same_processes, check_same_run
from tuplet.training.data import Examples, make_examples
from tuplet.training.distributed import join_processes, main_raises_first
from tuplet.training.ema import ExponentialMovingAverage
from tuplet.training.evaluate import embed_shared, load_best, write_result
from tuplet.training.events import Callback, Events, check_callback, start_tracker
from tuplet.training.folder import EVALUATION, RunFolder, run_path
from tuplet.training.loop import Loop, is_finished
from tuplet.training.objective import Objective
from tuplet.training.optimizer import make_optimizer, make_scaler
from tuplet.training.plan import Plan, make_plan, plan_final
from tuplet.training.resolve import Default, describe_choices, given_options, resolve_settings
from tuplet.training.sampler import largest_class, make_sampler, warn_of_small_classes

_logger = logging.getLogger("tuplet")
_DEFAULT_MODEL = Default("resnet50")


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        embedder: the best embedder, or with `final` the one that was trained on all examples, on the device of the
            training.
        metrics: the metrics of the best embedder on the test split, those of the start and the gain.
        folder: the folder of the run.
    """

    embedder: Embedder = field(repr=False)
    metrics: dict[str, Any] = field(repr=False)
    folder: Path


def train(
    data: str | os.PathLike[str] | Dataset | torch.utils.data.Dataset[Any],
    out: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    loss: str | RowLoss | None = None,
    model: str | Embedder = _DEFAULT_MODEL,
    steps: int | None = None,
    seed: int = 0,
    resume: bool = True,
    callbacks: Sequence[Callback | str] = (),
    **overrides: Any,
) -> Run:
    """Train an embedder, test it on classes that it has not seen, and write everything to the folder `out`.

    Args:
        data: a `Dataset`, a `torch.utils.data.Dataset` of (image or tensor, label), or anything that
            `tuplet.data.open` opens. If it has no split of its own, the first half of the classes is for training and
            the second half for testing. A fifth of the training classes selects the best checkpoint; the test classes
            are measured once, at the end.
        out: the folder of the run: settings, events, checkpoint, the best and the last embedder, results.
        recipe: the name of a paper's settings (`tuplet.training.RECIPES`). Options given here take precedence.
        loss: a name (`tuplet.losses.LOSSES`) or a loss object.
        model: the name of a backbone, or an embedder from `tuplet.models.create`. If neither `model` nor `weights` is
            given: the best pretrained weights at hand, or for feature vectors a linear layer.
        steps: number of batches; 0 measures the start alone.
        seed: seed of all random numbers. On a CPU the same seed gives the same weights.
        resume: continue the run in the folder exactly where it stopped, or return its result if it is finished. False
            starts again.
        callbacks: objects that watch the run (`tuplet.training.Callback`), or names of trackers: "wandb", "mlflow".
        **overrides: any other option of `tuplet.training.Settings`.

    Returns:
        The best embedder, its metrics and the folder.

    Raises:
        ValueError, TypeError, OSError: options, data or folder are wrong; raised before training starts.
        FloatingPointError: a loss, a gradient or a weight is not finite.
        KeyboardInterrupt: ctrl-C was pressed; raised after the step, when a checkpoint is written.
        SystemExit: SIGTERM was received, likewise; its code is 143.

    >>> import tempfile, torch
    >>> from tuplet.data import from_features
    >>> data = from_features(torch.eye(8).repeat_interleave(5, 0), torch.arange(40) // 5)
    >>> run = train(data, tempfile.mkdtemp(), loss="raw", steps=2, batch_size=16, dim=4)
    >>> sorted(path.name for path in run.folder.glob("[a-z]*.*"))
    ['checkpoint.pt', 'evaluation.json', 'events.jsonl', 'run.json', 'vectors.safetensors']
    """
    with main_raises_first():
        path = run_path(out, resume, data)
        dataset = data if isinstance(data, Dataset) else datasets.open(data)
        given = {"loss": loss, "model": model, "steps": steps, "seed": seed, **overrides}
        settings = resolve_settings(recipe, given, dataset)
        for callback in callbacks:
            check_callback(callback)
        about = {
            "tuplet": tuplet.__version__,
            "data": dataset.source or repr(dataset),
            "opened_with": dict(dataset.opened_with),
            "recipe": recipe,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        world = join_processes(settings.device)
        # The caller's random numbers stay unchanged.
        with world.quiet(), torch.random.fork_rng(world.gpus):
            plan = make_plan(dataset, settings, world)
            check_same_processes(plan.identity, world)
            if recipe is None and (choices := describe_choices(given_options(given), settings, dataset)):
                _logger.info(spell(choices), extra={"marked": choices})
            run = _run(plan, path, about, resume, callbacks)
        # If a process ended now, others that still communicate with it would wait forever.
        world.barrier()
        return run


def _run(plan: Plan, path: Path, about: dict[str, Any], resume: bool, callbacks: Sequence[Callback | str]) -> Run:
    """Train and test the plan's embedder; with `final`, train another one on all examples."""
    if plan.split.validation_gallery is not None and plan.settings.split == "classes":
        classes, images = len(plan.data.select(plan.split.train).classes), len(plan.split.validation)
        _logger.info(
            "%d training classes are too few to hold some out: %d images of them select the checkpoint", classes, images
        )
    folder = RunFolder(path)  # created after all checks, so that an error leaves no folder behind
    with folder.locked() if plan.world.is_main else nullcontext():
        progress = _fit(plan, folder, about, resume, callbacks)
        best = load_best(plan, progress, folder)
        metrics = plan.world.broadcast(folder.read_json(EVALUATION) or {})
        if plan.world.is_main:
            write_card(folder.path / "best", best, folder.read_json("run.json"), metrics)
        if plan.settings.final:
            final, final_folder = plan_final(plan, progress), RunFolder(folder.path / "final")
            count, last = f"{len(final.data):,}", f"{final.settings.steps:,}"
            _logger.info("training on all %s examples for %s steps", count, last)
            best = load_best(final, _fit(final, final_folder, about, resume), final_folder)
        return Run(best.eval(), metrics, folder.path)


def _fit(
    plan: Plan, folder: RunFolder, about: dict[str, Any], resume: bool, callbacks: Sequence[Callback | str] = ()
) -> Progress:
    """Train and test the embedder, or continue the run in the folder; return its progress."""
    world, progress = plan.world, Progress()
    saved = folder.read_checkpoint() if world.is_main and resume else None
    with folder.explain_damage():
        shards = {} if saved is None else saved.pop("shards")
    saved = world.broadcast(saved)
    if saved is not None:
        with folder.explain_damage():
            check_same_run(saved["identity"], plan.identity, folder.path)
            progress = Progress(**saved["progress"])
    is_tested = not len(plan.split.test) or folder.has_result()
    if world.broadcast(saved is not None and is_finished(progress, plan.settings) and is_tested):
        _logger.info("%s holds this run, finished after %s steps", folder.path, f"{progress.step:,}")
        return progress
    examples, state = build(plan)
    events: Events | None = None  # of the main process
    if world.is_main:
        folder.prepare(new=saved is None, candidate=progress.candidate)
        about = {**about, "settings": plan.identity["settings"]}
        folder.write_json("run.json", about)
        settings = about["settings"]
        watching = [start_tracker(each, folder.path, settings) if isinstance(each, str) else each for each in callbacks]
        events = Events(folder.path, progress.log_length, progress.step, watching)
    try:
        if saved is not None:
            with folder.explain_damage():
                state.restore(saved, shards, world)
        # Several processes would stop after different steps, and could write no common checkpoint.
        with delay_signals(enabled=not world.is_distributed) as interrupted:
            Loop(plan, examples, state, folder, events).train(interrupted)
        write_result(plan, examples, state, folder, events)
    finally:
        if events is not None:
            events.close()
    return state.progress


def build(plan: Plan) -> tuple[Examples, TrainState]:
    """Decode the examples and make the parts of the training state, equal in all processes."""
    settings, embedder, world = plan.settings, plan.embedder, plan.world
    examples = make_examples(plan.data, plan.split, settings, embedder.preprocessing, world.device)
    train_data, store = examples.train.data, examples.train.store
    warn_of_small_classes(train_data, settings)
    sampler = make_sampler(settings, train_data, lambda indices: embed_shared(embedder, store, world, indices))
    # Seeded again, so that proxies start with the same values whether images were decoded or cached.
    torch.manual_seed(settings.seed)
    objective = Objective(settings, embedder.widths, len(train_data.class_sizes()), largest_class(settings))
    objective.to(world.device)
    state = TrainState(
        embedder=embedder,
        objective=objective,
        optimizer=make_optimizer(settings, embedder, objective),
        scaler=make_scaler(settings, world),
        ema=ExponentialMovingAverage(embedder, settings.ema) if settings.ema else None,
        sampler=sampler,
    )
    # From here on, each process has its own random numbers, so that dropout differs between them.
    torch.manual_seed(settings.seed + world.rank)
    return examples, state
