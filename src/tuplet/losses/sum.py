"""Sum of losses: several losses of one batch, each with a weight."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from tuplet.losses.base import Normalize, RowLoss
from tuplet.sampling.base import BatchKind
from tuplet.sampling.class_tree import ClassTree


class SumLoss(RowLoss):
    """Sum of losses: Σ weight · loss, for a metric loss beside a softmax classifier, or several metric losses.

    Args:
        parts: pairs of a loss and its weight. In `loss_options` of `tuplet.train`, dictionaries such as
            {"loss": "softmax", "weight": 1.0}, with the options of the loss beside them.

    Inputs: what its parts need. They must agree: no batch has both pairs and triplets in turn, and losses over the
    parts of an embedding add up only with each other. Options of the call go to every part; a gallery works if every
    part takes one. It has no `weights`: ask the parts.

    Each part gathers the batch of several processes for itself, and costs what it costs alone.

    Related: `NPairAngularLoss` is a sum of two losses that share their table.

    >>> import torch
    >>> from tuplet.losses import ContrastiveLoss, SoftmaxLoss
    >>> loss = SumLoss([(SoftmaxLoss(num_classes=2, dim=2), 1.0), (ContrastiveLoss(), 0.5)])
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 0])).item()
    0.6931...

    Yi, Lei, Liao, Li: Learning Face Representation from Scratch. 2014, which joins softmax and contrastive loss.
    """

    name, weighs_pairs = "sum", False

    def __init__(self, parts: Sequence[tuple[RowLoss, float]]) -> None:
        super().__init__()
        parts = list(parts)
        pairs = all(isinstance(part, tuple | list) and len(part) == 2 for part in parts)
        if not parts or not pairs or not all(isinstance(loss, RowLoss) for loss, _ in parts):
            raise TypeError(f"parts is {parts!r}; give pairs of a loss and its weight, such as [(TripletLoss(), 1.0)]")
        self.losses = nn.ModuleList(loss for loss, _ in parts)
        self.part_weights = [float(weight) for _, weight in parts]
        needs = {loss.batch for loss in self.parts} - {"classes"}
        if len(needs) > 1:
            raise ValueError(
                f"the parts of SumLoss need different batches, {' and '.join(sorted(needs))}; choose losses of one kind"
            )
        by_joint = {loss.joint: type(loss).__name__ for loss in self.parts}
        if len(by_joint) > 1:
            raise ValueError(
                f"{by_joint[True]} takes all parts of an embedding at once and {by_joint[False]} takes one vector; "
                "choose losses of one kind"
            )

    @property
    def parts(self) -> list[RowLoss]:
        """The losses, without their weights."""
        return [loss for loss in self.losses if isinstance(loss, RowLoss)]

    @property
    def batch(self) -> BatchKind:  # type: ignore[override]
        """The batches of the part that needs special ones, or "classes" if none does."""
        return next((loss.batch for loss in self.parts if loss.batch != "classes"), "classes")

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """True if the losses take the parts of an embedding, as a list."""
        return self.parts[0].joint

    @property
    def takes_gallery(self) -> bool:  # type: ignore[override]
        """True if every part takes a gallery."""
        return all(loss.takes_gallery for loss in self.parts)

    @property
    def normalize(self) -> Normalize:  # type: ignore[override]
        """True if a part needs unit vectors; else that of the first part that needs a certain length, or None."""
        needs = [loss.normalize for loss in self.parts if loss.normalize is not None]
        return True if True in needs else next(iter(needs), None)

    def forward(self, embeddings: Tensor, labels: Tensor, **options: Any) -> Tensor:
        """Return Σ weight · loss; the options are those of `RowLoss.forward`."""
        values = [loss(embeddings, labels, **options) for loss in self.parts]
        return sum(weight * value for weight, value in zip(self.part_weights, values, strict=True))

    @property
    def marks_active(self) -> bool:  # type: ignore[override]
        """True if a part can tell which triplets have a loss."""
        return any(loss.marks_active for loss in self.parts)

    def active(self, embeddings: Tensor, labels: Tensor, *, distributed: Any = False) -> Tensor:
        """Return the mask of the first part that marks active triplets."""
        part = next((loss for loss in self.parts if loss.marks_active), self.parts[0])
        return part.active(embeddings, labels, distributed=distributed)

    def end_epoch(self) -> None:
        """End the epoch of every part."""
        for loss in self.parts:
            loss.end_epoch()

    def set_tree(self, tree: ClassTree) -> None:
        """Give the tree to every part."""
        for loss in self.parts:
            loss.set_tree(tree)
