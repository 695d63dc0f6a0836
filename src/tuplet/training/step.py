"""One training step: embed a batch, back-propagate its loss, update the weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tuplet.data import Batch
from tuplet.training.checkpoint import TrainState, rng_state, set_rng_state
from tuplet.training.distributed import World
from tuplet.training.optimizer import clip_gradient, skip_if_not_finite
from tuplet.training.sampler import largest_share
from tuplet.training.settings import Settings


class HostCopy:
    """Scalars that are copied from the device to the host without waiting.

    >>> HostCopy(torch.tensor(1.5), torch.tensor(2.0)).read()
    [1.5, 2.0]
    """

    def __init__(self, *scalars: Tensor) -> None:
        self.on_device = torch.stack([x.detach().double() for x in scalars])
        self._on_host, self._copied = self.on_device, None
        if self.on_device.is_cuda:
            # A copy is asynchronous only into pinned memory.
            self._on_host = torch.empty_like(self.on_device, device="cpu", pin_memory=True)
            self._on_host.copy_(self.on_device, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[float]:
        """Wait for the copy, but not for work that was launched after it, and return the values."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._on_host.tolist()


class StepResult(NamedTuple):
    """A step, counted from 1, that the device may still be working on; `numbers` are its loss and gradient norm."""

    step: int
    examples: Tensor
    embeddings: Tensor
    numbers: HostCopy


class Stepper:
    """Takes training steps, each on this process's share of a batch, without waiting for the device."""

    def __init__(self, settings: Settings, state: TrainState, world: World) -> None:
        self.settings, self.state, self.world = settings, state, world
        embedder, dtype = state.embedder, getattr(torch, settings.precision)
        self.network, self.no_sync = world.data_parallel(embedder.compiled() if settings.compile else embedder)
        # DistributedDataParallel communicates in the first pass with a graph, so that either all processes use
        # micro-batches or none does: the largest share of a batch decides.
        micro, largest = settings.micro_batch_size, largest_share(settings, world.size)
        self.micro_batch_size = micro if micro is not None and micro < largest else None
        self.autocast = torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32)

    def step(self, step: int, batch: Batch, inputs: Tensor) -> StepResult:
        """Update the weights at a step, counted from 0; leave them unchanged if loss or gradient is not finite."""
        state, split = self.state, self.state.embedder.split
        optimizer, scaler = state.optimizer, state.scaler
        if step % len(state.sampler) == 0 and state.sampler.tree is not None:
            state.objective.set_tree(state.sampler.tree)

        def loss_of(embeddings: Tensor) -> Tensor:
            return state.objective(split(embeddings), batch.labels, step, distributed=self.world.is_distributed)

        loss, embeddings = backward(self._embed, inputs, loss_of, scaler.scale, self.micro_batch_size, self.no_sync)
        scaler.unscale_(optimizer)
        numbers = HostCopy(loss, clip_gradient(optimizer, self.settings.clip, self.world))
        if not scaler.is_enabled():
            skip_if_not_finite(optimizer, numbers.on_device)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        state.objective.remember(split(embeddings), batch.labels, self.world.gather_rows)
        if state.sampler.needs_active:
            active = state.objective.active(split(embeddings), batch.labels, self.world.is_distributed)
            state.sampler.report(active)
        if (step + 1) % len(state.sampler) == 0:
            state.objective.end_epoch()
        if state.ema is not None:
            state.ema.update(step)
        return StepResult(step + 1, batch.index, embeddings, numbers)

    def _embed(self, inputs: Tensor) -> Tensor:
        with self.autocast:
            return self.network(inputs)


def backward(
    embed: Callable[[Tensor], Tensor],
    inputs: Tensor,
    loss_of: Callable[[Tensor], Tensor],
    scale: Callable[[Tensor], Tensor] = lambda value: value,
    micro_batch_size: int | None = None,
    no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Tensor, Tensor]:
    """Back-propagate loss_of(embed(inputs)), the loss of the whole batch, also in micro-batches.

    In micro-batches: embed all of them without a graph, differentiate the loss with respect to the embeddings, then
    embed each again and back-propagate its part of that gradient. This costs one more forward pass and gives the same
    gradient (gradient caching: Gao et al., RepL4NLP 2021). The second pass draws the same random numbers, so dropout is
    the same. BatchNorm must be frozen, since its statistics would be those of a micro-batch.

    Args:
        embed: the network.
        inputs: a batch.
        loss_of: the loss of the batch's embeddings.
        scale: multiplies what is back-propagated, for half precision.
        micro_batch_size: inputs that pass through the network at once; None is all.
        no_sync: context of all micro-batches but the last, in which data-parallel training exchanges no gradients.

    Returns:
        The loss and the embeddings, both detached.

    >>> w = torch.ones(3, 2, requires_grad=True)
    >>> loss, _ = backward(lambda x: x @ w, torch.eye(3), lambda v: v.square().sum(), micro_batch_size=2)
    >>> loss.item(), w.grad.tolist()
    (6.0, [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]])
    """
    if micro_batch_size is None:
        embeddings = embed(inputs)
        loss = loss_of(embeddings)
        scale(loss).backward()
        return loss.detach(), embeddings.detach()
    micro_batches = inputs.split(micro_batch_size)
    rng_before, parts = [], []
    with torch.no_grad():
        for micro_batch in micro_batches:
            rng_before.append(rng_state(inputs.device))
            parts.append(embed(micro_batch))
    embeddings = torch.cat(parts).requires_grad_()
    loss = loss_of(embeddings)
    scale(loss).backward()
    assert embeddings.grad is not None
    # The loss may use random numbers too. The next step must continue after them.
    rng_after = rng_state(inputs.device)
    for number, gradient in enumerate(embeddings.grad.split(micro_batch_size)):
        set_rng_state(rng_before[number], inputs.device)
        with no_sync() if number + 1 < len(micro_batches) else nullcontext():
            part = embed(micro_batches[number])
            if part.requires_grad:  # False if the whole network is frozen, and only the loss has parameters
                part.backward(gradient)
    set_rng_state(rng_after, inputs.device)
    return loss.detach(), embeddings.detach()
