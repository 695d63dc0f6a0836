"""Class vectors divided among processes, with an exact softmax over all of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tuplet.rows import ProcessGroup, View


def hold(parameter: Tensor, view: View) -> Tensor:
    """Return a parameter that this process alone holds, with its own gradient.

    The gradient that comes back through sums over processes is multiplied by their number. For the embeddings the
    average over processes undoes that; nothing averages a share, so its gradient is divided here.
    """
    held = parameter.clone()
    if view.group is not None and held.requires_grad:
        world = view.group.world
        held.register_hook(lambda gradient: gradient / world)
    return held


def sharded_softmax(
    view: View,
    group: ProcessGroup,
    logits: Callable[..., tuple[Tensor, Tensor, Tensor]],
    term: Callable[[Tensor, Tensor], Tensor],
    other: Sequence[Tensor] = (),
) -> Tensor:
    """Return the mean over queries of a softmax loss over the classes of all processes.

    Every process compares all queries with its own classes. One number for each query, the logarithm of a sum, and the
    logit of its own class are then joined over the processes, so no process sees a table of all classes.

    Args:
        view: queries of all processes, and a gallery of this process's class vectors.
        group: the processes.
        logits: row function that returns for each query the logarithm of the sum over the other classes here, the
            logit of its own class, and whether that class is here.
        term: function of the first two, joined, that returns the terms.
        other: inputs of the row function for each class.
    """

    def numbers(s: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> Tensor:
        push, own, here = logits(s, positive, negative, *inputs)
        return torch.stack([push, own, here.to(s.dtype)], 1)

    push, own, here = replace(view, group=None, split=False).each(numbers, other=other).unbind(1)
    push, own, here = group.logsumexp(push), group.sum(own), group.sum(here.detach())
    terms = torch.where(here > 0, term(push, own), 0)
    return terms.sum() / here.sum().clamp_min(1)
