"""The parts of a run, put together from its settings: the same ones, from the same seed, in every process."""

from dataclasses import replace

import torch

from tuplet.data import Dataset
from tuplet.training.average import Average
from tuplet.training.examples import Examples, embed, make_examples
from tuplet.training.network import make_embedder
from tuplet.training.objective import Objective, make_loss, warn_of_length
from tuplet.training.optimizer import make_optimizer
from tuplet.training.processes import Team
from tuplet.training.sampler import class_share, make_sampler, usual_batch_size, usual_sampler
from tuplet.training.settings import Settings
from tuplet.training.state import State


def assemble(data: Dataset, settings: Settings, team: Team) -> tuple[Settings, Examples, State]:
    """The settings with everything decided that was left open, the examples, and the moving parts."""
    torch.manual_seed(settings.seed)
    probe = make_loss(settings.loss, settings.loss_options, classes=1, dim=1)
    embedder, settings = make_embedder(settings, probe, data)
    warn_of_length(probe, embedder.config.normalize)
    embedder.to(team.device)
    settings = replace(settings, sampler=settings.sampler or usual_sampler(probe), device=str(team.device))

    examples = make_examples(data, settings, embedder.preprocessing, team.device)
    trained = examples.train
    settings = replace(settings, batch_size=settings.batch_size or usual_batch_size(settings, trained.data))
    sampler = make_sampler(settings, trained.data, lambda which: embed(embedder, trained.store, which))
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
    return settings, examples, state


def largest_class(settings: Settings) -> int | None:
    """The most examples of a class in a batch, which spares the losses a look at the labels; None where unknown."""
    return None if settings.sampler == "triplet" else class_share(settings)
