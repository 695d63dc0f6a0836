"""What every loss is: a function of rows, and a few options of the call."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from tuplet.mining import Mining
from tuplet.rows import MemoryBank, Ranks, View, checks
from tuplet.rows import geometry as geo
from tuplet.rows.masks import equal_labels
from tuplet.rows.replay import is_small, replay, replayable
from tuplet.shown import Shown


class RowLoss(Shown):
    """A loss of one's own is a geometry and a method `rows`.

    `rows(s, positive, negative)` gets a block of the table, R queries by M gallery members (dot products, or distances
    with geometry "euclidean"), and the masks of each query's positives and negatives, and gives a total and a count for
    each query. The value is Σ totals / Σ counts. Block sizes, galleries, processes, precision, gradients, `weights` and
    `torch.compile` follow from that.

    >>> from tuplet.rows import masked_logsumexp
    >>> class Lifted(RowLoss):
    ...     def rows(self, s, positive, negative):
    ...         pull, push = masked_logsumexp(-s, positive), masked_logsumexp(s, negative)
    ...         return torch.relu(pull + push), positive.any(1) & negative.any(1)
    >>> round(Lifted()(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6931

    A loss that needs more than one look, or learns something, overrides `value(view)`: see `tuplet.rows.View`. One with
    `moves_gallery = False` holds the gallery constant; one that sets `self.mining` gets the pairs that the rule keeps.
    """

    geometry: geo.Geometry = "dot"
    moves_gallery: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = get_args(geo.Geometry)
        if cls.geometry not in known:
            raise ValueError(f"geometry of {cls.__name__} is {cls.geometry!r}; give one of {', '.join(known)}")

    def __init__(self) -> None:
        super().__init__()
        # Set here and not in the class, where it would hide a rule that is registered as a submodule.
        self.mining: Any = None
        self.max_per_class: int | None = None

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The total and the count of each query of a block."""
        raise NotImplementedError(f"{type(self).__name__} must define rows(s, positive, negative)")

    def value(self, view: View) -> Tensor:
        """The loss of what is in view."""
        return view.mean(self.rows)

    def arrange(self, view: View) -> View:
        """What is to be looked at, given the batch: losses with proxies put them on one side."""
        return view

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        gallery: Tensor | MemoryBank | None = None,
        gallery_labels: Tensor | None = None,
        ranks: Any = False,
        same: Callable[[Tensor, Tensor], Tensor] | None = None,
        block_rows: int | None = None,
        max_per_class: int | None = None,
        check_finite: bool = False,
        check_labels: bool = False,
    ) -> Tensor:
        """The loss of a batch, a scalar; what does not fit is a ValueError or a TypeError that names the remedy.

        Args:
            embeddings: the queries, (N, d), of any float type; as they are, never normalised here.
            labels: their classes, (N,) integers.
            gallery: what the queries look at: (M, d) vectors or a `MemoryBank`; the batch itself where left out.
            gallery_labels: the classes of the gallery's vectors.
            ranks: True, or a process group: the gallery is the batches of all its processes. With a gallery given,
                each process's queries look at its own, and the value is that of all queries.
            same: function of a block of query labels and of the gallery labels that gives the boolean table (R, M) of
                who is alike; the labels may then have any shape and type with a row for each vector.
            block_rows: how many queries to work on at once; where left out, `tuplet.rows.default_block_rows` decides.
            max_per_class: the size of the largest class, which losses of positive pairs and triplets otherwise read
                from the labels at the cost of one synchronisation; other losses have no use for it.
            check_finite: refuse NaN and infinite embeddings.
            check_labels: check label values on a GPU too.
        """
        view = look(
            self,
            embeddings,
            labels,
            gallery,
            gallery_labels,
            ranks,
            same,
            block_rows,
            max_per_class,
            check_finite,
            check_labels,
        )
        try:
            value = evaluate(self, view)
        except RuntimeError as error:
            for sign, remedy in _SURROUNDINGS.items():
                if sign in str(error):
                    raise RuntimeError(f"{type(self).__name__} cannot be computed {remedy}") from error
            raise
        if isinstance(view.rule, Mining):
            view.rule.advance()
        return value

    def weights(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        gallery: Tensor | MemoryBank | None = None,
        gallery_labels: Tensor | None = None,
        same: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """w[i, j] = ∂value/∂v_ij, with v_ij the similarity or distance of the ordered pair (i, j).

        The surrogate Σ w_ij·v_ij, with w held constant, has the loss's own gradient (Unified view 2019, Theorem
        3.1), but for a `norm_penalty`; where `moves_gallery` is False, with the vector of j held constant too. With a
        gallery it is that of the queries: what gallery members are to each other is constant. The table is formed
        whole here.

        >>> from tuplet.losses import CosineContrastiveLoss
        >>> CosineContrastiveLoss().weights(torch.eye(2), torch.tensor([0, 0])).tolist()
        [[0.0, -0.5], [-0.5, 0.0]]
        """
        # They are a derivative, also where somebody who only looks has turned gradients off.
        with torch.inference_mode(False), torch.enable_grad():
            view = look(self, embeddings, labels, gallery, gallery_labels, same=same)
            return table_weights(self, self.arrange(view))


#: Where a loss cannot be computed, by what torch says there, and what to do instead.
_SURROUNDINGS = {
    "saved tensor hooks": (
        "under saved-tensor hooks, such as save_on_cpu's or those of checkpoint(use_reentrant=False); call it outside "
        "of them: it holds one block of its table at a time"
    ),
    "setup_context": "inside torch.func's grad, vjp, jvp or vmap; take its gradient by backward() or autograd.grad",
}
_TENSORS = ("queries", "labels", "gallery", "gallery_labels", "valid")


def evaluate(loss: RowLoss, view: View) -> Tensor:
    """The loss of a view: as it stands, or on a GPU, where its launches take longer than its work, as one launch."""
    names = tuple([name for name in _TENSORS if getattr(view, name) is not None])
    tensors = [getattr(view, name) for name in names]

    def run(inputs: Sequence[Tensor]) -> Tensor:
        given: dict[str, Any] = dict(zip(names, inputs, strict=True))
        with torch.autocast(view.queries.device.type, enabled=False):
            return loss.value(loss.arrange(replace(view, **given)))

    fixed = view.ranks is None and view.same is equal_labels and not view.checks_values
    columns = view.there.shape[0]
    if fixed and replayable(view.queries, columns):
        small, options = is_small(view.queries, columns), (names, view.block_rows, view.max_per_class)
        return replay(loss, run, tensors, small, options)
    return run(tensors)


def table_weights(loss: RowLoss, view: View) -> Tensor:
    """The derivative of the loss by the whole table of a view."""
    with torch.autocast(view.queries.device.type, enabled=False):
        q, g = (geo.side(vectors.detach(), view.geometry) for vectors in (view.queries, view.there))
        table = geo.table(q, g, view.geometry).requires_grad_()
        value = loss.value(replace(view, table=table))
        if not value.requires_grad:
            return torch.zeros_like(table)
        (weights,) = torch.autograd.grad(value, table, materialize_grads=True)
    return weights


def look(
    loss: RowLoss,
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | MemoryBank | None = None,
    gallery_labels: Tensor | None = None,
    ranks: Any = False,
    same: Callable[[Tensor, Tensor], Tensor] | None = None,
    block_rows: int | None = None,
    max_per_class: int | None = None,
    check_finite: bool = False,
    check_labels: bool = False,
) -> View:
    """Check what was given and lay it out as a view."""
    custom = same is not None
    # One of several processes may have no rows: those of all are the batch.
    checks.check_vectors(embeddings, "embeddings", empty=ranks is not False)
    checks.check_labels(labels, embeddings, "labels", custom)
    gallery, gallery_labels, valid = _checked_gallery(embeddings, gallery, gallery_labels, custom)
    if check_finite:
        checks.check_finite(embeddings, "embeddings")
        if gallery is not None:
            checks.check_finite(gallery, "gallery")
    if block_rows is not None and block_rows < 1:
        raise ValueError(f"block_rows must be at least 1, got {block_rows}; leave it out for the default")
    if not custom:
        labels = labels.long()
        gallery_labels = None if gallery_labels is None else gallery_labels.long()
    across, first = None, 0
    if ranks is not False:
        across = Ranks(None if ranks is True else ranks)
        sizes = across.sizes(embeddings.shape[0], embeddings.device)
        if not sum(sizes):
            raise ValueError(
                f"embeddings must not be empty in all {len(sizes)} processes; give one at least one vector"
            )
        if gallery is None:
            embeddings, labels = across.gather(embeddings, sizes), across.gather(labels, sizes)
        else:
            first = sum(sizes[: across.rank])
    return View(
        geometry=loss.geometry,
        queries=embeddings,
        labels=labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        valid=valid,
        same=equal_labels if same is None else same,
        member=gallery is None,
        moves_gallery=loss.moves_gallery,
        rule=loss.mining if isinstance(loss.mining, Mining) else None,
        block_rows=block_rows,
        max_per_class=loss.max_per_class if max_per_class is None else max_per_class,
        checks_values=checks.reads_values(labels, check_labels),
        ranks=across,
        split=across is not None and gallery is None,
        first=first,
    )


def _checked_gallery(
    embeddings: Tensor, gallery: Tensor | MemoryBank | None, labels: Tensor | None, custom: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gallery's vectors, their labels, and which of them count where it is a memory; no gallery, nothing."""
    if gallery is None:
        if labels is not None:
            raise ValueError("gallery_labels were given without a gallery; pass gallery=, or leave both out")
        return None, None, None
    valid = None
    if isinstance(gallery, MemoryBank):
        if labels is not None:
            raise ValueError("gallery_labels were given beside a memory bank, which has its own; leave them out")
        # Copies, since the next batch may be added before the gradient comes back.
        labels, valid = gallery.labels.clone(), gallery.valid()
        gallery = gallery.vectors.to(geo.table_dtype(embeddings.dtype), copy=True)
    if labels is None:
        raise ValueError("gallery_labels are missing for the given gallery; pass one label for each of its vectors")
    checks.check_vectors(gallery, "gallery")
    checks.check_labels(labels, gallery, "gallery_labels", custom)
    checks.check_dimensions(embeddings, gallery)
    return gallery, labels, valid


def check_mining(mining: Any) -> Any:
    """A rule or None, nothing else."""
    if mining is not None and not isinstance(mining, Mining):
        raise TypeError(
            f"mining must be None or a rule such as tuplet.mining.ValidTriplet(), got {mining!r}; "
            "the rules are ValidTriplet, SemiHard, DistanceWeighted and NonTrivial"
        )
    return mining


def check_one_positive(view: View, name: str, remedy: str) -> None:
    """No query has more than one positive, where label values may be looked at."""
    if view.checks_values and view.size:
        count = replace(view, max_per_class=None).members().exists.sum(1)
        if (count > 1).any():
            query = int((count > 1).nonzero()[0])
            raise ValueError(
                f"{name} needs one positive for each query, but label {view.labels[query].tolist()} has "
                f"{int(count[query])}; {remedy}"
            )
