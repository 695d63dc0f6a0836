"""The objective of training: a loss on the embedding of each level, with an optional memory of past batches."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tuplet.errors import OptionError, OptionTypeError, did_you_mean, opt, refuse_unknown
from tuplet.losses import LOSSES, MemoryBank, RowLoss
from tuplet.mining import MINING, Mining
from tuplet.sampling import ClassTree
from tuplet.training.settings import Settings, fits


def make_loss(
    loss: str | RowLoss, options: Mapping[str, Any], classes: int, dim: int, widths: Sequence[int] = ()
) -> RowLoss:
    """Return a loss by its name and options, or a copy of a loss object. A named loss gets a proxy for each class.

    `widths` are those of the parts, for a loss over parts.

    >>> make_loss("raw", {"mining": {"name": "valid_triplet", "epsilon": 0.2}}, 10, 4).mining.epsilon
    0.2
    """
    if isinstance(loss, RowLoss):
        return copy.deepcopy(loss)
    options, made = dict(options), _named("loss", loss, LOSSES)
    takes = inspect.signature(made).parameters
    if "parts" in takes and "parts" in options:
        options["parts"] = [_make_part(part, classes, dim, widths) for part in options["parts"]]
    for name, value in (("num_classes", classes), ("dim", dim), ("widths", tuple(widths))):
        if name in takes and name in options:
            raise OptionTypeError(f"{name} of {made.__name__} follows from the data and the model; leave it out")
        if name in takes:
            options[name] = value
    rule = options.get("mining")
    # Strings that name no rule are choices of the loss itself, such as "hardest".
    if rule is not None and not (isinstance(rule, str) and rule not in MINING):
        options["mining"] = _make_mining(rule)
    return _call(made, options)


def _make_part(part: Any, classes: int, dim: int, widths: Sequence[int]) -> tuple[RowLoss, float]:
    """Return a loss of a sum and its weight, given as a dictionary with its name, its weight and its options."""
    about = dict(part) if isinstance(part, Mapping) else {}
    if not isinstance(name := about.pop("loss", None), str):
        raise OptionTypeError(
            f"a part of the sum is {part!r}; give a dictionary with the name of a loss and its weight, such as "
            "{'loss': 'softmax', 'weight': 1.0}"
        )
    weight = about.pop("weight", 1.0)
    return make_loss(name, about, classes, dim, widths), weight


def _make_mining(rule: Any) -> Mining:
    about = {"name": rule} if isinstance(rule, str) else dict(rule) if isinstance(rule, Mapping) else {}
    if not isinstance(name := about.pop("name", None), str):
        raise OptionTypeError(
            f"mining is {rule!r}; give a name, a dictionary with a name, or a whole loss as an object"
        )
    return _call(_named("mining", name, MINING), about)


def _named(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise OptionError(f"there is no {kind} {name!r}; {did_you_mean(name, table)}")
    return table[name]


def _call(made: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call a class with options, after a check of their names and types."""
    # A class without options has those of any module: *args and **kwargs.
    parameters = inspect.signature(made).parameters.items()
    takes = {name: each for name, each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD}
    refuse_unknown(made.__name__, options, takes)
    for name, value in options.items():
        # The command line passes a string where no number was typed. The loss would fail only in its first step.
        kind = takes[name].annotation
        if kind in (int, float, bool) and not fits(value, kind):
            raise OptionTypeError(f"{name} of {made.__name__} is {value!r}; it must be {kind.__name__}")
    missing = [name for name, each in takes.items() if each.default is each.empty and name not in options]
    if missing:
        raise OptionTypeError(f"{made.__name__} needs {' and '.join(missing)}; give them as its options")
    return made(**options)


def refuse_unsuited_loss(loss: RowLoss, settings: Settings, classes: int, several: bool = False) -> None:
    """Raise an error for a loss with proxies for fewer classes than are trained, or one that cannot use the memory.

    `several` says that examples have several labels: neither proxies nor a memory take those.
    """
    name = type(loss).__name__
    parts = [part for part in loss.modules() if isinstance(part, RowLoss)]
    with_proxies = [part for part in parts if part.proxies is not None]
    both = "and the examples have several labels"
    if several and settings.memory:
        raise OptionError(f"{opt('memory')} is {settings.memory}, {both}", f"use {opt('memory', 0)}")
    if several and with_proxies:
        remedy = f"use a loss of pairs, such as {opt('loss', 'multi_similarity')}"
        raise OptionError(f"{name} has one proxy for each class, {both}", remedy)
    # A named loss gets as many proxies as it needs. On a GPU the loss itself does not check the labels.
    for part in with_proxies if isinstance(settings.loss, RowLoss) else ():
        assert part.proxies is not None
        if part.sharded:
            raise OptionError(
                f"{type(part).__name__} is a sharded object, whose shares training cannot divide again",
                f"give its name and {opt('loss_options', {'sharded': True})}",
            )
        known = getattr(part, "num_classes", len(part.proxies) // part.centers)
        if known < classes:
            raise OptionError(
                f"{type(part).__name__} has proxies for {known} classes and {classes} are trained",
                f"make it with num_classes={classes}, or give its name",
            )
    if settings.memory and not loss.takes_gallery:
        raise OptionError(
            f"{opt('memory')} is {settings.memory} and {name} takes no memory",
            f"use {opt('memory', 0)}, or another loss",
        )
    # On a GPU the loss does not count, and would miss the other examples of a class.
    least = min((part.max_per_class for part in parts if part.max_per_class is not None), default=settings.memory)
    if least < settings.memory:
        raise OptionError(
            f"max_per_class is {least} and a memory of {settings.memory} may hold more of a class",
            "leave it out: training knows its batches",
        )


class Objective(nn.Module):
    """Sum of loss(batch) over the parts of the embedder, and of loss(batch, gallery=memory) if there is a memory.

    Each part, such as a level, has its own loss and memory; a joint loss takes all parts at once. With several
    processes the batch is that of all of them, and each process remembers all of it, so their memories are equal.
    """

    def __init__(self, settings: Settings, widths: Sequence[int], classes: int, max_per_class: int | None) -> None:
        super().__init__()
        made = [make_loss(settings.loss, settings.loss_options, classes, width, widths) for width in widths]
        # A loss over parts is one for all.
        self.losses = nn.ModuleList(made[:1] if made[0].joint else made)
        self.banks = nn.ModuleList(MemoryBank(settings.memory, width) for width in widths if settings.memory)
        self.start, self.max_per_class = settings.memory_start, max_per_class

    def forward(self, parts: Sequence[Tensor], labels: Tensor, step: int, distributed: bool) -> Tensor:
        """Return the value for the parts of the embeddings, of the share of the batch that this process has."""
        # Examples of several labels, (N, L), are the same if they share any.
        options = {"same": "any"} if labels.ndim == 2 else {"max_per_class": self.max_per_class}
        if self._losses[0].joint:
            return self.losses[0](parts, labels, distributed=distributed, **options)
        total = torch.zeros((), device=labels.device)
        for level, (part, loss) in enumerate(zip(parts, self.losses, strict=True)):
            total = total + loss(part, labels, distributed=distributed, **options)
            if self.banks and step >= self.start:
                total = total + loss(part, labels, gallery=self.banks[level], distributed=distributed)
        return total

    def set_tree(self, tree: ClassTree) -> None:
        """Give the losses the tree of classes of the epoch that starts."""
        for loss in self._losses:
            loss.set_tree(tree)

    @torch.no_grad()
    def active(self, parts: Sequence[Tensor], labels: Tensor, distributed: bool) -> Tensor:
        """Return which triplets of the batch of all processes have a loss, on the last level."""
        return self._losses[-1].active(parts[-1], labels, distributed=distributed)

    @property
    def _losses(self) -> list[RowLoss]:
        return [loss for loss in self.losses if isinstance(loss, RowLoss)]

    @property
    def classify(self) -> Callable[[Tensor], Tensor] | None:
        """The classifier of a loss that has all classes, or of a part of a sum; None with several levels or heads."""
        parts = self.losses[0].modules() if len(self.losses) == 1 else ()
        whole = (part for part in parts if not getattr(part, "sharded", False))
        return next(filter(None, (getattr(part, "classify", None) for part in whole)), None)

    def end_epoch(self) -> None:
        """Tell the losses that an epoch has ended."""
        for loss in self._losses:
            loss.end_epoch()

    @torch.no_grad()
    def remember(self, parts: Sequence[Tensor], labels: Tensor, gather: Callable[[Tensor], Tensor]) -> None:
        """Add the batch to the memories; `gather` returns the rows of all processes."""
        if self.banks:
            labels = gather(labels)
            for part, bank in zip(parts, self.banks, strict=True):
                assert isinstance(bank, MemoryBank)
                bank.add(gather(part), labels)
