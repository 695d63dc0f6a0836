"""A run put together: first what is decided without reading a picture, then the parts that move."""

import warnings
from dataclasses import replace

import torch

from tuplet.data import Dataset
from tuplet.models import Embedder
from tuplet.training.average import Average
from tuplet.training.examples import Examples, embed, make_augment, make_examples
from tuplet.training.network import make_embedder, refuse_unsuited_examples
from tuplet.training.objective import Objective, make_loss, refuse_unsuited_loss, warn_of_length
from tuplet.training.optimizer import learning, make_optimizer
from tuplet.training.processes import Team
from tuplet.training.sampler import (
    class_share,
    make_sampler,
    refuse_unfilled_batches,
    refuse_unshared_batches,
    refuse_unsuited_batches,
    usable_sizes,
    usual_batch_size,
    usual_sampler,
)
from tuplet.training.settings import Settings
from tuplet.training.split import Split, split_examples
from tuplet.training.state import State


def decide(data: Dataset, settings: Settings, team: Team) -> tuple[Settings, Split, Embedder]:
    """The settings with everything decided that was left open, who trains and who tests, and the embedder."""
    torch.manual_seed(settings.seed)
    probe = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    embedder, settings = make_embedder(settings, probe, data)
    warn_of_length(probe, embedder.config.normalize)
    split = split_examples(data, settings)
    trained = data.select(split.train)
    settings = replace(settings, sampler=settings.sampler or usual_sampler(probe), device=str(team.device))
    size = settings.batch_size or usual_batch_size(settings, trained)
    settings = replace(settings, batch_size=size)
    # Everything that would be refused later is refused now, since decoding pictures may take long.
    refuse_unsuited_batches(probe, settings)
    refuse_unfilled_batches(settings, size, usable_sizes(trained))
    refuse_unshared_batches(settings, size, team.size)
    refuse_unsuited_loss(probe, settings, len(trained.classes))
    learning(settings, embedder, probe)
    augment, prepared = make_augment(settings, embedder.preprocessing), embedder.preprocessing
    embedder.to(team.device)
    refuse_unsuited_examples(embedder, data, {each.size for each in (augment, prepared) if each is not None})
    _warn_of_too_few_steps(settings)
    return settings, split, embedder


def _warn_of_too_few_steps(settings: Settings) -> None:
    for name, what in (
        ("warmup", "the rate rises to the end"),
        ("memory_start", "the memory is never used"),
        ("decay_every", "the rate never falls"),
    ):
        if (getattr(settings, name) or 0) >= settings.steps:
            given = f"{name}={getattr(settings, name)} with {settings.steps} steps"
            warnings.warn(f"{given}: {what}; give more steps or a smaller {name}", stacklevel=5)


def assemble(data: Dataset, settings: Settings, split: Split, embedder: Embedder, team: Team) -> tuple[Examples, State]:
    """The decoded examples and the moving parts: the same ones in every process."""
    examples = make_examples(data, split, settings, embedder.preprocessing, team.device)
    trained = examples.train
    sampler = make_sampler(settings, trained.data, lambda which: embed(embedder, trained.store, which))
    # Whether pictures were decoded or cached, proxies start alike.
    torch.manual_seed(settings.seed)
    objective = Objective(settings, embedder.widths, len(trained.data.classes), largest_class(settings))
    objective.to(team.device)
    state = State(
        embedder=embedder,
        objective=objective,
        optimizer=make_optimizer(settings, embedder, objective),
        scaler=torch.amp.GradScaler(team.device.type, enabled=settings.precision == "float16"),
        average=Average(embedder, settings.average) if settings.average else None,
        sampler=sampler,
    )
    # From here on each process draws numbers of its own: dropout is to differ between them.
    torch.manual_seed(settings.seed + team.rank)
    return examples, state


def largest_class(settings: Settings) -> int | None:
    """The most examples of a class in a batch, which spares the losses a look at the labels; None where unknown."""
    return None if settings.sampler == "triplet" else class_share(settings)
