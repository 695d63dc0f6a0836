"""One step: a batch passes the network, its loss is differentiated, and the weights move."""

from typing import NamedTuple

import torch
from torch import Tensor

from tuplet.data import Batch
from tuplet.training.gradients import backward
from tuplet.training.late import Late
from tuplet.training.optimizer import leave_out_if_not_finite, shorten
from tuplet.training.processes import Team
from tuplet.training.sampler import largest_share
from tuplet.training.settings import Settings
from tuplet.training.state import State


class Launched(NamedTuple):
    """A step, counted from 1, whose loss and length of gradient are on their way."""

    step: int
    examples: Tensor
    embeddings: Tensor
    numbers: Late


class Stepper:
    """Takes the steps of a run, each on this process's share of a batch, without waiting for the device."""

    def __init__(self, settings: Settings, state: State, team: Team) -> None:
        self.settings, self.state, self.team = settings, state, team
        embedder, dtype = state.embedder, getattr(torch, settings.precision)
        self.network, self.hold = team.parallel(embedder.compiled() if settings.compile else embedder)
        # Data-parallel training talks in the first pass with a graph, so all processes take pieces or none does.
        in_pieces = settings.piece_size is not None and settings.piece_size < largest_share(settings, team.size)
        self.piece_size = settings.piece_size if in_pieces else None
        self.precision = torch.autocast(team.device.type, dtype, enabled=dtype != torch.float32)
        """The context in which the network computes."""

    def step(self, step: int, batch: Batch, inputs: Tensor) -> Launched:
        """Move the weights at a step, counted from 0; where loss or gradient are not finite, they stay."""
        state, split = self.state, self.state.embedder.split
        optimizer, scaler = state.optimizer, state.scaler

        def loss_of(embeddings: Tensor) -> Tensor:
            return state.objective(split(embeddings), batch.labels, step, ranks=self.team.many)

        value, embeddings = backward(self._embed, inputs, loss_of, scaler.scale, self.piece_size, self.hold)
        scaler.unscale_(optimizer)
        numbers = Late(value, shorten(optimizer, self.settings.clip))
        if not scaler.is_enabled():
            leave_out_if_not_finite(optimizer, numbers.on_device)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        state.objective.remember(split(embeddings), batch.labels, self.team.rows_of_all)
        if state.average is not None:
            state.average.update(step)
        return Launched(step + 1, batch.index, embeddings, numbers)

    def _embed(self, inputs: Tensor) -> Tensor:
        with self.precision:
            return self.network(inputs)
