"""Every loss of the five papers, and those that they compare with.

A loss is called as `loss(embeddings, labels)`; `RowLoss.forward` describes what else it takes. Values and gradients are
those of the equations to rounding, at any batch size, on any gallery.
"""

from tuplet.losses.angular import AngularHingeLoss, AngularLoss, NPairAngularLoss
from tuplet.losses.base import RowLoss
from tuplet.losses.contrastive import ContrastiveLoss, CosineContrastiveLoss
from tuplet.losses.histogram import HistogramLoss
from tuplet.losses.lifted import GeneralizedLiftedLoss, LiftedStructureLoss
from tuplet.losses.margin import MarginLoss
from tuplet.losses.npair import NCALoss, NPairAllLoss, NPairLoss
from tuplet.losses.proxies import ProxyAnchorLoss, ProxyNCALoss, SoftmaxLoss
from tuplet.losses.ranking import NRALoss, RankedListLoss
from tuplet.losses.raw import BinomialDevianceLoss, MultiSimilarityLoss, RAWLoss
from tuplet.losses.triplet import SmoothTripletLoss, TripletLoss
from tuplet.rows import MemoryBank

__all__ = [
    "AngularHingeLoss",
    "AngularLoss",
    "BinomialDevianceLoss",
    "ContrastiveLoss",
    "CosineContrastiveLoss",
    "GeneralizedLiftedLoss",
    "HistogramLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MemoryBank",
    "MultiSimilarityLoss",
    "NCALoss",
    "NPairAllLoss",
    "NPairAngularLoss",
    "NPairLoss",
    "NRALoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "RAWLoss",
    "RankedListLoss",
    "RowLoss",
    "SmoothTripletLoss",
    "SoftmaxLoss",
    "TripletLoss",
]
