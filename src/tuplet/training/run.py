"""Training as one call: settings → parts → loop → result."""

import logging
import os
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tuplet
from tuplet import data as datasets
from tuplet.data import Dataset
from tuplet.embedding import embed_store
from tuplet.errors import OptionTypeError, opt, spell, warn
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.card import write_card
from tuplet.training.checkpoint import Progress, TrainState, check_same_processes, check_same_run, identity_of
from tuplet.training.data import Examples, as_trained, make_augment, make_examples
from tuplet.training.defaults import describe_choices
from tuplet.training.distributed import World, join_processes, main_raises_first
from tuplet.training.ema import ExponentialMovingAverage
from tuplet.training.events import Callback, Events
from tuplet.training.folder import EVALUATION, RunFolder, run_path
from tuplet.training.interrupt import delay_interrupt
from tuplet.training.loop import Loop, is_finished
from tuplet.training.model import check_inputs, make_embedder
from tuplet.training.objective import Objective, make_loss, refuse_unsuited_loss, warn_of_length
from tuplet.training.optimizer import make_optimizer, make_param_groups
from tuplet.training.recipes import Default, given_options, resolve_settings
from tuplet.training.result import write_result
from tuplet.training.sampler import (
    BATCH,
    CPU_BATCH,
    largest_class,
    make_sampler,
    refuse_sampler_options,
    refuse_unshared_batches,
    refuse_unsuited_batches,
    usual_batch_size,
    usual_sampler,
    warn_of_small_classes,
)
from tuplet.training.settings import Settings
from tuplet.training.split import Split, everything_trains, split_examples
from tuplet.training.start import Start, make_start
from tuplet.training.trackers import TrackerClass, find_tracker

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

    embedder: Embedder
    metrics: dict[str, Any]
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
        path = run_path(out)
        if not isinstance(resume, bool):  # None or 0 would remove the run in the folder
            raise OptionTypeError(f"{opt('resume')} is {resume!r}; give True to continue, or False to start again")
        dataset = data if isinstance(data, Dataset) else datasets.open(data)
        given = {"loss": loss, "model": model, "steps": steps, "seed": seed, **overrides}
        settings = resolve_settings(recipe, given, dataset)
        watching = [find_tracker(each) if isinstance(each, str) else each for each in callbacks]
        info = {
            "tuplet": tuplet.__version__,
            "data": dataset.source or repr(dataset),
            "opened_with": dict(dataset.opened_with),
            "recipe": recipe,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        world = join_processes(settings.device)
        choices = "" if recipe else describe_choices(given_options(given), settings, dataset)
        # The caller's random numbers stay unchanged.
        with world.quiet(), torch.random.fork_rng(world.gpus):
            run = _run(dataset, path, settings, info, resume, world, choices, watching)
        # If a process ended now, others that still communicate with it would wait forever.
        world.barrier()
        return run


def _run(
    data: Dataset,
    path: Path,
    settings: Settings,
    info: dict[str, Any],
    resume: bool,
    world: World,
    choices: str,
    callbacks: Sequence[Callback | TrackerClass],
) -> Run:
    settings, split, embedder = plan(data, settings, world)
    check_same_processes(identity_of(settings, data, embedder), world)
    start = make_start(embedder, settings, data)
    if choices and world.is_main:
        _logger.info(spell(choices), extra={"marked": choices})
    if split.validation_gallery is not None and settings.split == "classes" and world.is_main:
        classes, images = len(data.select(split.train).classes), len(split.validation)
        _logger.info(
            "%d training classes are too few to hold some out: %d images of them select the checkpoint", classes, images
        )
    folder = RunFolder(path)  # created after all checks, so that an error leaves no folder behind
    with folder.locked() if world.is_main else nullcontext():
        progress = _fit(data, split, settings, embedder, start, folder, info, resume, world, callbacks=callbacks)
        best = start.embedder if progress.best_step == 0 else embedder
        folder.load_embedder("best", best, world)
        metrics = world.broadcast(folder.read_json(EVALUATION) or {})
        if world.is_main:
            write_card(folder.path / "best", best, folder.read_json("run.json"), metrics)
        if settings.final:
            best = _fit_final(data, settings, progress, folder, info, resume, world)
        return Run(best.eval(), metrics, folder.path)


def _fit(
    data: Dataset,
    split: Split,
    settings: Settings,
    embedder: Embedder,
    start: Start,
    folder: RunFolder,
    info: dict[str, Any],
    resume: bool,
    world: World,
    average: float | None = None,
    callbacks: Sequence[Callback | TrackerClass] = (),
) -> Progress:
    """Train and test the embedder, or continue the run in the folder; return its progress."""
    identity = identity_of(settings, data, embedder)
    saved = world.broadcast(folder.read_checkpoint() if world.is_main and resume else None)
    progress = Progress()
    if saved is not None:
        with folder.explain_damage():
            check_same_run(saved["identity"], identity, folder.path)
            progress = Progress(**saved["progress"])
    is_tested = not len(split.test) or folder.has_result()
    if world.broadcast(saved is not None and is_finished(progress, settings) and is_tested):
        if world.is_main:
            _logger.info("%s holds this run, finished after %s steps", folder.path, f"{progress.step:,}")
        return progress
    examples, state = build(data, settings, split, embedder, world)
    events = None
    if world.is_main:
        folder.prepare(new=saved is None, candidate=progress.candidate)
        described = {**info, "settings": identity["settings"]}
        folder.write_json("run.json", described)
        watching = [each(folder.path, described) if isinstance(each, type) else each for each in callbacks]
        events = Events(folder.path, progress.log_length, progress.step, watching)
    if saved is not None:
        with folder.explain_damage():
            state.restore(saved, world)
    loop = Loop(settings, examples, state, start, folder, events, world, identity, average)
    try:
        # Several processes would stop after different steps, and could write no common checkpoint.
        with delay_interrupt(enabled=not world.is_distributed) as interrupted:
            loop.train(interrupted)
        write_result(loop)
    finally:
        if events is not None:
            events.close()
    return state.progress


def _fit_final(
    data: Dataset,
    settings: Settings,
    chosen: Progress,
    folder: RunFolder,
    info: dict[str, Any],
    resume: bool,
    world: World,
) -> Embedder:
    """Train on all examples as long as the best embedder was trained, and average with the start as it was."""
    last, wise = max(chosen.best_step, 0), chosen.best_average is not None
    settings = replace(settings, steps=last, wise_ft=wise, keep_start=False, evaluate_every=max(1, last), patience=None)
    if world.is_main:
        _logger.info("training on all %s examples for %s steps", f"{len(data):,}", f"{last:,}")
    loss = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    torch.manual_seed(settings.seed)
    embedder, _ = make_embedder(settings, loss, data)
    embedder.to(world.device)
    start, final = make_start(embedder, settings, data), RunFolder(folder.path / "final")
    split, average = everything_trains(data), chosen.best_average
    progress = _fit(data, split, settings, embedder, start, final, info, resume, world, average)
    best = start.embedder if progress.best_step == 0 else embedder
    final.load_embedder("best", best, world)
    return best


def plan(data: Dataset, settings: Settings, world: World) -> tuple[Settings, Split, Embedder]:
    """Complete the settings, split the data and make the embedder, without decoding an image.

    Decoding may take long, so every error in the settings is raised here.
    """
    loss = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    torch.manual_seed(settings.seed)  # after the loss, whose proxies draw numbers: every loss gets the same network
    embedder, settings = make_embedder(settings, loss, data)
    warn_of_length(loss, embedder.config.normalize)
    split = split_examples(data, settings)
    train_data = as_trained(data.select(split.train), settings)
    settings = replace(settings, sampler=settings.sampler or usual_sampler(loss), device=str(world.device))
    slow = world.device.type == "cpu" and settings.weights is not None
    size = settings.batch_size or usual_batch_size(settings, train_data, CPU_BATCH if slow else BATCH)
    settings = replace(settings, batch_size=size)
    refuse_sampler_options(settings)
    refuse_unsuited_batches(loss, settings)
    # Made for its checks alone: it embeds nothing before it is asked for a batch.
    make_sampler(settings, train_data, lambda indices: torch.empty(0))
    refuse_unshared_batches(settings, size, world.size)
    labelled = data if settings.final else train_data
    refuse_unsuited_loss(loss, settings, len(labelled.class_sizes()), train_data.targets.ndim == 2)
    make_param_groups(settings, embedder, loss)
    augment, prepared = make_augment(settings, embedder.preprocessing), embedder.preprocessing
    embedder.to(world.device)
    check_inputs(embedder, data, {each.size for each in (augment, prepared) if each is not None})
    for name, consequence in (
        ("warmup", "the learning rate rises to the end"),
        ("memory_start", "the memory is never used"),
        ("decay_every", "the learning rate never decays"),
    ):
        value = getattr(settings, name) or 0
        if value >= settings.steps > 0:
            remedy = f"give more {opt('steps')} or a smaller {opt(name)}"
            warn(f"{opt(name, value)} with {opt('steps', settings.steps)}: {consequence}; {remedy}")
    return settings, split, embedder


def build(
    data: Dataset, settings: Settings, split: Split, embedder: Embedder, world: World
) -> tuple[Examples, TrainState]:
    """Decode the examples and make the parts of the training state, equal in all processes."""
    examples = make_examples(data, split, settings, embedder.preprocessing, world.device)
    train_data, store = examples.train.data, examples.train.store

    def embed(indices: list[int]) -> Tensor:
        """Embed examples for the sampler: every process embeds its share and gets all vectors."""
        own = [indices[k] for k in world.shard(len(indices))]
        return world.gather_rows(embed_store(embedder, store, own))

    warn_of_small_classes(train_data, settings)
    sampler = make_sampler(settings, train_data, embed)
    # Seeded again, so that proxies start with the same values whether images were decoded or cached.
    torch.manual_seed(settings.seed)
    objective = Objective(settings, embedder.widths, len(train_data.class_sizes()), largest_class(settings))
    objective.to(world.device)
    state = TrainState(
        embedder=embedder,
        objective=objective,
        optimizer=make_optimizer(settings, embedder, objective),
        scaler=torch.amp.GradScaler(world.device.type, enabled=settings.precision == "float16"),
        ema=ExponentialMovingAverage(embedder, settings.ema) if settings.ema else None,
        sampler=sampler,
    )
    # From here on, each process has its own random numbers, so that dropout differs between them.
    torch.manual_seed(settings.seed + world.rank)
    return examples, state
