"""The plan of a run: everything that is decided and checked before an image is decoded."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from tuplet.data import Dataset
from tuplet.errors import opt, warn
from tuplet.models import Embedder
from tuplet.training.checkpoint import Progress, identity_of
from tuplet.training.data import as_trained, make_augment
from tuplet.training.distributed import World
from tuplet.training.model import check_inputs, make_embedder
from tuplet.training.objective import make_loss, refuse_unsuited_loss, warn_of_length
from tuplet.training.optimizer import make_param_groups
from tuplet.training.sampler import choose_batches
from tuplet.training.settings import Settings
from tuplet.training.split import Split, everything_trains, split_examples
from tuplet.training.start import Start, make_start


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
    loss = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    torch.manual_seed(settings.seed)  # after the loss, whose proxies draw numbers: every loss gets the same network
    embedder, settings = make_embedder(settings, loss, data)
    settings = replace(settings, device=str(world.device))
    warn_of_length(loss, embedder.config.normalize)
    split = split_examples(data, settings)
    train_data = as_trained(data.select(split.train), settings)
    settings = choose_batches(settings, loss, train_data, world)
    labelled = data if settings.final else train_data
    refuse_unsuited_loss(loss, settings, len(labelled.class_sizes()), train_data.targets.ndim == 2)
    make_param_groups(settings, embedder, loss)
    augment, prepared = make_augment(settings, embedder.preprocessing), embedder.preprocessing
    embedder.to(world.device)
    check_inputs(embedder, data, {each.size for each in (augment, prepared) if each is not None})
    _warn_of_unreached(settings)
    return _complete(data, settings, split, embedder, world)


def plan_final(plan: Plan, chosen: Progress) -> Plan:
    """Plan to train on all examples, as long as the best embedder was trained and averaged with the start like it."""
    last, wise = max(chosen.best_step, 0), chosen.best_average is not None
    settings = replace(
        plan.settings, steps=last, wise_ft=wise, keep_start=False, evaluate_every=max(1, last), patience=None
    )
    loss = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    torch.manual_seed(settings.seed)
    embedder, _ = make_embedder(settings, loss, plan.data)
    embedder.to(plan.world.device)
    final = _complete(plan.data, settings, everything_trains(plan.data), embedder, plan.world)
    return replace(final, average=chosen.best_average)


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
