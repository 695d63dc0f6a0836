"""The losses of the five papers, those that the papers compare with, and a few that came later.

A loss is called as `loss(embeddings, labels)`; `RowLoss.forward` describes the other arguments. Values and gradients
are those of the equations up to rounding, at any batch size and with any gallery. `LOSSES` holds the losses by name.
"""

from tuplet.losses.angular import AngularHingeLoss, AngularLoss, NPairAngularLoss
from tuplet.losses.arcface import ArcFaceLoss
from tuplet.losses.base import RowLoss
from tuplet.losses.circle import CircleLoss
from tuplet.losses.contrastive import ContrastiveLoss, CosineContrastiveLoss
from tuplet.losses.cosface import CosFaceLoss
from tuplet.losses.facility_location import FacilityLocationLoss
from tuplet.losses.global_loss import GlobalLoss
from tuplet.losses.hierarchical_triplet import HierarchicalTripletLoss
from tuplet.losses.histogram import HistogramLoss
from tuplet.losses.lifted import GeneralizedLiftedLoss, LiftedStructureLoss
from tuplet.losses.margin import MarginLoss
from tuplet.losses.npair import NCALoss, NPairAllLoss, NPairLoss
from tuplet.losses.parts import ABELoss, BIERLoss, HDCLoss
from tuplet.losses.pddm import PDDMLoss
from tuplet.losses.proxies import ProxyAnchorLoss, ProxyNCALoss, SoftmaxLoss
from tuplet.losses.ranking import NRALoss, RankedListLoss
from tuplet.losses.raw import BinomialDevianceLoss, MultiSimilarityLoss, RAWLoss
from tuplet.losses.smooth_ap import SmoothAPLoss
from tuplet.losses.soft_triple import SoftTripleLoss
from tuplet.losses.spectral_clustering import SpectralClusteringLoss
from tuplet.losses.sum import SumLoss
from tuplet.losses.supcon import SupConLoss
from tuplet.losses.triplet import SmoothTripletLoss, TripletLoss
from tuplet.losses.triplet_ratio import TripletRatioLoss
from tuplet.losses.tuplet_margin import TupletMarginLoss
from tuplet.rows import MemoryBank

__all__ = [
    "LOSSES",
    "ABELoss",
    "AngularHingeLoss",
    "AngularLoss",
    "ArcFaceLoss",
    "BIERLoss",
    "BinomialDevianceLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CosineContrastiveLoss",
    "FacilityLocationLoss",
    "GeneralizedLiftedLoss",
    "GlobalLoss",
    "HDCLoss",
    "HierarchicalTripletLoss",
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
    "PDDMLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "RAWLoss",
    "RankedListLoss",
    "RowLoss",
    "SmoothAPLoss",
    "SmoothTripletLoss",
    "SoftTripleLoss",
    "SoftmaxLoss",
    "SpectralClusteringLoss",
    "SumLoss",
    "SupConLoss",
    "TripletLoss",
    "TripletRatioLoss",
    "TupletMarginLoss",
]

#: The losses by name.
LOSSES: dict[str, type[RowLoss]] = {
    each.name: each
    for each in map(globals().get, __all__)
    if isinstance(each, type) and issubclass(each, RowLoss) and each.name
}
