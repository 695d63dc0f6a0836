"""The plan of a run: everything that is checked and made before an image is decoded."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tuplet.data import Dataset
from tuplet.errors import opt, warn
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.training.checkpoint import Progress, identity_of
from tuplet.training.data import make_augment
from tuplet.training.distributed import World
from tuplet.training.model import Start, check_inputs, make_embedder, make_start, warn_of_length
from tuplet.training.objective import make_loss, refuse_unsuited_loss
from tuplet.training.optimizer import make_param_groups
from tuplet.training.resolve import resolve_settings
from tuplet.training.sampler import choose_batches
from tuplet.training.settings import Settings
from tuplet.training.split import Split, as_trained, everything_trains, split_examples


@dataclass(frozen=True, eq=False)
class Plan:
    """A run that can be trained: its options are complete and fit its data.

    Attributes:
        data: the dataset.
        settings: the options, none of them left open.
        split: the training, validation and test examples.
        embedder: the embedder to train, on the device.
        start: the model before training.
        world: the processes of the run.
        identity: plain data that tell it from other runs.
        average: the share of the last weights in an average with the start, where an earlier run has chosen it.
    """

    data: Dataset
    settings: Settings
    split: Split
    embedder: Embedder
    start: Start
    world: World
    identity: dict[str, Any]
    average: float | None = None


def make_plan(data: Dataset, settings: Settings, world: World) -> Plan:
    """Complete the settings, split the data and make the embedder, without decoding an image.

    Decoding may take long, so every error in the settings is raised here.
    """
    loss, embedder, settings = _loss_and_embedder(data, settings, world)
    warn_of_length(loss, embedder.config.normalize)
    split = split_examples(data, settings)
    train_data = as_trained(data.select(split.train), settings)
    settings = choose_batches(settings, loss, train_data, world)
    labelled = data if settings.final else train_data
    refuse_unsuited_loss(loss, settings, len(labelled.class_sizes()), several=train_data.targets.ndim == 2)
    make_param_groups(settings, embedder, loss)
    augment, prepared = make_augment(settings, embedder.preprocessing), embedder.preprocessing
    sizes = {} if augment is None else {augment.size: f"size in {opt('augment')}"}
    check_inputs(embedder, data, sizes if prepared is None else sizes | {prepared.size: opt("size")})
    _warn_of_unreached(settings)
    return _complete(data, settings, split, embedder, world)


def try_plan(data: Dataset, recipe: str | None, options: Mapping[str, Any], world: World) -> Plan:
    """Plan a run ahead of time, to check its options: without its warnings, which the run itself gives."""
    with warnings.catch_warnings(), torch.random.fork_rng(world.gpus):
        warnings.simplefilter("ignore")
        return make_plan(data, resolve_settings(recipe, options, data), world)


def plan_final(plan: Plan, chosen: Progress) -> Plan:
    """Plan to train on all examples, with the steps of the best embedder and its share in an average with the start."""
    last, wise = max(chosen.best_step, 0), chosen.best_average is not None
    settings = replace(
        plan.settings, steps=last, wise_ft=wise, keep_start=False, evaluate_every=max(1, last), patience=None
    )
    _, embedder, _ = _loss_and_embedder(plan.data, settings, plan.world)
    final = _complete(plan.data, settings, everything_trains(plan.data), embedder, plan.world)
    return replace(final, average=chosen.best_average)


def _loss_and_embedder(data: Dataset, settings: Settings, world: World) -> tuple[RowLoss, Embedder, Settings]:
    """Make a loss, for its facts alone, and the embedder; complete the settings by what these decide."""
    loss = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    torch.manual_seed(settings.seed)  # after the loss, whose proxies draw numbers: every loss gets the same network
    embedder, settings = make_embedder(settings, loss, data)
    return loss, embedder.to(world.device), replace(settings, device=str(world.device))


def _complete(data: Dataset, settings: Settings, split: Split, embedder: Embedder, world: World) -> Plan:
    start, identity = make_start(embedder, settings, data), identity_of(settings, data, embedder)
    return Plan(data, settings, split, embedder, start, world, identity)


def _warn_of_unreached(settings: Settings) -> None:
    """Warn of options whose effect begins after the last step."""
    for name, consequence in (
        ("warmup", "the learning rate rises to the end"),
        ("memory_start", "the memory is never used"),
        ("decay_start" if settings.decay_start else "decay_every", "the learning rate never decays"),
    ):
        value = getattr(settings, name) or 0
        if value >= settings.steps > 0:
            remedy = f"give more {opt('steps')} or a smaller {opt(name)}"
            warn(f"{opt(name, value)} with {opt('steps', settings.steps)}: {consequence}; {remedy}")
