"""Test the objective: losses by name, on each level, with a memory; facts that losses state; warnings about length."""

import json
import warnings

import pytest
import torch

import tuplet
from training_tools import vectors
from tuplet import losses, mining, training
from tuplet.losses import LOSSES, RowLoss
from tuplet.rows import masked_logsumexp
from tuplet.training.model import usual_normalize, warn_of_length
from tuplet.training.objective import Objective, make_loss
from tuplet.training.settings import Settings

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(24) // 4


def test_every_exported_loss_has_a_name():
    exported = {each for each in map(losses.__dict__.get, losses.__all__) if isinstance(each, type)}
    assert set(LOSSES.values()) == exported - {losses.RowLoss, losses.MemoryBank}
    assert all(loss.name == name for name, loss in LOSSES.items())


#: A sum has no parts of its own.
SINGLE = [name for name in LOSSES if name != "sum"]


@pytest.mark.parametrize("name", SINGLE)
def test_every_loss_trains_by_its_name_with_default_settings(name, tmp_path):
    """No warning, since vectors and batches are what the loss is defined on; and the weights move."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "training made the model worse")  # three steps of a random layer do
        run = training.train(
            vectors(), tmp_path, loss=name, steps=3, batch_size=12, per_class=3, dim=5, lr=0.01, validation=0
        )
    start = training.train(
        vectors(), tmp_path / "start", loss=name, steps=1, batch_size=12, per_class=3, dim=5, validation=0
    )
    assert 0 <= run.metrics["recall_at_1"] <= 1
    last = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["embedder"]
    assert not torch.equal(last["heads.H.weight"], start.embedder.state_dict()["heads.H.weight"])


def test_a_sum_of_losses_trains_all_its_parts(tmp_path):
    loss = losses.SumLoss([(losses.SoftmaxLoss(20, 5), 1.0), (losses.FacilityLocationLoss(decay=0.5), 0.5)])
    options = {"batch_size": 12, "per_class": 3, "dim": 5}
    tuplet.train(vectors(), tmp_path, loss=loss, steps=3, **options)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert any(key.endswith("bias") and value.any() for key, value in saved["objective"].items())
    small = losses.SumLoss([(losses.SoftmaxLoss(2, 5), 1.0), (losses.TripletLoss(), 1.0)])
    with pytest.raises(ValueError, match="SoftmaxLoss has proxies for 2 classes"):
        tuplet.train(vectors(), tmp_path / "small", loss=small, steps=1, **options)


def test_gamma_of_facility_location_falls_after_each_epoch(tmp_path):
    options = {"loss": "facility_location", "loss_options": {"decay": 0.5}}
    options |= {"batch_size": 12, "per_class": 3, "dim": 5, "steps": 25}
    tuplet.train(vectors(), tmp_path, **options)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    (epochs,) = [value for key, value in saved["objective"].items() if key.endswith("epochs")]
    assert 1 <= epochs < 25
    assert epochs == saved["sampler"]["epoch"]


class OwnLoss(RowLoss):
    """A loss of a user's script: the exponential form of lifted structure."""

    def rows(self, s, positive, negative):
        pull, push = masked_logsumexp(-s, positive), masked_logsumexp(s, negative)
        return torch.relu(1 + pull + push), positive.any(1) & negative.any(1)


def loss_with(**facts):
    """Make a loss of a class of its own with these facts."""
    return type("OwnLoss", (OwnLoss,), facts)()


@pytest.mark.parametrize(
    ("batch", "sampler"),
    [("pairs", "npair"), ("triplets", "triplet"), ("groups", "ngroup"), ("classes", "class_balanced")],
)
@pytest.mark.parametrize("normalize", [True, False, "eval", None])
def test_a_loss_of_a_script_gets_its_sampler_and_head(batch, sampler, normalize, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "training made the model worse")  # three steps of a random layer do
        run = tuplet.train(
            vectors(),
            tmp_path,
            loss=loss_with(batch=batch, normalize=normalize),
            steps=2,
            batch_size=12,
            dim=5,
            validation=0,
        )
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert settings["sampler"] == sampler
    assert run.embedder.config.normalize is (True if normalize is None else normalize) or normalize == "eval"
    lengths = run.embedder.embed(torch.randn(4, 10)).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(4)) == (normalize is not False)


def test_a_loss_of_a_script_gets_no_batches_but_those_it_needs(tmp_path):
    with pytest.raises(ValueError, match="OwnLoss needs the batches of sampler='npair', and sampler='ngroup' makes"):
        tuplet.train(vectors(), tmp_path, loss=loss_with(batch="pairs"), sampler="ngroup", per_class=3, batch_size=12)
    with pytest.raises(ValueError, match="batch of OwnLoss is 'pair'; did you mean 'pairs'"):
        tuplet.train(vectors(), tmp_path, loss=loss_with(batch="pair"))
    with pytest.raises(ValueError, match="memory is 10 and OwnLoss takes no memory"):
        tuplet.train(vectors(), tmp_path, loss=loss_with(takes_gallery=False), memory=10)


def test_a_loss_of_a_script_may_have_proxies(tmp_path):
    """One example of a class suffices, but not fewer proxies than classes."""

    class OwnProxies(OwnLoss):
        takes_gallery = False

        def __init__(self, classes):
            super().__init__()
            self.proxies = torch.nn.Parameter(torch.randn(classes, 5))

        def value(self, view):
            scores = view.queries @ view.learned(self.proxies).T
            return torch.nn.functional.cross_entropy(scores, view.labels)

    run = tuplet.train(vectors(), tmp_path, loss=OwnProxies(6), steps=2, batch_size=6, per_class=1, dim=5, validation=0)
    assert run.metrics
    with pytest.raises(ValueError, match="OwnProxies has proxies for 5 classes and 6 are trained"):
        tuplet.train(
            vectors(), tmp_path / "few", loss=OwnProxies(5), steps=2, batch_size=6, per_class=1, dim=5, validation=0
        )


def test_mining_by_name_and_by_object():
    assert isinstance(make_loss("raw", {"mining": "semi_hard"}, 1, 1).mining, mining.SemiHard)
    rule = make_loss("margin", {"mining": {"name": "non_trivial", "alpha": 1.0, "margin": 0.3}}, 1, 1).mining
    assert (rule.alpha, rule.margin) == (1.0, 0.3)
    assert isinstance(make_loss("triplet", {"mining": {"name": "semi_hard"}}, 1, 1).mining, mining.SemiHard)
    assert make_loss("triplet", {"mining": "hardest"}, 1, 1).mining == "hardest"
    assert make_loss("margin", {"mining": None}, 1, 1).mining is None
    own = losses.RAWLoss(mining=mining.ValidTriplet(0.3))
    made = make_loss(own, {}, 1, 1)
    assert made is not own
    assert made.mining.epsilon == 0.3


def test_losses_with_proxies_get_one_for_each_training_class(tmp_path):
    training.train(vectors(classes=9), tmp_path, loss="proxy_nca", steps=1, batch_size=4, dim=5)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["objective"]["losses.0.proxies"].shape == (4, 5)


def test_levels_are_summed_each_with_its_own_loss():
    parts = [X[:, :2], X[:, 2:]]
    objective = Objective(Settings(loss="raw"), [2, 4], classes=6, max_per_class=4)
    expected = sum(losses.RAWLoss()(part, LABELS) for part in parts)
    assert objective(parts, LABELS, 0, distributed=False).item() == pytest.approx(expected.item(), rel=1e-12)
    learned = Objective(Settings(loss="proxy_nca"), [2, 4], classes=6, max_per_class=4)
    assert [tuple(p.shape) for p in learned.parameters()] == [(6, 2), (6, 4)]


@pytest.mark.parametrize("start", [0, 2])
def test_the_memory_is_a_second_gallery_after_its_first_step(start):
    """Against a loop that keeps the last 30 vectors itself."""
    objective = Objective(Settings(loss="raw", memory=30, memory_start=start), [6], classes=6, max_per_class=4).double()
    loss, kept, labels = losses.RAWLoss(), torch.empty(0, 6, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    for step in range(4):
        x = X.roll(step, 0) + step
        y = LABELS.roll(step)
        expected = loss(x, y)
        if step >= start and len(kept):
            expected = expected + loss(x, y, gallery=kept, gallery_labels=labels)
        assert objective([x], y, step, distributed=False).item() == pytest.approx(expected.item(), rel=1e-9)
        objective.remember([x], y, lambda rows: rows)
        kept, labels = torch.cat([kept, x])[-30:], torch.cat([labels, y])[-30:]


UNIT = {"binomial_deviance", "cosine_contrastive", "global", "histogram", "margin", "multi_similarity"}
UNIT |= {"abe", "bier", "hdc", "hierarchical_triplet", "pddm", "proxy_anchor", "proxy_nca", "ranked_list", "raw"}
UNBOUNDED = {"angular", "generalized_lifted", "nca", "npair", "npair_all", "npair_angular", "smooth_triplet"}
SCALED = UNBOUNDED - {"angular", "npair_angular"}
FREE = UNBOUNDED | {"nra", "softmax"}
ANY = {"angular_hinge", "contrastive", "facility_location", "lifted_structure", "spectral_clustering", "triplet"}
ANY |= {"triplet_ratio", "arcface", "circle", "cosface", "smooth_ap", "soft_triple", "supcon", "tuplet_margin"}


@pytest.mark.parametrize("name", sorted(UNIT | FREE | ANY))
@pytest.mark.parametrize("normalize", [True, False, "eval"])
def test_vectors_of_the_wrong_length_raise_a_warning(name, normalize, recwarn):
    loss = make_loss(name, {}, 4, 4)
    assert usual_normalize(loss) == ("eval" if name in FREE else True)
    warn_of_length(loss, normalize)
    messages = [str(warning.message) for warning in recwarn]
    expected = name in UNIT if normalize is not True else name in SCALED
    assert len(messages) == expected
    if messages:
        assert type(loss).__name__ in messages[0]
        assert ("use normalize=True" in messages[0]) == (name in UNIT)
    # The normalisation of the authors never raises a warning.
    recwarn.clear()
    warn_of_length(loss, usual_normalize(loss))
    assert not recwarn.list


@pytest.mark.parametrize("name", sorted(SCALED))
def test_with_a_scale_unit_vectors_are_fine(name, recwarn):
    loss = make_loss(name, {"scale": 16.0}, 4, 4)
    warn_of_length(loss, True)
    assert not recwarn.list
    assert usual_normalize(loss) is True


def test_docstrings_name_the_length_that_a_loss_is_defined_on():
    for name in UNIT:
        assert "Inputs: unit vectors" in LOSSES[name].__doc__
    for name in UNBOUNDED - {"angular"}:
        assert "free length" in LOSSES[name].__doc__
