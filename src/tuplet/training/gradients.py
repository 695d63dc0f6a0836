"""Back-propagation of one loss through a batch, whole or in pieces."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

Embed = Callable[[Tensor], Tensor]


def backward(
    embed: Embed,
    inputs: Tensor,
    loss_of: Callable[[Tensor], Tensor],
    scale: Callable[[Tensor], Tensor] = lambda value: value,
    piece_size: int | None = None,
    hold: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Tensor, Tensor]:
    """Form the gradient of loss_of(embed(inputs)); give the loss and the embeddings, both detached.

    With `piece_size` the network sees that many inputs at once, and the gradient is still that of the one loss over the
    whole batch: embed all pieces without a graph, differentiate the loss by the embeddings, then embed each
    piece again and back-propagate its share. It costs one more forward pass. The second pass draws the
    same random numbers as the first, so dropout is the same; BatchNorm must be frozen, since in training its
    statistics are those of a piece. (Gradient caching: Gao et al., RepL4NLP 2021.)

    `scale` multiplies what is back-propagated, for half precision. All pieces but the last are back-propagated inside
    `hold()`, where data-parallel training waits with exchanging gradients.

    >>> w = torch.ones(3, 2, requires_grad=True)
    >>> value, _ = backward(lambda x: x @ w, torch.eye(3), lambda v: v.square().sum(), piece_size=2)
    >>> value.item(), w.grad.tolist()
    (6.0, [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]])
    """
    if piece_size is None:
        embeddings = embed(inputs)
        value = loss_of(embeddings)
        scale(value).backward()
        return value.detach(), embeddings.detach()
    pieces = inputs.split(piece_size)
    before, first = [], []
    with torch.no_grad():
        for piece in pieces:
            before.append(random_state(inputs.device))
            first.append(embed(piece))
    embeddings = torch.cat(first).requires_grad_()
    value = loss_of(embeddings)
    scale(value).backward()
    assert embeddings.grad is not None
    # The loss may have drawn too, and is to draw on from there in the next step.
    after = random_state(inputs.device)
    for number, gradient in enumerate(embeddings.grad.split(piece_size)):
        set_random_state(before[number], inputs.device)
        with hold() if number + 1 < len(pieces) else nullcontext():
            again = embed(pieces[number])
            if again.requires_grad:  # else all of the network is frozen, and only the loss learns
                again.backward(gradient)
    set_random_state(after, inputs.device)
    return value.detach(), embeddings.detach()


def random_state(device: torch.device) -> list[Tensor]:
    """The state of the random numbers that a network on this device draws."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Draw on from such a state."""
    torch.set_rng_state(state[0].cpu())
    if device.type == "cuda" and len(state) > 1:
        torch.cuda.set_rng_state(state[1].cpu(), device)
