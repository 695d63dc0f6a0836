"""Mining rules against their literal versions, and random draws against their probabilities."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses import label_patterns as patterns
from losses import oracles_mining as om
from losses import oracles_tuples as ot
from tuplet import losses, mining
from tuplet.rows import View, paths


@pytest.fixture(scope="module", autouse=True, params=["marked", "listed"])
def named(request):
    """Mark named pairs in whole rows, or compute them alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "NAMED_FACTOR", -1 if request.param == "listed" else 10**9)
        yield


def kept(rule, geometry, x, labels, **look):
    """Return the masks that a rule keeps, gathered from all blocks."""
    n = len(x)
    masks = []

    def rows(table, positive, negative, columns):
        whole = torch.zeros(len(table), n, dtype=torch.int64)
        columns = columns.expand_as(positive)
        masks.append(tuple(whole.scatter_add(1, columns, mask.long()) for mask in (positive, negative)))
        return table.sum(1)

    View(geometry, x, labels, rule=rule, **look).each(rows, other=(torch.arange(n),))
    votes = [torch.cat(parts) for parts in zip(*masks, strict=True)]
    assert max(vote.max() for vote in votes) <= 1
    return tuple(vote.bool() for vote in votes)


def assert_masks(ours, truth):
    for mask, true_mask in zip(ours, truth, strict=True):
        assert torch.equal(mask, true_mask)


@given(
    labels=patterns.labels(),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["free", "unit", "beads"]),
    rows=st.integers(1, 9),
)
def test_rules_keep_what_their_definitions_say(labels, seed, kind, rows):
    """Beads lie on a line, half a unit apart: they tie, and lie exactly on the bounds of the rules."""
    if kind == "beads":
        x = torch.randint(-3, 4, (len(labels), 1), generator=torch.Generator().manual_seed(seed)).double() / 2
    else:
        x = patterns.embeddings(len(labels), 4, seed, kind)
    labels = torch.tensor(labels)
    masks, s, d = om.pair_masks(x, labels), om.dot_table(x), om.distance_table(x)

    def check(rule, geometry, truth):
        assert_masks(kept(rule, geometry, x, labels, block_rows=rows), truth)

    check(mining.ValidTriplet(0.5), "dot", om.valid_triplet(s, *masks, 0.5))
    check(mining.ValidTriplet(0.5), "euclidean", om.valid_triplet(1 - d**2 / 2, *masks, 0.5))
    check(mining.SemiHard(), "dot", om.semi_hard(-s, *masks))
    check(mining.SemiHard(), "euclidean", om.semi_hard(d, *masks))
    check(mining.NonTrivial(1.5, 0.5), "euclidean", om.non_trivial(d, *masks, 1.5, 0.5))
    check(mining.NonTrivial(1.5, 0.5), "dot", om.non_trivial(om.as_distance(s), *masks, 1.5, 0.5))


@pytest.mark.parametrize(("geometry", "dim"), [("dot", 6), ("euclidean", 6), ("euclidean", 256)])
def test_distance_weighted_draws_follow_their_probabilities(geometry, dim, soak):
    """One positive a query, many calls: each negative's share is within five standard errors.

    Some vectors are nearer than the cutoff. Of near vectors in many dimensions 1/q is more than float32 can hold.
    """
    n, calls = 12, 20_000 if soak else 1_000
    x = patterns.embeddings(n, dim, 1, "unit")
    x[6:] = torch.nn.functional.normalize(x[6:] + 5 * x[0])
    if dim == 256:
        x = torch.nn.functional.normalize(x + 2 * x[0]).float()
    labels = torch.arange(n) // 2
    _, negative = om.pair_masks(x, labels)
    truth = om.distance_weighted_probabilities(om.distance_table(x.double()), negative, dim)
    rule, counts = mining.DistanceWeighted(), torch.zeros(n, n, dtype=torch.float64)
    for _ in range(calls):
        counts += kept(rule, geometry, x, labels)[1]
        rule.advance()
    assert torch.equal(counts.sum(1), torch.full((n,), calls, dtype=torch.float64))
    error = (truth * (1 - truth) / calls).sqrt()
    assert ((counts / calls - truth).abs() <= 5 * error + 1e-9).all()


def test_distance_weighted_falls_back_to_uniform_and_keeps_all_positives():
    """Where no negative is near enough, all are drawn equally often; one exactly at the bound is not near."""
    x = torch.tensor([[0.0], [0.0], [1.0], [1.0], [-1.9], [-1.9]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    counts, rule = torch.zeros(6, 6), mining.DistanceWeighted(far=1.0)
    for _ in range(1_000):
        positive, negative = kept(rule, "euclidean", x, labels)
        assert torch.equal(positive, om.pair_masks(x, labels)[0])
        counts += negative
        rule.advance()
    shares = counts[counts > 0] / 1_000
    assert len(shares) == 24
    assert ((shares - 0.25).abs() < 0.07).all()


def test_distance_weighted_draws_opposite_vectors_too():
    """The density of the largest distance on the sphere is 0."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    _, negative = kept(mining.DistanceWeighted(), "euclidean", x, torch.tensor([0, 0, 1, 1]))
    assert negative.sum(1).tolist() == [1, 1, 1, 1]


def test_queries_that_share_a_positive_draw_independently():
    """Ten queries draw nine times each among thirty negatives at one distance: most are drawn."""
    _, negative = kept(mining.DistanceWeighted(), "euclidean", torch.eye(40), torch.arange(40) // 10)
    assert negative[:10].any(0).sum() > 20


def test_distance_weighted_draws_one_negative_for_each_positive():
    x, labels = patterns.embeddings(40, 8, 0, "unit"), torch.arange(40) // 10
    positive, negative = kept(mining.DistanceWeighted(), "euclidean", x, labels)
    assert (negative.sum(1) <= positive.sum(1)).all()
    assert negative.sum() > 0.5 * positive.sum()


@given(rows=st.integers(1, 30), seed=st.integers(0, 100))
def test_block_size_changes_no_draw(rows, seed):
    x, labels = patterns.embeddings(30, 8, seed, "unit"), torch.arange(30) // 3
    whole = kept(mining.DistanceWeighted(seed=seed), "euclidean", x, labels)
    assert_masks(kept(mining.DistanceWeighted(seed=seed), "euclidean", x, labels, block_rows=rows), whole)


def test_draws_change_with_calls_and_seeds_and_continue_after_a_reload():
    x, labels = patterns.embeddings(40, 8, 0, "unit"), torch.arange(40) // 4
    loss, again = losses.MarginLoss(), losses.MarginLoss()
    first, second = loss(x, labels), loss(x, labels)
    assert first != second
    again.load_state_dict(loss.state_dict())
    assert loss(x, labels) == again(x, labels)
    assert losses.MarginLoss()(x, labels) == first
    assert losses.MarginLoss(mining=mining.DistanceWeighted(seed=1))(x, labels) not in (first, second)


@pytest.mark.parametrize("name", ["raw_semi_hard", "margin_distance_weighted"])
@given(labels=patterns.labels(), seed=st.integers(0, 10**6), rows=st.integers(1, 9))
def test_values_and_gradients_are_those_of_whole_rows(name, labels, seed, rows):
    make = losses.MarginLoss if name != "raw_semi_hard" else lambda: losses.RAWLoss(mining=mining.SemiHard())
    x, labels = patterns.embeddings(len(labels), 4, seed, "unit").requires_grad_(), torch.tensor(labels)
    value = make()(x, labels, block_rows=rows)
    (gradient,) = torch.autograd.grad(value, x, materialize_grads=True)
    w = make().weights(x, labels)
    v = x @ x.T if name == "raw_semi_hard" else (x[:, None] - x + torch.eye(len(x))[:, :, None]).norm(dim=2)
    torch.testing.assert_close(torch.autograd.grad((w * v).sum(), x)[0], gradient)


def test_a_constant_gallery_gets_no_gradient():
    class Still(losses.RAWLoss):
        moves_gallery = False

    x, labels = patterns.embeddings(24, 6, 0, "unit").requires_grad_(), torch.arange(24) // 4
    loss = Still(mining=mining.SemiHard())
    (gradient,) = torch.autograd.grad(loss(x, labels), x)
    torch.testing.assert_close(loss.weights(x, labels) @ x.detach(), gradient)


def test_weights_are_those_of_the_next_call():
    x, labels = patterns.embeddings(24, 6, 0, "unit").requires_grad_(), torch.arange(24) // 4
    loss = losses.RAWLoss(mining=mining.DistanceWeighted())
    for _ in range(3):
        w = loss.weights(x, labels)
        (gradient,) = torch.autograd.grad(loss(x, labels), x)
        torch.testing.assert_close((w + w.T) @ x.detach(), gradient)


class Closing(mining.Mining):
    """Keep negatives within a limit that falls from call to call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor(1.4))

    def inputs(self, view):
        return (self.limit.repeat(view.size, 1),)

    def forward(self, block, limit):
        return block.positive, block.negative & (block.distance() < limit)

    def advance(self):
        self.limit /= 2


@pytest.mark.parametrize("reduce", ["each", "sum"])
def test_the_backward_pass_uses_the_rule_inputs_of_the_forward_pass(reduce):
    """The rule is called again in the backward pass, after its limit was halved."""

    def rows(s, positive, negative):
        return torch.where(negative, s.square(), 0).sum(1)

    x, labels = patterns.embeddings(24, 4, 0, "unit").requires_grad_(), torch.arange(24) // 4
    look = View("dot", x, labels, rule=Closing(), block_rows=24)
    total, _ = look.total(lambda *block: (rows(*block), block[1].any(1)))
    value = getattr(look, reduce)(rows).sum()
    look.rule.advance()
    truth, ours = (torch.autograd.grad(v, x)[0] for v in (total, value))
    torch.testing.assert_close(ours, truth)
    assert not torch.allclose(torch.autograd.grad(getattr(look, reduce)(rows).sum(), x)[0], truth)


def test_a_rule_that_names_gets_the_positives():
    class Farthest(mining.Mining):
        names = True

        def forward(self, block, columns, exists):
            return torch.where(block.negative, block.distance(), -1).argmax(1, keepdim=True).expand_as(columns)

    x, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    _, negative = kept(Farthest(), "euclidean", x, labels)
    assert negative.int().argmax(1).tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize("make", [losses.TripletLoss, losses.TripletRatioLoss, losses.GlobalLoss])
def test_a_triplet_has_the_negative_that_was_named_for_its_positive(make):
    """A rule names columns by hand: two positives of a query get two negatives, each in one triplet alone."""

    class ByHand(mining.Mining):
        names = True

        def forward(self, block, columns, exists):
            return (columns + 3) % block.table.shape[1]

    x, labels = patterns.embeddings(6, 4, 0, "unit"), torch.tensor([0, 0, 0, 1, 1, 1])
    triplets = [(a, p, (p + 3) % 6) for a in range(6) for p in range(6) if p != a and labels[p] == labels[a]]
    in_turn = torch.tensor(triplets).flatten()
    truth = make(mining="disjoint")(x[in_turn], labels[in_turn])
    torch.testing.assert_close(make(mining=ByHand())(x, labels), truth)
    torch.testing.assert_close(make(mining=ByHand())(x, labels, block_rows=2), truth)


def test_triplets_of_drawn_negatives():
    """With one positive for each query, the kept negative is that of its triplet; each call draws others."""
    x, labels = patterns.embeddings(20, 6, 0, "unit"), torch.arange(20) // 2
    loss, rule = losses.TripletLoss(mining="distance_weighted"), mining.DistanceWeighted()
    values = set()
    for _ in range(3):
        truth = ot.triplet(x, labels, kept=kept(rule, "euclidean", x, labels))
        torch.testing.assert_close(value := loss(x, labels), truth)
        values.add(value.item())
        rule.advance()
    assert len(values) == 3


def test_each_loss_has_its_own_rule():
    one, other = losses.MarginLoss(), losses.MarginLoss()
    one(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    assert one.mining.calls == 1
    assert other.mining.calls == 0
