"""What is minimised: a loss on each level's embedding, beside a memory of past batches."""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tuplet import losses, mining
from tuplet.losses import MemoryBank, RowLoss
from tuplet.training.settings import Settings, fits, nearest, shown

#: The losses by name.
LOSSES: dict[str, type[RowLoss]] = {
    "angular": losses.AngularLoss,
    "angular_hinge": losses.AngularHingeLoss,
    "binomial_deviance": losses.BinomialDevianceLoss,
    "contrastive": losses.ContrastiveLoss,
    "cosine_contrastive": losses.CosineContrastiveLoss,
    "generalized_lifted": losses.GeneralizedLiftedLoss,
    "histogram": losses.HistogramLoss,
    "lifted_structure": losses.LiftedStructureLoss,
    "margin": losses.MarginLoss,
    "multi_similarity": losses.MultiSimilarityLoss,
    "nca": losses.NCALoss,
    "npair": losses.NPairLoss,
    "npair_all": losses.NPairAllLoss,
    "npair_angular": losses.NPairAngularLoss,
    "nra": losses.NRALoss,
    "proxy_anchor": losses.ProxyAnchorLoss,
    "proxy_nca": losses.ProxyNCALoss,
    "ranked_list": losses.RankedListLoss,
    "raw": losses.RAWLoss,
    "smooth_triplet": losses.SmoothTripletLoss,
    "softmax": losses.SoftmaxLoss,
    "triplet": losses.TripletLoss,
}

#: The mining rules by name, for `loss_options={"mining": "valid_triplet"}` or {"mining": {"name": …, options}}.
MINING: dict[str, type[mining.Mining]] = {
    "distance_weighted": mining.DistanceWeighted,
    "non_trivial": mining.NonTrivial,
    "semi_hard": mining.SemiHard,
    "valid_triplet": mining.ValidTriplet,
}

#: Losses whose boundaries are those of unit vectors.
_UNIT = (
    *(losses.BinomialDevianceLoss, losses.CosineContrastiveLoss, losses.GeneralizedLiftedLoss, losses.HistogramLoss),
    *(losses.MarginLoss, losses.ProxyAnchorLoss, losses.ProxyNCALoss, losses.RAWLoss, losses.RankedListLoss),
)
#: Losses of products without a boundary, which their authors left free in training where they have no scale.
_UNBOUNDED = (
    *(losses.AngularLoss, losses.NCALoss, losses.NPairAllLoss, losses.NPairAngularLoss, losses.NPairLoss),
    losses.SmoothTripletLoss,
)


def usual_normalize(loss: RowLoss) -> bool | Literal["eval"]:
    """What the authors of a loss did: vectors of unit length always, or outside training only.

    >>> usual_normalize(losses.NPairLoss()), usual_normalize(losses.NPairLoss(scale=16.0))
    ('eval', True)
    """
    return "eval" if _lacks_scale(loss) or isinstance(loss, losses.NRALoss | losses.SoftmaxLoss) else True


def warn_of_length(loss: RowLoss, normalize: bool | Literal["eval"]) -> None:
    """Say so when a loss gets vectors of another length than it is defined on."""
    name = type(loss).__name__
    # The angular losses take no scale: they learn better from unit vectors than from free ones, which shrink first.
    if normalize is True and hasattr(loss, "scale") and _lacks_scale(loss):
        warnings.warn(
            f"{name} gets unit vectors, whose products are too small for it to fall far; "
            "give the loss a scale such as 16, or use normalize='eval'",
            stacklevel=5,
        )
    if normalize is not True and isinstance(loss, _UNIT):
        warnings.warn(
            f"{name} is defined on unit vectors and gets vectors of any length in training; use normalize=True",
            stacklevel=5,
        )


def _lacks_scale(loss: RowLoss) -> bool:
    return isinstance(loss, _UNBOUNDED) and getattr(loss, "scale", 1.0) == 1.0


def make_loss(loss: str | RowLoss, options: Mapping[str, Any], classes: int, dim: int) -> RowLoss:
    """A loss by its name and options, or a copy of a loss object. Losses with proxies get one for each class.

    >>> make_loss("raw", {"mining": {"name": "valid_triplet", "epsilon": 0.2}}, 10, 4).mining.epsilon
    0.2
    """
    if isinstance(loss, RowLoss):
        return copy.deepcopy(loss)
    if not isinstance(loss, str):
        raise TypeError(f"loss is {shown(loss)}; give a name, or a loss object of tuplet.losses")
    if not isinstance(options, Mapping):
        raise TypeError(f"loss_options is {options!r}; give a dictionary, such as {{'margin': 0.4}}")
    options = dict(options)
    made = _named("loss", loss, LOSSES)
    takes = inspect.signature(made).parameters
    for name, value in (("num_classes", classes), ("dim", dim)):
        if name in takes and name in options:
            raise TypeError(f"{name} of {made.__name__} follows from the data and the model; leave it out")
        if name in takes:
            options[name] = value
    rule = options.get("mining")
    if made is not losses.TripletLoss and rule is not None:
        options["mining"] = _make_mining(rule)
    return _call(made, options)


def _make_mining(rule: Any) -> mining.Mining:
    about = {"name": rule} if isinstance(rule, str) else dict(rule) if isinstance(rule, Mapping) else {}
    if not isinstance(about.get("name"), str):
        raise TypeError(f"mining is {rule!r}; give a name, a dictionary with a name, or a whole loss as an object")
    return _call(_named("mining", about.pop("name"), MINING), about)


def _named(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise ValueError(f"there is no {kind} {name!r}; {nearest(name, table)}")
    return table[name]


def _call(made: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    every = inspect.signature(made).parameters
    # One without options has those of any module: *args and **kwargs.
    takes = {name: each for name, each in every.items() if each.kind is each.POSITIONAL_OR_KEYWORD}
    for name, value in options.items():
        if name not in takes:
            raise TypeError(
                f"{made.__name__} has no option {name!r}; {nearest(name, takes) if takes else 'it has none'}"
            )
        # The command line gives a text for what is no number, and a loss would only find out in its first step.
        kind = takes[name].annotation
        if kind in (int, float, bool) and not fits(value, kind):
            raise TypeError(f"{name} of {made.__name__} is {value!r}; it must be {kind.__name__}")
    missing = [name for name, each in takes.items() if each.default is each.empty and name not in options]
    if missing:
        raise TypeError(f"{made.__name__} needs {' and '.join(missing)}; give them as its options")
    return made(**options)


def refuse_unsuited_loss(loss: RowLoss, settings: Settings, classes: int) -> None:
    """Refuse a loss that knows fewer classes than are trained, and a memory that it would not see, or not all of."""
    name, proxies = type(loss).__name__, getattr(loss, "proxies", None)
    # On a GPU the loss itself does not look at the labels. One that is named gets as many proxies as it needs.
    if isinstance(settings.loss, RowLoss) and proxies is not None and len(proxies) < classes:
        raise ValueError(
            f"{name} has proxies for {len(proxies)} classes and {classes} are trained; "
            f"make it with num_classes={classes}, or give its name"
        )
    if settings.memory and not _takes_gallery(loss):
        raise ValueError(
            f"memory is {settings.memory} and {name} compares its batch with no other; use memory=0, or another loss"
        )
    # On a GPU, where nobody counts, a loss would not see the others.
    if loss.max_per_class is not None and loss.max_per_class < settings.memory:
        raise ValueError(
            f"max_per_class is {loss.max_per_class} and a memory of {settings.memory} may hold more of a class; "
            "leave it out: training knows its batches"
        )


class Objective(nn.Module):
    """Σ over the embedder's levels of loss(batch), and of loss(batch, gallery=memory) where there is a memory.

    Each level has a loss and a memory of its own. Over several processes the batch is that of all of them, and each
    remembers all of it, so their memories stay alike.
    """

    def __init__(self, settings: Settings, widths: Sequence[int], classes: int, max_per_class: int | None) -> None:
        super().__init__()
        made = [make_loss(settings.loss, settings.loss_options, classes, width) for width in widths]
        self.losses = nn.ModuleList(made)
        self.banks = nn.ModuleList(MemoryBank(settings.memory, width) for width in widths if settings.memory)
        self.start, self.max_per_class = settings.memory_start, max_per_class

    def forward(self, parts: Sequence[Tensor], labels: Tensor, step: int, ranks: bool) -> Tensor:
        """The value for the levels' embeddings of this process's share of the batch."""
        total = torch.zeros((), device=labels.device)
        for level, (part, loss) in enumerate(zip(parts, self.losses, strict=True)):
            total = total + loss(part, labels, ranks=ranks, max_per_class=self.max_per_class)
            if self.banks and step >= self.start:
                total = total + loss(part, labels, gallery=self.banks[level], ranks=ranks)
        return total

    @torch.no_grad()
    def remember(self, parts: Sequence[Tensor], labels: Tensor, gather: Callable[[Tensor], Tensor]) -> None:
        """Put the batch of all processes, which `gather` brings together, into the memories."""
        if self.banks:
            labels = gather(labels)
            for part, bank in zip(parts, self.banks, strict=True):
                assert isinstance(bank, MemoryBank)
                bank.add(gather(part), labels)


def _takes_gallery(loss: RowLoss) -> bool:
    alone = losses.NPairLoss | losses.ProxyAnchorLoss | losses.ProxyNCALoss | losses.SoftmaxLoss
    return not isinstance(loss, alone) and loss.mining != "disjoint"
