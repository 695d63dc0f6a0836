"""What is minimised: losses by name, on each level, beside a memory; and words about the length of vectors."""

import warnings

import pytest
import torch

from training_tools import vectors
from tuplet import losses, mining, training
from tuplet.training.objective import LOSSES, Objective, make_loss, usual_normalize, warn_of_length
from tuplet.training.settings import Settings

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(24) // 4


def test_every_loss_has_a_name():
    public = {getattr(losses, name) for name in losses.__all__} - {losses.RowLoss, losses.MemoryBank}
    assert set(LOSSES.values()) == public


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_trains_by_its_name_with_what_it_needs_by_default(name, tmp_path):
    """No warning, since vectors and batches are what the loss is defined on; and the weights move."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = training.train(vectors(), tmp_path, loss=name, steps=3, batch_size=12, per_class=3, dim=5, rate=0.01)
    start = training.train(vectors(), tmp_path / "start", loss=name, steps=1, batch_size=12, per_class=3, dim=5)
    assert 0 <= run.metrics["recall_at_1"] <= 1
    last = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["embedder"]
    assert not torch.equal(last["heads.H.weight"], start.embedder.state_dict()["heads.H.weight"])


def test_mining_by_name_and_by_object():
    assert isinstance(make_loss("raw", {"mining": "semi_hard"}, 1, 1).mining, mining.SemiHard)
    rule = make_loss("margin", {"mining": {"name": "non_trivial", "alpha": 1.0, "margin": 0.3}}, 1, 1).mining
    assert (rule.alpha, rule.margin) == (1.0, 0.3)
    assert make_loss("triplet", {"mining": "semi_hard"}, 1, 1).mining == "semi_hard"
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
    assert objective(parts, LABELS, 0, ranks=False).item() == pytest.approx(expected.item(), rel=1e-12)
    learned = Objective(Settings(loss="proxy_nca"), [2, 4], classes=6, max_per_class=4)
    assert [tuple(p.shape) for p in learned.parameters()] == [(6, 2), (6, 4)]


@pytest.mark.parametrize("start", [0, 2])
def test_the_memory_is_a_second_gallery_from_its_start_on(start):
    """Against a loop that keeps the last 30 vectors itself."""
    objective = Objective(Settings(loss="raw", memory=30, memory_start=start), [6], classes=6, max_per_class=4).double()
    loss, kept, labels = losses.RAWLoss(), torch.empty(0, 6, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    for step in range(4):
        x = X.roll(step, 0) + step
        y = LABELS.roll(step)
        expected = loss(x, y)
        if step >= start and len(kept):
            expected = expected + loss(x, y, gallery=kept, gallery_labels=labels)
        assert objective([x], y, step, ranks=False).item() == pytest.approx(expected.item(), rel=1e-9)
        objective.remember([x], y, lambda rows: rows)
        kept, labels = torch.cat([kept, x])[-30:], torch.cat([labels, y])[-30:]


UNIT = {"binomial_deviance", "cosine_contrastive", "generalized_lifted", "histogram", "margin", "multi_similarity"}
UNIT |= {"proxy_anchor", "proxy_nca", "ranked_list", "raw"}
UNBOUNDED = {"angular", "nca", "npair", "npair_all", "npair_angular", "smooth_triplet"}
SCALED = UNBOUNDED - {"angular", "npair_angular"}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("normalize", [True, False, "eval"])
def test_vectors_of_the_wrong_length_are_warned_of(name, normalize, recwarn):
    loss = make_loss(name, {}, 4, 4)
    warn_of_length(loss, normalize)
    told = [str(warning.message) for warning in recwarn]
    expected = name in UNIT if normalize is not True else name in SCALED
    assert len(told) == expected
    if told:
        assert type(loss).__name__ in told[0]
        assert ("use normalize=True" in told[0]) == (name in UNIT)
    # What the authors did is never warned of.
    recwarn.clear()
    warn_of_length(loss, usual_normalize(loss))
    assert not recwarn.list


@pytest.mark.parametrize("name", sorted(SCALED))
def test_a_scale_makes_unit_vectors_right(name, recwarn):
    loss = make_loss(name, {"scale": 16.0}, 4, 4)
    warn_of_length(loss, True)
    assert not recwarn.list
    assert usual_normalize(loss) is True


def test_docstrings_say_which_length_a_loss_is_defined_on():
    for name in UNIT - {"multi_similarity"}:
        assert "Inputs: unit vectors" in LOSSES[name].__doc__
    for name in UNBOUNDED - {"angular"}:
        assert "free length" in LOSSES[name].__doc__
