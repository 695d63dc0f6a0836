"""Base class of losses: a function of rows, and the options of a call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tuplet.errors import at_least
from tuplet.mining import Mining, settings_repr
from tuplet.rows import MemoryBank, ProcessGroup, View, checks, cuda_graphs, paths
from tuplet.rows import geometry as geo
from tuplet.rows.masks import SAME, equal_labels
from tuplet.sampling.base import BatchKind
from tuplet.sampling.class_tree import ClassTree

#: The length of vectors: always unit, free, unit outside training only ("eval"), or any (None).
Normalize = bool | Literal["eval"] | None


class RowLoss(nn.Module):
    """Base class of all losses: a function of rows of similarities or distances.

    A subclass defines `rows(s, positive, negative)`. It gets a block of the table of R queries by M gallery members and
    the masks of each query's positives and negatives. It returns a total and a count for each query. The value of the
    loss is Σ totals / Σ counts. Blocks, galleries, processes, precision, gradients, `weights` and `torch.compile`
    work without further code. The arguments of `rows` are positional; a parameter that learns must be one of them.

    >>> from tuplet.rows import masked_logsumexp
    >>> class Lifted(RowLoss):
    ...     normalize = True
    ...     def rows(self, s, positive, negative):
    ...         pull, push = masked_logsumexp(-s, positive), masked_logsumexp(s, negative)
    ...         return torch.relu(pull + push), positive.any(1) & negative.any(1)
    >>> round(Lifted()(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6931

    A loss that needs several passes, or learns something, overrides `value(view)`: see `tuplet.rows.View`. A loss that
    sets `self.mining` to a rule gets only the pairs that the rule keeps.

    Class attributes tell `tuplet.train` and the command line about a loss:

    Attributes:
        name: the name in `LOSSES` and on the command line, if the loss is exported.
        geometry: the table holds dot products ("dot") or Euclidean distances ("euclidean").
        moves_gallery: gradients flow into the gallery; False holds it constant.
        normalize: the vectors that it is defined on. True: unit vectors. "eval": vectors of free length in training,
            unit vectors afterwards. False: vectors of free length. None: vectors of any length, usually unit.
        batch: the batches that it needs. "classes": several examples of each class. "pairs": exactly two of each class.
            "triplets": anchor, positive and negative in turn. "groups": uniform n-groups without repeated examples.
            "neighbors": classes that lie near each other, with a tree of all classes. "one_class": one class, then
            negatives.
        takes_gallery: it can be computed against any gallery, such as a memory bank.
        weighs_pairs: it is a function of the table of pairs, so that it has `weights`.
        marks_active: it can tell which triplets of a batch of triplets have a loss: `active`.
        joint: it is called with the parts of an embedding, `loss([part, …], labels)`, and not with each for itself.
        proxies: learned vectors (num_classes · centers, dim), set in `__init__` as a parameter; None for other losses.
        centers: the number of proxies of each class, which follow each other.
        sharded: each process holds the parameters of its share of the classes alone.
    """

    name: str | None = None
    geometry: geo.Geometry = "dot"
    moves_gallery: bool = True
    normalize: Normalize = None
    batch: BatchKind = "classes"
    takes_gallery: bool = True
    weighs_pairs: bool = True
    marks_active: bool = False
    joint: bool = False
    proxies: Tensor | None
    centers: int = 1
    sharded: bool = False

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
        self.proxies = None

    def extra_repr(self) -> str:
        """Return the settings, as `repr` shows them."""
        return settings_repr(self)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the total and the count of each query of a block; a subclass defines it, see above."""
        raise NotImplementedError(f"{type(self).__name__} must define rows(s, positive, negative)")

    def value(self, view: View) -> Tensor:
        """Return the loss of a view."""
        return view.mean(self.rows)

    def arrange(self, view: View) -> View:
        """Return the view to compute, given that of the batch: losses with proxies put them on one side."""
        return view

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        gallery: Tensor | MemoryBank | None = None,
        gallery_labels: Tensor | None = None,
        distributed: Any = False,
        same: Callable[[Tensor, Tensor], Tensor] | str | None = None,
        block_rows: int | None = None,
        max_per_class: int | None = None,
        check_finite: bool = False,
        check_labels: bool = False,
    ) -> Tensor:
        """Return the loss of a batch, a scalar.

        Args:
            embeddings: the queries, (N, d), of any float type. Normalise them yourself if the loss is defined on unit
                vectors; only the losses whose docstring says "made unit inside" do it for you.
            labels: their classes, (N,) integers.
            gallery: vectors (M, d) or a `MemoryBank` to compare the queries with; by default the batch itself.
            gallery_labels: the classes of the gallery's vectors.
            distributed: True, or a process group: the gallery is the batches of all its processes. With a gallery
                given, each process compares its queries with its own, and the value is that of all queries.
            same: function of a block of query labels and of the gallery labels that returns a boolean table (R, M) of
                positives; the labels may then have any shape and type with a row for each vector. "any" is the function
                for examples with several labels, (N, L) padded with −1, or one, (N,): a positive shares any of them.
            block_rows: number of queries to work on at once; by default `tuplet.rows.default_block_rows` decides.
            max_per_class: the size of the largest class, which losses over positive pairs and triplets otherwise read
                from the labels at the cost of one synchronisation; other losses ignore it.
            check_finite: refuse NaN and infinite embeddings.
            check_labels: check label values on a GPU too.

        Raises:
            ValueError, TypeError: an argument is wrong; the message says what to do.
            RuntimeError: `rows` reads a parameter from `self`, or the loss is called under saved-tensor hooks or a
                transform of `torch.func`.
        """
        view = view_of(
            self,
            embeddings,
            labels,
            gallery,
            gallery_labels,
            distributed,
            same,
            block_rows,
            max_per_class,
            check_finite,
            check_labels,
        )
        try:
            # Rows keep their precision whatever autocast surrounds them.
            with torch.autocast(embeddings.device.type, enabled=False):
                if paths.choose(paths.Work(view, "call")) == "cuda_graph":
                    value = cuda_graphs.replay(self, view, lambda view: self.value(self.arrange(view)))
                else:
                    value = self.value(self.arrange(view))
        except RuntimeError as error:
            if any(sign in str(error) for sign in ("setup_context", "functorch", "vmap")):
                raise RuntimeError(
                    f"{type(self).__name__} cannot be computed inside torch.func's grad, vjp, jvp or vmap; take its "
                    "gradient by backward() or autograd.grad"
                ) from error
            raise
        if isinstance(view.rule, Mining):
            view.rule.advance()
        return value

    def end_epoch(self) -> None:
        """Advance the schedule of a loss that has one; training calls it after each epoch."""

    def set_tree(self, tree: ClassTree) -> None:
        """Receive the sampler's tree of classes; training calls it as an epoch starts, if there is a tree."""

    def active(self, embeddings: Tensor, labels: Tensor, *, distributed: Any = False) -> Tensor:
        """Return a mask of the triplets, in their order, that have a loss above zero."""
        raise NotImplementedError(f"{type(self).__name__} does not tell which triplets have a loss")

    def weights(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        gallery: Tensor | MemoryBank | None = None,
        gallery_labels: Tensor | None = None,
        same: Callable[[Tensor, Tensor], Tensor] | str | None = None,
    ) -> Tensor:
        """Return w[i, j] = ∂value/∂v_ij, with v_ij the similarity or distance of the ordered pair (i, j).

        The surrogate Σ w_ij·v_ij, with w held constant, has the gradient of the loss (Unified view 2019, Theorem 3.1),
        except for a `norm_penalty`; where `moves_gallery` is False, with the vector of j held constant too. With a
        gallery it has the gradient by the queries: similarities among gallery members are constants. This computes the
        whole table at once, and works under `torch.no_grad()`. Arguments are those of `forward`.

        Raises:
            TypeError: the loss is not a function of pairs alone (`weighs_pairs` is False).

        >>> from tuplet.losses import CosineContrastiveLoss
        >>> CosineContrastiveLoss().weights(torch.eye(2), torch.tensor([0, 0])).tolist()
        [[0.0, -0.5], [-0.5, 0.0]]
        """
        if not self.weighs_pairs:
            raise TypeError(
                f"{type(self).__name__} is no function of pairs alone and has no weights; look at gradients"
            )
        with torch.inference_mode(False), torch.enable_grad():
            view = view_of(self, embeddings, labels, gallery, gallery_labels, same=same)
            with torch.autocast(embeddings.device.type, enabled=False):
                view = self.arrange(view)
                q, g = (geo.side(vectors.detach(), view.geometry) for vectors in (view.queries, view.column_vectors))
                table = geo.table(q, g, view.geometry).requires_grad_()
                value = self.value(replace(view, table=table))
                if not value.requires_grad:
                    return torch.zeros_like(table)
                return torch.autograd.grad(value, table, materialize_grads=True)[0]


def view_of(
    loss: RowLoss,
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | MemoryBank | None = None,
    gallery_labels: Tensor | None = None,
    distributed: Any = False,
    same: Callable[[Tensor, Tensor], Tensor] | str | None = None,
    block_rows: int | None = None,
    max_per_class: int | None = None,
    check_finite: bool = False,
    check_labels: bool = False,
) -> View:
    """Check the arguments of a call of a loss, those of `RowLoss.forward`, and return its view."""
    most = loss.max_per_class if max_per_class is None else max_per_class
    given = {"block_rows": block_rows, "max_per_class": most}
    at_least(1, **{name: number for name, number in given.items() if number is not None})
    custom = same is not None
    if isinstance(same, str):
        if same not in SAME:
            raise ValueError(
                f"same is {same!r}; give {' or '.join(map(repr, SAME))}, or a function of two sets of labels"
            )
        same = SAME[same]
    # One of several processes may have no rows.
    checks.check_vectors(embeddings, "embeddings", empty=distributed is not False)
    checks.check_labels(labels, embeddings, "labels", custom)
    gallery, gallery_labels, valid = _checked_gallery(embeddings, gallery, gallery_labels, custom)
    if check_finite:
        checks.check_finite(embeddings, "embeddings")
        if gallery is not None:
            checks.check_finite(gallery, "gallery")
    if not custom:
        labels = labels.long()
        gallery_labels = None if gallery_labels is None else gallery_labels.long()
    across, first = None, 0
    if distributed is not False:
        across = ProcessGroup(None if distributed is True else distributed)
        sizes = across.sizes(embeddings=embeddings, labels=labels)
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
        max_per_class=most,
        checks_values=checks.reads_values(labels, check_labels),
        group=across,
        split=across is not None and gallery is None,
        first=first,
        block_rows=block_rows,
        parameters={name: x for name, x in loss.named_parameters() if x.requires_grad},
    )


def _checked_gallery(
    embeddings: Tensor, gallery: Tensor | MemoryBank | None, labels: Tensor | None, custom: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gallery's vectors, their labels and, for a memory bank, the mask of the filled rows."""
    if gallery is None:
        if labels is not None:
            raise ValueError("gallery_labels were given without a gallery; pass gallery=, or leave both out")
        return None, None, None
    valid = None
    if isinstance(gallery, MemoryBank):
        if labels is not None:
            raise ValueError("gallery_labels were given beside a memory bank, which has its own; leave them out")
        # Copies, since the next batch may be added before the backward pass.
        labels, valid = gallery.labels.clone(), gallery.valid()
        gallery = gallery.vectors.to(geo.table_dtype(embeddings.dtype), copy=True)
    if labels is None:
        raise ValueError("gallery_labels are missing for the given gallery; pass one label for each of its vectors")
    checks.check_vectors(gallery, "gallery")
    checks.check_labels(labels, gallery, "gallery_labels", custom)
    checks.check_dimensions(embeddings, gallery)
    return gallery, labels, valid


def check_one_positive(view: View, name: str, remedy: str) -> None:
    """Raise an error if a query has more than one positive, if label values are checked."""
    if view.checks_values and view.size:
        count = replace(view, max_per_class=None).members().exists.sum(1)
        if (count > 1).any():
            query = int((count > 1).nonzero()[0])
            raise ValueError(
                f"{name} needs one positive for each query, but label {view.labels[query].tolist()} has "
                f"{int(count[query])}; {remedy}"
            )
