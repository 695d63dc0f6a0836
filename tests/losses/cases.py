"""Every loss beside its oracle: the one table that all the tests of losses run over."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from losses import oracles_mining as om
from losses import oracles_pairs as op
from losses import oracles_tuples as ot
from losses.label_patterns import KINDS
from tuplet import losses, mining

CLASSES, DIM = 5, 4


@dataclass(frozen=True)
class Case:
    """A loss, its literal version, and what its inputs must be like."""

    name: str
    make: Callable
    oracle: Callable
    labels: str = "any"
    """any · pairs (exactly two of each class) · triplets · classes (0 … CLASSES − 1) · different"""
    kinds: tuple = tuple(KINDS)
    gallery: bool = True
    picks: bool = False
    """Picks single members of a row: among copies of a vector, which one is moved is open."""
    learns: bool = False
    """Has parameters of its own: the oracle takes the loss, and finds them there."""

    def truth(self, loss, x, labels, **look):
        """What its literal version says of a batch."""
        return self.oracle(x, labels, *([loss] if self.learns else []), **look)

    def __str__(self):
        return self.name


def mined(oracle, rule, similarity=True):
    """The oracle of a dot loss behind a mining oracle."""

    def of(x, labels, **look):
        table = om.dot_table(x, look.get("gallery"))
        kept = rule(table if similarity else om.as_distance(table), *om.pair_masks(x, labels, **look))
        return oracle(x, labels, kept=kept, **look)

    return of


def non_trivial_margin(x, labels, **look):
    kept = om.non_trivial(om.distance_table(x, look.get("gallery")), *om.pair_masks(x, labels, **look), 1.2, 0.4)
    return op.margin_loss(x, labels, kept=kept, **look)


def learning(name, make, oracle, *names, **settings):
    """The case of a loss that learns: its parameters of these names are arguments of the oracle by these names."""

    def made():
        torch.manual_seed(3)
        return make().double()

    def truth(x, labels, loss, **look):
        return oracle(x, labels, **{name: getattr(loss, name) for name in names}, **look)

    return Case(name, made, truth, learns=True, **settings)


PROXIES = {"labels": "classes", "gallery": False}


NO_COPIES = ("free", "unit")

CASES = [
    Case("contrastive", losses.ContrastiveLoss, op.contrastive),
    Case("cosine_contrastive", losses.CosineContrastiveLoss, op.cosine_contrastive),
    Case(
        "vthm_alone",
        lambda: losses.CosineContrastiveLoss(mining=mining.ValidTriplet()),
        mined(op.cosine_contrastive, om.valid_triplet),
    ),
    Case("triplet_all", losses.TripletLoss, ot.triplet),
    Case("triplet_all_wide", lambda: losses.TripletLoss(margin=3.0), lambda x, y, **k: ot.triplet(x, y, 3.0, **k)),
    Case(
        "triplet_semi_hard",
        lambda: losses.TripletLoss(mining="semi_hard"),
        lambda x, y, **k: ot.triplet(x, y, mining="semi_hard", **k),
        picks=True,
    ),
    Case(
        "triplet_hardest",
        lambda: losses.TripletLoss(mining="hardest"),
        lambda x, y, **k: ot.triplet(x, y, mining="hardest", **k),
        picks=True,
    ),
    Case(
        "triplet_disjoint",
        lambda: losses.TripletLoss(mining="disjoint"),
        lambda x, y: ot.triplet(x, y, mining="disjoint"),
        labels="triplets",
        gallery=False,
    ),
    Case("smooth_triplet", losses.SmoothTripletLoss, ot.smooth_triplet),
    Case(
        "smooth_triplet_scaled",
        lambda: losses.SmoothTripletLoss(scale=7.0),
        lambda x, y, **k: ot.smooth_triplet(x, y, 7.0, **k),
    ),
    Case("npair_mc", losses.NPairLoss, ot.npair, labels="pairs"),
    Case(
        "npair_ovo",
        lambda: losses.NPairLoss("ovo", scale=3.0),
        lambda x, y, **k: ot.npair(x, y, "ovo", scale=3.0, **k),
        labels="pairs",
    ),
    Case(
        "npair_symmetric",
        lambda: losses.NPairLoss(symmetric=True, norm_penalty=0.3),
        lambda x, y, **k: ot.npair(x, y, symmetric=True, norm_penalty=0.3, **k),
        labels="pairs",
    ),
    Case("npair_all", losses.NPairAllLoss, ot.npair_all),
    Case("npair_all_scaled", lambda: losses.NPairAllLoss(scale=7.0), lambda x, y, **k: ot.npair_all(x, y, 7.0, **k)),
    Case("nca", losses.NCALoss, op.nca),
    Case("nca_scaled", lambda: losses.NCALoss(scale=30.0), lambda x, y, **k: op.nca(x, y, 30.0, **k)),
    # At 45° a negative that copies the positive lies on the hinge itself, and rounding decides; 36° has no such case.
    Case("angular_hinge", losses.AngularHingeLoss, ot.angular_hinge, kinds=NO_COPIES),
    Case(
        "angular_hinge_36", lambda: losses.AngularHingeLoss(36.0), lambda x, y, **k: ot.angular_hinge(x, y, 36.0, **k)
    ),
    Case("angular", losses.AngularLoss, ot.angular),
    # tan² 45° is 1, and hides where it stands.
    Case("angular_36", lambda: losses.AngularLoss(36.0), lambda x, y, **k: ot.angular(x, y, 36.0, **k)),
    Case("npair_angular", losses.NPairAngularLoss, ot.npair_angular),
    Case(
        "npair_angular_36",
        lambda: losses.NPairAngularLoss(36.0, weight=3.0),
        lambda x, y, **k: ot.npair_angular(x, y, 36.0, 3.0, **k),
    ),
    Case("lifted_structure", losses.LiftedStructureLoss, op.lifted_structure),
    Case("generalized_lifted", losses.GeneralizedLiftedLoss, op.generalized_lifted),
    Case("binomial", losses.BinomialDevianceLoss, op.binomial_deviance),
    Case(
        "binomial_vthm",
        lambda: losses.BinomialDevianceLoss(mining=mining.ValidTriplet()),
        mined(op.binomial_deviance, om.valid_triplet),
    ),
    Case("raw", losses.RAWLoss, op.raw),
    Case("raw_vthm", losses.MultiSimilarityLoss, mined(op.raw, om.valid_triplet)),
    Case(
        "raw_semi_hard",
        lambda: losses.RAWLoss(mining=mining.SemiHard()),
        mined(op.raw, lambda s, p, n: om.semi_hard(-s, p, n)),
        # Copies may lie an ulp apart in a product, and then "farther" holds between them.
        kinds=NO_COPIES,
    ),
    Case("nra", losses.NRALoss, op.nra, picks=True),
    Case("nra_straight", lambda: losses.NRALoss(alpha=1.0), lambda x, y, **k: op.nra(x, y, 1.0, **k), picks=True),
    Case("ranked_list", losses.RankedListLoss, op.ranked_list),
    Case(
        "ranked_list_moving",
        lambda: losses.RankedListLoss(move_gallery=True),
        lambda x, y, **k: op.ranked_list(x, y, move_gallery=True, **k),
    ),
    Case("margin", lambda: losses.MarginLoss(mining=None), op.margin_loss),
    Case(
        "margin_non_trivial",
        lambda: losses.MarginLoss(mining=mining.NonTrivial(1.2, 0.4)),
        non_trivial_margin,
    ),
    learning("margin_learned", lambda: losses.MarginLoss(learn_beta=True, mining=None), op.margin_loss, "beta"),
    # Where a similarity lies on a node or at ±1, the derivative is one-sided and open.
    Case("histogram", losses.HistogramLoss, op.histogram, kinds=NO_COPIES),
    Case(
        "histogram_coarse",
        lambda: losses.HistogramLoss(5),
        lambda x, y, **k: op.histogram(x, y, 5, **k),
        kinds=NO_COPIES,
    ),
    learning("proxy_nca", lambda: losses.ProxyNCALoss(CLASSES, DIM), op.proxy_nca, "proxies", **PROXIES),
    learning(
        "proxy_nca_plain",
        lambda: losses.ProxyNCALoss(CLASSES, DIM, squared=False),
        partial(op.proxy_nca, squared_distance=False),
        "proxies",
        **PROXIES,
    ),
    learning("softmax", lambda: losses.SoftmaxLoss(CLASSES, DIM), op.softmax, "proxies", "bias", **PROXIES),
    learning("proxy_anchor", lambda: losses.ProxyAnchorLoss(CLASSES, DIM), op.proxy_anchor, "proxies", **PROXIES),
]
BY_NAME = {case.name: case for case in CASES}
