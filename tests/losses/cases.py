"""Every loss with its oracle: the table that all tests of losses run over."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from losses import oracles_compared as compared
from losses import oracles_cosines as oc
from losses import oracles_mining as om
from losses import oracles_pairs as op
from losses import oracles_tuples as ot
from losses.label_patterns import KINDS
from tuplet import losses, mining
from tuplet.losses.proxies import ProxyLoss

CLASSES, DIM = 5, 4
PROXY_LOSSES = [loss for loss in losses.LOSSES.values() if issubclass(loss, ProxyLoss)]


@dataclass(frozen=True)
class Case:
    """A loss, its oracle, and the inputs that it needs."""

    name: str
    make: Callable
    oracle: Callable
    labels: str = "any"
    """One of: any, pairs (exactly two of each class), triplets, classes (0 … CLASSES − 1), different, many (more than
    DIM of them), partition (any, but no comparison of one's own), same (any, but no gallery)."""
    kinds: tuple = tuple(KINDS)
    gallery: bool = True
    picks: bool = False
    """It picks single members of a row, so any one of several copies of a vector may get the gradient."""
    whole: bool = False
    """It holds the table of the whole batch."""
    rows: bool = True
    """Its gradient comes from the row engine, so that a second derivative gets a sentence."""
    compiles: bool = True
    """It has no loop whose length depends on the labels."""
    learns: bool = False
    """It has parameters: the oracle takes the loss and reads them from it."""
    unit: bool = False
    """It makes vectors and proxies unit, and its weights are those of their cosines."""

    def truth(self, loss, x, labels, **options):
        """Return the value of the oracle."""
        return self.oracle(x, labels, *([loss] if self.learns else []), **options)

    def __str__(self):
        return self.name


def mined(oracle, rule, similarity=True):
    """Return the oracle of a dot loss with a mining oracle applied first."""

    def of(x, labels, **options):
        table = om.dot_table(x, options.get("gallery"))
        kept = rule(table if similarity else om.as_distance(table), *om.pair_masks(x, labels, **options))
        return oracle(x, labels, kept=kept, **options)

    return of


def mined_distances(oracle, rule):
    """Return the oracle of a Euclidean loss with a mining oracle of distances applied first."""

    def of(x, labels, **options):
        kept = rule(om.distance_table(x, options.get("gallery")), *om.pair_masks(x, labels, **options))
        return oracle(x, labels, kept=kept, **options)

    return of


def learning(name, make, oracle, *names, **settings):
    """Make the case of a loss with parameters; those of these `names` are passed to the oracle."""

    def made():
        torch.manual_seed(3)
        return make().double()

    def truth(x, labels, loss, **options):
        return oracle(x, labels, **{name: getattr(loss, name) for name in names}, **options)

    return Case(name, made, truth, learns=True, **settings)


def mined_lifted(rule):
    """Return the oracle of the lifted structure loss with a mining oracle of similarities applied to every row."""

    def kept(x, labels, **options):
        similarity = 1 - om.distance_table(x, options.get("gallery")) ** 2 / 2
        return list(om.index_lists(*rule(similarity, *om.pair_masks(x, labels, **options))))

    return lambda x, labels, **options: compared.lifted_structure_mined(x, labels, kept, **options)


def summed(x, labels, loss, **options):
    """Return the oracle of the sum of a softmax and a triplet loss."""
    softmax, _ = loss.losses
    return op.softmax(x, labels, softmax.proxies, softmax.bias) + 0.5 * ot.triplet(x, labels, **options)


def pddm(detach):
    def make():
        torch.manual_seed(3)
        return losses.PDDMLoss(DIM, detach=detach).double()

    return make


def in_parts(make, widths):
    """Return a maker of a loss over parts that cuts the vectors of the tests into parts of these widths."""

    def made():
        torch.manual_seed(3)
        loss = make().double()
        whole = loss.forward
        loss.forward = lambda x, labels, **options: whole(x.split(widths, 1), labels, **options)
        return loss

    return made


def over_parts(name, make, oracle, widths=(2, 2), learns=False, **options):
    """Make the case of a loss over parts."""
    settings = {"labels": "same", "gallery": False, "kinds": NO_COPIES, "whole": True, "compiles": False}

    def truth(x, labels, *loss, **inputs):
        return oracle(x.split(widths, 1), labels, *loss, **options, **inputs)

    return Case(name, in_parts(make, widths), truth, learns=learns, **settings)


PROXIES = {"labels": "classes", "gallery": False}
COSINES = {**PROXIES, "unit": True}


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
        rows=False,
    ),
    Case("smooth_triplet", losses.SmoothTripletLoss, ot.smooth_triplet),
    Case(
        "smooth_triplet_scaled",
        lambda: losses.SmoothTripletLoss(scale=7.0),
        lambda x, y, **k: ot.smooth_triplet(x, y, 7.0, **k),
    ),
    Case("smooth_triplet_hinge", lambda: losses.SmoothTripletLoss(hinge=True), compared.hinge_triplet, kinds=NO_COPIES),
    *(
        Case(
            f"{name}_{rule}",
            partial(make, mining=rule),
            partial(oracle, mining=rule),
            labels="triplets" if rule == "disjoint" else "any",
            gallery=rule != "disjoint",
            picks=rule in ("semi_hard", "hardest"),
            rows=rule != "disjoint",
        )
        for name, make, oracle in (
            ("triplet_ratio", losses.TripletRatioLoss, compared.triplet_ratio),
            ("global", losses.GlobalLoss, compared.global_loss),
        )
        for rule in ("all", "semi_hard", "hardest", "disjoint")
    ),
    # A rule that keeps pairs gives all triplets of these. Copies may lie an ulp apart, and then rounding decides.
    *(
        Case(f"{name}_{rule}", partial(make, mining=kept), mined_distances(oracle, truth), kinds=NO_COPIES)
        for name, make, oracle in (
            ("triplet", losses.TripletLoss, ot.triplet),
            ("triplet_ratio", losses.TripletRatioLoss, compared.triplet_ratio),
            ("global", losses.GlobalLoss, compared.global_loss),
        )
        for rule, kept, truth in (
            ("vthm", "valid_triplet", lambda d, *masks: om.valid_triplet(1 - d**2 / 2, *masks)),
            ("non_trivial", mining.NonTrivial(1.2, 0.4), om.non_trivial),
        )
    ),
    Case(
        "global_wide",
        lambda: losses.GlobalLoss(weight=3.0, margin=1.0),
        lambda x, y, **k: compared.global_loss(x, y, 3.0, 1.0, **k),
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
    Case(
        "npair_triplet",
        lambda: losses.NPairLoss("triplet", symmetric=True, scale=2.0),
        lambda x, y, **k: ot.npair(x, y, "triplet", symmetric=True, scale=2.0, **k),
        labels="pairs",
        gallery=False,
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
    Case(
        "lifted_structure_vthm",
        lambda: losses.LiftedStructureLoss(mining="valid_triplet"),
        mined_lifted(om.valid_triplet),
        # Copies may lie an ulp apart, and then rounding decides what a rule keeps.
        kinds=NO_COPIES,
    ),
    Case(
        "generalized_lifted_scaled",
        lambda: losses.GeneralizedLiftedLoss(scale=16.0),
        lambda x, y, **k: op.generalized_lifted(x, y, scale=16.0, **k),
    ),
    Case(
        "generalized_lifted_vthm",
        lambda: losses.GeneralizedLiftedLoss(mining="valid_triplet"),
        mined(op.generalized_lifted, om.valid_triplet),
    ),
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
        mined_distances(op.margin_loss, om.non_trivial),
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
    learning(
        "proxy_nca_dynamic",
        lambda: losses.ProxyNCALoss(CLASSES, DIM, proxies=3),
        compared.proxy_nca_dynamic,
        "proxies",
        **PROXIES,
    ),
    learning(
        "proxy_nca_dynamic_plain",
        lambda: losses.ProxyNCALoss(CLASSES, DIM, proxies=3, squared=False),
        partial(compared.proxy_nca_dynamic, squared_distance=False),
        "proxies",
        **PROXIES,
    ),
    learning("softmax", lambda: losses.SoftmaxLoss(CLASSES, DIM), op.softmax, "proxies", "bias", **PROXIES),
    learning("proxy_anchor", lambda: losses.ProxyAnchorLoss(CLASSES, DIM), op.proxy_anchor, "proxies", **PROXIES),
    learning("cosface", lambda: losses.CosFaceLoss(CLASSES, DIM), oc.cosface, "proxies", **COSINES),
    learning("arcface", lambda: losses.ArcFaceLoss(CLASSES, DIM), oc.arcface, "proxies", **COSINES),
    # So wide a margin that many an angle is beyond π.
    learning(
        "arcface_wide",
        lambda: losses.ArcFaceLoss(CLASSES, DIM, scale=8.0, margin=1.5, centers=3),
        partial(oc.arcface, scale=8.0, margin=1.5, centers=3),
        "proxies",
        **COSINES,
    ),
    learning("soft_triple", lambda: losses.SoftTripleLoss(CLASSES, DIM), oc.soft_triple, "proxies", **COSINES),
    learning(
        "soft_triple_plain",
        lambda: losses.SoftTripleLoss(CLASSES, DIM, centers=2, scale=5.0, gamma=0.5, margin=0.3, tau=0.0),
        partial(oc.soft_triple, centers=2, scale=5.0, gamma=0.5, margin=0.3, tau=0.0),
        "proxies",
        **COSINES,
    ),
    Case("supcon", losses.SupConLoss, oc.supcon, unit=True),
    Case("circle", losses.CircleLoss, oc.circle, unit=True),
    Case(
        "circle_wide",
        lambda: losses.CircleLoss(0.25, 7.0),
        lambda x, y, **k: oc.circle(x, y, 0.25, 7.0, **k),
        unit=True,
    ),
    Case("smooth_ap", losses.SmoothAPLoss, oc.smooth_ap, unit=True),
    Case("smooth_ap_wide", lambda: losses.SmoothAPLoss(0.3), lambda x, y, **k: oc.smooth_ap(x, y, 0.3, **k), unit=True),
    Case("tuplet_margin", losses.TupletMarginLoss, oc.tuplet_margin, unit=True),
    Case(
        "tuplet_margin_wide",
        lambda: losses.TupletMarginLoss(0.6, 5.0),
        lambda x, y, **k: oc.tuplet_margin(x, y, 0.6, 5.0, **k),
        unit=True,
    ),
    Case(
        "sum",
        lambda: losses.SumLoss([(BY_NAME["softmax"].make(), 1.0), (losses.TripletLoss(), 0.5)]),
        summed,
        learns=True,
        **PROXIES,
    ),
    Case(
        "spectral_clustering", losses.SpectralClusteringLoss, compared.spectral_clustering, labels="many", gallery=False
    ),
    *(
        Case(
            f"facility_location_{name}",
            partial(losses.FacilityLocationLoss, **options),
            partial(compared.facility_location, **options),
            labels="partition",
            gallery=False,
            # The search among copies is one of many that are as good.
            kinds=NO_COPIES,
            whole=True,
            compiles=False,
        )
        for name, options in {"default": {}, "greedy": {"rounds": 0}, "large": {"gamma": 10.0}}.items()
    ),
    Case(
        "hierarchical_triplet",
        losses.HierarchicalTripletLoss,
        compared.hierarchical_triplet,
        labels="partition",
        gallery=False,
        # Copies have mean distances that lie on a threshold, and rounding decides.
        kinds=NO_COPIES,
        compiles=False,
    ),
    over_parts("hdc", losses.HDCLoss, compared.hdc, (1, 2, 1)),
    over_parts("hdc_released", partial(losses.HDCLoss, cascade=False), compared.hdc, (1, 2, 1), cascade=False),
    over_parts("abe", losses.ABELoss, compared.abe),
    over_parts("bier", losses.BIERLoss, compared.bier, (1, 1, 2), learns=True),
    over_parts("bier_released", partial(losses.BIERLoss, released=True), compared.bier, (1, 3), True, released=True),
    over_parts(
        "a_bier",
        partial(losses.BIERLoss, adversarial=True, widths=(1, 3), diversity=0.1),
        compared.bier,
        (1, 3),
        learns=True,
    ),
    Case("pddm", pddm(False), compared.pddm, labels="same", gallery=False, kinds=NO_COPIES, learns=True),
    Case(
        "pddm_detached",
        pddm(True),
        partial(compared.pddm, detach=True),
        labels="same",
        gallery=False,
        kinds=NO_COPIES,
        learns=True,
    ),
]
BY_NAME = {case.name: case for case in CASES}
