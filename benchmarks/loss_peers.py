"""Every loss, its peer in pytorch-metric-learning, and the batches that both are measured on."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tuplet import losses, mining
from tuplet.sampling.class_tree import class_moments, class_tree

try:
    from pytorch_metric_learning import distances, miners
    from pytorch_metric_learning import losses as peer
except ImportError:
    peer = None

DIM = 512
#: The batch of the first call, which imports and allocates: small, and large enough for every loss.
WARM_UP = 96
#: The full method of the Unified view, and the loss whose sampling costs the peer most.
METHOD, SAMPLED = "multi-similarity (RAW, valid triplets)", "margin, distance-weighted"
#: Twenty batch sizes for first calls, one after another.
MANY_SIZES = tuple(round(1024 * 1.17**k) for k in range(20))


@dataclass(frozen=True)
class Case:
    """A loss and its peer.

    Attributes:
        name: the loss.
        ours: makes our loss for a number of classes.
        theirs: makes the peer's loss, and its miner if it needs one; None if the peer has no such loss.
        per_class: vectors of each class in a batch.
        picks: a query picks single pairs, and rounding may change its pick.
        dim: the dimension of the vectors.
        largest: the largest batch to measure, for a loss whose tables are those of the whole batch.
    """

    name: str
    ours: Callable[[int], Any]
    theirs: Callable[[int], tuple[Any, ...]] | None = None
    per_class: int = 4
    picks: bool = False
    dim: int = DIM
    largest: int | None = None

    def our_step(self, n: int, device: str, dtype: torch.dtype = torch.float32, **options: Any) -> Callable[[], None]:
        """Return a function that runs our loss forward and backward on one batch."""
        x, labels, classes = self.batch(n, device, dtype)
        return step(x, labels, self.ours(classes).to(device), **options)

    def peer_step(self, n: int, device: str, dtype: torch.dtype = torch.float32) -> Callable[[], None]:
        """Return a function that runs the peer forward and backward on the same batch."""
        x, labels, classes = self.batch(n, device, dtype)
        return step(x, labels, *(part.to(device) for part in self.peer(classes)))

    def batch(self, n: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, int]:
        """Return vectors, labels and the number of classes."""
        x, labels = batch(n, self.per_class, device)
        if self.dim < DIM:
            x = nn.functional.normalize(x[:, : self.dim])
        return x.to(dtype), labels, int(labels[-1]) + 1

    def peer(self, classes: int) -> tuple[Any, ...]:
        """Return the peer's loss and miner; () if it has none or is not installed."""
        if peer is None or self.theirs is None:
            return ()
        with warnings.catch_warnings(action="ignore"):  # it warns about the ranked list paper's own temperature
            return self.theirs(classes)

    def peer_name(self) -> str:
        """Return the class names of the peer's loss and miner."""
        return " + ".join(type(part).__name__ for part in self.peer(classes=2)) or "–"


def batch(n: int, per_class: int, device: str) -> tuple[Tensor, Tensor]:
    """Return unit vectors as in the middle of training: cosines of 0.45 within a class, 0.3 between classes."""
    if per_class == 3:  # disjoint triplets: two vectors of one class and one of another
        n -= n % 3
        labels = torch.tensor([0, 0, 1]).repeat(n // 3) + 2 * (torch.arange(n) // 3)
    else:
        labels = torch.arange(n) // per_class
    labels = labels.to(device)
    draw = torch.Generator(device).manual_seed(0)
    shared, centres, own = (torch.randn(k, DIM, generator=draw, device=device) for k in (1, int(labels[-1]) + 1, n))
    return nn.functional.normalize(0.3**0.5 * shared + 0.15**0.5 * centres[labels] + 0.55**0.5 * own), labels


def step(
    x: Tensor, labels: Tensor, loss: nn.Module, miner: nn.Module | None = None, **options: Any
) -> Callable[[], None]:
    """Return a function that runs a loss forward and backward as in training."""
    x = x.clone().requires_grad_()
    moving = [x, *loss.parameters()]

    def run() -> None:
        for tensor in moving:
            tensor.grad = None
        value = loss(x, labels, *(() if miner is None else (miner(x, labels),)), **options)
        value.backward()

    return run


class InParts(nn.Module):
    """A loss over parts, given one tensor that holds them one after another."""

    def __init__(self, loss: losses.RowLoss, widths: Sequence[int]) -> None:
        super().__init__()
        self.loss, self.widths = loss, tuple(widths)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the parts, each of unit length."""
        return self.loss([nn.functional.normalize(part) for part in x.split(self.widths, 1)], labels)


def hierarchical_triplet(classes: int) -> losses.HierarchicalTripletLoss:
    """Return the loss with a tree of classes, which a sampler makes once an epoch."""
    loss = losses.HierarchicalTripletLoss()
    loss.max_per_class = 4
    x, labels = batch(4 * classes, 4, "cpu")
    loss.set_tree(class_tree(torch.arange(classes), class_moments(x, labels, classes)))
    return loss


def softmax_and_contrastive(classes: int) -> losses.SumLoss:
    """Return the sum of a classifier's loss and a metric loss."""
    return losses.SumLoss([(losses.SoftmaxLoss(classes, DIM), 1.0), (losses.ContrastiveLoss(), 0.1)])


CASES = [
    Case("contrastive", lambda c: losses.ContrastiveLoss(), lambda c: (peer.ContrastiveLoss(),)),
    Case(
        "cosine contrastive",
        lambda c: losses.CosineContrastiveLoss(),
        lambda c: (peer.ContrastiveLoss(1, 0.5, distance=distances.CosineSimilarity()),),
    ),
    Case("cosine contrastive, valid triplets", lambda c: losses.CosineContrastiveLoss(mining=mining.ValidTriplet())),
    Case(
        "triplet, all",
        lambda c: losses.TripletLoss(max_per_class=4),
        lambda c: (peer.TripletMarginLoss(0.2),),
    ),
    Case(
        "triplet, semi-hard",
        lambda c: losses.TripletLoss(mining="semi_hard", max_per_class=4),
        lambda c: (peer.TripletMarginLoss(0.2), miners.TripletMarginMiner(0.2, type_of_triplets="semihard")),
        picks=True,
    ),
    Case(
        "triplet, hardest",
        lambda c: losses.TripletLoss(mining="hardest"),
        lambda c: (peer.TripletMarginLoss(0.2), miners.BatchHardMiner()),
        picks=True,
    ),
    Case(
        "triplet, disjoint",
        lambda c: losses.TripletLoss(mining="disjoint"),
        lambda c: (peer.TripletMarginLoss(0.2), miners.EmbeddingsAlreadyPackagedAsTriplets()),
        per_class=3,
    ),
    Case(
        "smooth triplet",
        lambda c: losses.SmoothTripletLoss(max_per_class=4),
        lambda c: (peer.TripletMarginLoss(0, smooth_loss=True, distance=distances.DotProductSimilarity()),),
    ),
    Case("N-pair", lambda c: losses.NPairLoss(), lambda c: (peer.NPairsLoss(),), per_class=2),
    Case("N-pair, one against one", lambda c: losses.NPairLoss("ovo"), per_class=2),
    Case(
        "N-pair, all pairs",
        lambda c: losses.NPairAllLoss(max_per_class=4),
        lambda c: (peer.NTXentLoss(temperature=1),),
    ),
    Case("NCA", lambda c: losses.NCALoss(), lambda c: (peer.NCALoss(),)),
    Case("angular hinge", lambda c: losses.AngularHingeLoss(max_per_class=4)),
    Case("angular", lambda c: losses.AngularLoss(max_per_class=4), lambda c: (peer.AngularLoss(45),)),
    Case(
        "N-pair and angular",
        lambda c: losses.NPairAngularLoss(max_per_class=4),
        lambda c: (peer.MultipleLosses([peer.NTXentLoss(1), peer.AngularLoss(45)], weights=[1, 2]),),
    ),
    Case(
        "lifted structure",
        lambda c: losses.LiftedStructureLoss(),
        lambda c: (peer.LiftedStructureLoss(),),
    ),
    Case(
        "generalised lifted",
        lambda c: losses.GeneralizedLiftedLoss(),
        lambda c: (peer.GeneralizedLiftedStructureLoss(),),
    ),
    Case("binomial deviance", lambda c: losses.BinomialDevianceLoss()),
    Case("binomial deviance, valid triplets", lambda c: losses.BinomialDevianceLoss(mining=mining.ValidTriplet())),
    Case("RAW", lambda c: losses.RAWLoss(), lambda c: (peer.MultiSimilarityLoss(),)),
    Case(
        METHOD,
        lambda c: losses.MultiSimilarityLoss(),
        lambda c: (peer.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
    ),
    Case("RAW, semi-hard", lambda c: losses.RAWLoss(mining=mining.SemiHard()), picks=True),
    Case(
        "RAW, distance-weighted",
        lambda c: losses.RAWLoss(mining=mining.DistanceWeighted()),
        lambda c: (peer.MultiSimilarityLoss(), miners.DistanceWeightedMiner()),
        picks=True,
    ),
    Case("NRA", lambda c: losses.NRALoss(), picks=True),
    Case("ranked list", lambda c: losses.RankedListLoss(), lambda c: (peer.RankedListLoss(0.4, Tn=10, alpha=1.2),)),
    Case(
        SAMPLED,
        lambda c: losses.MarginLoss(),
        lambda c: (peer.MarginLoss(), miners.DistanceWeightedMiner()),
        picks=True,
    ),
    Case(
        "margin, all pairs",
        lambda c: losses.MarginLoss(mining=None),
        lambda c: (peer.MarginLoss(),),
    ),
    Case("margin, non-trivial pairs", lambda c: losses.MarginLoss(mining=mining.NonTrivial(1.2, 0.4))),
    Case("histogram", lambda c: losses.HistogramLoss(), lambda c: (peer.HistogramLoss(n_bins=150),)),
    Case("Proxy-NCA", lambda c: losses.ProxyNCALoss(c, DIM), lambda c: (peer.ProxyNCALoss(c, DIM),)),
    Case(
        "softmax",
        lambda c: losses.SoftmaxLoss(c, DIM),
        lambda c: (peer.NormalizedSoftmaxLoss(c, DIM),),
    ),
    Case(
        "Proxy-Anchor",
        lambda c: losses.ProxyAnchorLoss(c, DIM),
        lambda c: (peer.ProxyAnchorLoss(c, DIM),),
    ),
    Case("CosFace", lambda c: losses.CosFaceLoss(c, DIM), lambda c: (peer.CosFaceLoss(c, DIM),)),
    Case("ArcFace", lambda c: losses.ArcFaceLoss(c, DIM), lambda c: (peer.ArcFaceLoss(c, DIM),)),
    Case(
        "ArcFace, three centres",
        lambda c: losses.ArcFaceLoss(c, DIM, centers=3),
        lambda c: (peer.SubCenterArcFaceLoss(num_classes=c, embedding_size=DIM, sub_centers=3),),
    ),
    Case(
        "SoftTriple",
        lambda c: losses.SoftTripleLoss(c, DIM, tau=0.0),
        lambda c: (peer.SoftTripleLoss(c, DIM),),
    ),
    Case("supervised contrastive", lambda c: losses.SupConLoss(), lambda c: (peer.SupConLoss(),)),
    Case("circle", lambda c: losses.CircleLoss(), lambda c: (peer.CircleLoss(),)),
    Case("Smooth-AP", lambda c: losses.SmoothAPLoss(max_per_class=4), lambda c: (peer.SmoothAPLoss(),)),
    Case("tuplet margin", lambda c: losses.TupletMarginLoss(), lambda c: (peer.TupletMarginLoss(),)),
]

#: The losses of the systems that the papers compare with, measured on a CPU. The peer has none of them.
SYSTEMS = [
    Case("triplet ratio, all", lambda c: losses.TripletRatioLoss(max_per_class=4)),
    Case("triplet ratio, disjoint", lambda c: losses.TripletRatioLoss(mining="disjoint"), per_class=3),
    Case("global, all", lambda c: losses.GlobalLoss(max_per_class=4)),
    Case("global, disjoint", lambda c: losses.GlobalLoss(mining="disjoint"), per_class=3),
    Case("hierarchical triplet", hierarchical_triplet),
    Case("triplet hinge on products", lambda c: losses.SmoothTripletLoss(hinge=True, max_per_class=4)),
    Case("N-pair, triplets", lambda c: losses.NPairLoss("triplet"), per_class=2),
    Case("lifted structure, valid triplets", lambda c: losses.LiftedStructureLoss(mining="valid_triplet")),
    Case("generalised lifted, valid triplets", lambda c: losses.GeneralizedLiftedLoss(mining="valid_triplet")),
    Case("Proxy-NCA, half as many proxies", lambda c: losses.ProxyNCALoss(c, DIM, proxies=max(1, c // 2))),
    Case("softmax and contrastive", softmax_and_contrastive),
    Case("spectral clustering, d = 64", lambda c: losses.SpectralClusteringLoss(), dim=64),
    Case("facility location", lambda c: losses.FacilityLocationLoss(), largest=1024),
    Case("PDDM, d = 128", lambda c: losses.PDDMLoss(128), dim=128, largest=1024),
    Case("HDC, three parts", lambda c: InParts(losses.HDCLoss(), [128] * 3), dim=384, largest=1024),
    Case("BIER, three parts", lambda c: InParts(losses.BIERLoss(), [96, 160, 256])),
    Case("A-BIER, three parts", lambda c: InParts(losses.BIERLoss(adversarial=True), [96, 160, 256])),
    Case("ABE, eight parts", lambda c: InParts(losses.ABELoss(), [64] * 8)),
]
