"""Bad input raises one sentence that names the argument, its value and the remedy."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from losses.cases import PROXY_LOSSES
from tuplet import losses, mining

X, Y = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
LOSS = losses.RAWLoss()


def refused(error, *words):
    """Expect an error of one line that contains these words."""
    return pytest.raises(error, match=r"(?s)^(?!.*\n)" + "".join(f"(?=.*{word})" for word in words))


@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        (torch.randn(6), Y, ValueError, ["embeddings", r"\(6,\)", "flatten"]),
        (torch.randn(6, 2, 2), Y, ValueError, ["embeddings", r"\(6, 2, 2\)", "flatten"]),
        (X, Y[:4], ValueError, ["labels", "4", "6 vectors", "one for each"]),
        (X, Y.float(), TypeError, ["labels", "float32", r"\.long"]),
        (X, Y[:, None], ValueError, ["labels", r"\(6, 1\)", "one integer"]),
        (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), ValueError, ["embeddings", "empty", "at least one"]),
        (X.long(), Y, TypeError, ["embeddings", "int64", r"\.float"]),
        (X.tolist(), Y, TypeError, ["embeddings", "list", "as_tensor"]),
        (X, Y.tolist(), TypeError, ["labels", "list", "as_tensor"]),
        (X, Y.numpy(), TypeError, ["labels", "ndarray", "as_tensor"]),
    ],
)
def test_batch(x, y, error, words):
    with refused(error, *words):
        LOSS(x, y)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_not_finite(bad):
    x = X.clone()
    x[3, 1] = bad
    with refused(ValueError, "row 3", str(bad), "diverged"):
        LOSS(x, Y, check_finite=True)
    with refused(ValueError, "gallery", "row 3"):
        LOSS(X, Y, gallery=x, gallery_labels=Y, check_finite=True)


def test_gallery():
    with refused(ValueError, "gallery_labels", "missing"):
        LOSS(X, Y, gallery=X)
    with refused(ValueError, "without a gallery"):
        LOSS(X, Y, gallery_labels=Y)
    with refused(ValueError, "dimension 4", "got 3"):
        LOSS(X, Y, gallery=X[:, :3], gallery_labels=Y)
    with refused(TypeError, "float32", "float64", r"\.to\(torch.float32\)"):
        LOSS(X, Y, gallery=X.double(), gallery_labels=Y)
    with refused(ValueError, "gallery_labels", "5 for 6"):
        LOSS(X, Y, gallery=X, gallery_labels=Y[:5])


def test_parts_and_comparisons_that_do_not_exist():
    with refused(ValueError, r"\(4, 2\)", "one width", "attention="):
        losses.ABELoss()([X, X[:, :2]], Y)
    for parts in ([X.numpy()], X.tolist(), [X[0]], [], [X, X[:3]]):
        with refused(ValueError, "parts", "list of tensors"):
            losses.ABELoss()(parts, Y)
    with refused(ValueError, "same is 'all'", "'any'", "function"):
        LOSS(X, Y, same="all")


def test_a_memory_bank_has_its_own_labels():
    with refused(ValueError, "gallery_labels", "memory", "leave"):
        LOSS(X, Y, gallery=losses.MemoryBank(4, 4), gallery_labels=torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        (X[:, :1], Y, ValueError, ["dim=4", "dimension 1"]),
        (X[0], Y, ValueError, ["embeddings", r"\(4,\)"]),
        (X.tolist(), Y, TypeError, ["embeddings", "list", "as_tensor"]),
        (X, Y[:1], ValueError, ["labels", "1 for 6 vectors"]),
        (X, Y.float(), TypeError, ["labels", "float32", r"\.long"]),
        (X, Y[:, None], ValueError, ["labels", r"\(6, 1\)"]),
    ],
)
def test_bad_input_of_a_memory_bank(x, y, error, words):
    bank = losses.MemoryBank(8, 4)
    with refused(error, *words):
        bank.add(x, y)
    assert bank.filled == 0


@pytest.mark.parametrize(
    ("same", "words"),
    [
        (lambda a, b: a == b, [r"\(6, 6\)", r"\(6,\)"]),
        (lambda a, b: (a[:, None] == b).float(), ["bool", "float32"]),
        (lambda a, b: a[:, None].eq(b).tolist(), ["torch.Tensor", "list"]),
    ],
)
def test_comparison(same, words):
    with refused((TypeError, ValueError), "same", *words):
        LOSS(X, Y, same=same)


def test_weights():
    with refused(TypeError, "embeddings", "list", "as_tensor"):
        LOSS.weights(X.tolist(), Y)


def test_mining():
    with refused(ValueError, "mining", "'hard'", "semi_hard"):
        losses.RAWLoss(mining="hard")
    with refused(TypeError, "mining", "3", "ValidTriplet"):
        losses.RAWLoss(mining=3)
    with refused(ValueError, "'semihard'", "semi_hard"):
        losses.TripletLoss(mining="semihard")
    for make in (losses.RAWLoss, losses.TripletLoss):
        with refused(ValueError, "'non_trivial'", "without a default", r"mining\.NonTrivial"):
            make(mining="non_trivial")
    with refused(ValueError, "cutoff=0", "above 0"):
        mining.DistanceWeighted(cutoff=0)
    with refused(ValueError, "cutoff=2", "cutoff below 2"):
        mining.DistanceWeighted(cutoff=2)


@pytest.mark.parametrize(
    ("names", "gives", "words"),
    [
        (False, lambda block: block.positive, [r"\(2, 2\)", "bool", "two"]),
        (False, lambda block: (block.positive, block.table), [r"\(2, 2\)", "float32", "two"]),
        (False, lambda block: (block.positive, block.negative.any(1)), [r"bool \(2,\)", "two"]),
        (True, lambda block: (block.positive, block.negative), [r"\(2, 1\)", "tuple", "names"]),
        (True, lambda block: block.negative, [r"\(2, 1\)", r"bool \(2, 2\)", "names"]),
    ],
)
def test_bad_result_of_a_rule(names, gives, words, monkeypatch):
    """A table of two rows must not be taken for two masks."""

    class Own(mining.Mining):
        def forward(self, block, *inputs):
            return gives(block)

    Own.names = names
    for listed in (128, 0):
        monkeypatch.setattr("tuplet.rows.paths.NAMED_FACTOR", listed)
        with refused(ValueError, "Own", *words):
            losses.RAWLoss(mining=Own())(X[:2], Y[:2])


def test_options():
    with refused(ValueError, "block_rows", "0"):
        LOSS(X, Y, block_rows=0)
    with refused(TypeError, "block_rows is 2.5", "integer"):
        LOSS(X, Y, block_rows=2.5)
    with refused(TypeError, "max_per_class is 3.0", "integer"):
        losses.TripletLoss(max_per_class=3.0)(X, Y)
    with refused(ValueError, "max_per_class is 1", "has 2", "at least 2"):
        losses.TripletLoss()(X, Y, max_per_class=1)
    with refused(ValueError, "max_per_class is 1", "has 2", "at least 2"):
        losses.TripletLoss(max_per_class=1)(X, Y)
    with refused(ValueError, "max_per_class is 1", "has 2", "at least 2"):
        losses.TripletLoss()(X, Y, max_per_class=1, same=lambda a, b: a[:, None] == b)
    with refused(ValueError, "variant", "'all'", "'ovo'"):
        losses.NPairLoss("all")
    with refused(ValueError, "bins", "1"):
        losses.HistogramLoss(1)
    with refused(ValueError, "margin is 28.6", "radians", "0.5 is 28.6 degrees"):
        losses.ArcFaceLoss(3, 4, margin=28.6)
    for make in (losses.AngularLoss, losses.AngularHingeLoss, losses.NPairAngularLoss):
        with refused(ValueError, "alpha is 95", "degrees", "below 90"):
            make(alpha=95)
    with refused(TypeError, "bins is 2.5", "integer"):
        losses.HistogramLoss(2.5)
    for temperature in (-1, float("nan"), float("inf")):
        with refused(ValueError, f"temperature is {temperature}", "at least 0 and finite"):
            losses.RankedListLoss(temperature=temperature)
    with refused(TypeError, "num_classes is 5.0", "integer"):
        losses.ProxyAnchorLoss(5.0, 8)
    for parts in ([losses.RAWLoss(), losses.NCALoss()], [], [(losses.RAWLoss(), 1.0, 2.0)], [(1.0, losses.RAWLoss())]):
        with refused(TypeError, "pairs of a loss and its weight"):
            losses.SumLoss(parts)
    assert losses.SumLoss([[losses.RAWLoss(), 2]]).part_weights == [2.0]
    with refused(ValueError, "init_process_group"):
        LOSS(X, Y, distributed=True)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (losses.BinomialDevianceLoss, "alpha beta"),
        (losses.RAWLoss, "alpha beta"),
        (losses.MultiSimilarityLoss, "alpha beta"),
        (losses.NRALoss, "alpha"),
        (losses.TripletRatioLoss, "margin"),
        (losses.SupConLoss, "temperature"),
        (losses.SmoothAPLoss, "temperature"),
        (losses.CircleLoss, "scale"),
        (losses.TupletMarginLoss, "scale"),
        (losses.SmoothTripletLoss, "scale"),
        (losses.NPairLoss, "scale"),
        (losses.GeneralizedLiftedLoss, "scale"),
        (partial(losses.CosFaceLoss, 3, 4), "scale"),
        (partial(losses.ArcFaceLoss, 3, 4), "scale"),
        (partial(losses.SoftTripleLoss, 3, 4), "scale gamma"),
        (partial(losses.ProxyAnchorLoss, 3, 4), "alpha"),
        (losses.BIERLoss, "alpha negative_cost"),
    ],
)
def test_numbers_that_give_no_loss(make, names, value):
    """A division by zero, an overflow, or pairs that are pulled the wrong way."""
    for name in names.split():
        with refused(ValueError, f"{name} is {value}", "above 0 and finite"):
            make(**{name: value})


def test_fewer_classes_than_processes(monkeypatch):
    """A process without a class would fail by itself, and the others would wait for it."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 4)
    loss = losses.CosFaceLoss(3, 4, sharded=True)
    with refused(ValueError, "CosFaceLoss has 3 classes for 4 processes", "leave sharded= out"):
        loss(X, Y)


def test_batches_of_the_wrong_composition():
    with refused(ValueError, "class 1 has 4", "NPairSampler"):
        losses.NPairLoss()(X, torch.tensor([0, 0, 1, 1, 1, 1]))
    with refused(ValueError, "class 0.5 has 4", "NPairSampler"):
        losses.NPairLoss()(X, torch.tensor([0.2, 0.2, 0.5, 0.5, 0.5, 0.5]), same=lambda a, b: a[:, None] == b)
    with refused(ValueError, "exactly two", r"\(5,\)"):
        losses.NPairLoss()(X[:5], Y[:5])
    with refused(ValueError, "one positive for each query", "label 1 has 2", "NPairAllLoss"):
        losses.NPairLoss()(X[:3], Y[1:4], gallery=X, gallery_labels=torch.tensor([0, 1, 1, 5, 5, 6]))
    with refused(ValueError, "one positive for each query", "label 0 has 2", "NPairAllLoss"):
        losses.NPairLoss(symmetric=True)(X[:3], Y[:3], gallery=X[:2], gallery_labels=torch.tensor([0, 1]))
    with refused(ValueError, "one positive for each query", "label 0 has 2", "NPairAllLoss"):
        losses.NPairLoss()(X, Y, same=lambda a, b: a[:, None] // 2 == b // 2)
    with refused(ValueError, "rows 0 to 2", r"\[0, 0, 0\]", "TripletSampler"):
        losses.TripletLoss(mining="disjoint")(X, torch.tensor([0, 0, 0, 1, 1, 2]))
    with refused(ValueError, "4 rows", "anchor, positive, negative"):
        losses.TripletLoss(mining="disjoint")(X[:4], Y[:4])


@pytest.mark.parametrize("make", [loss for loss in PROXY_LOSSES if loss is not losses.ProxyAnchorLoss])
def test_several_classes_per_example(make):
    has = torch.eye(3, dtype=torch.bool)[Y]
    look = {"same": lambda has, classes: has[:, classes]}
    loss = make(3, 4)
    assert torch.equal(loss(X, has, **look), loss(X, Y))
    has[4, 0] = True
    with refused(ValueError, make.__name__, "one positive", r"\[True, False, True\] has 2", "ProxyAnchorLoss"):
        loss(X, has, **look)


@pytest.mark.parametrize("make", PROXY_LOSSES)
def test_proxies(make):
    loss = make(num_classes=3, dim=4)
    with refused(ValueError, "classes 0 to 2", "label 3"):
        loss(X, Y + 1)
    with refused(ValueError, "classes 0 to 2", "label -1"):
        loss(X, Y - 1)
    with refused(ValueError, "dim=4", "dimension 3"):
        loss(X[:, :3], Y)
    with refused(ValueError, "leave gallery= out"):
        loss(X, Y, gallery=X, gallery_labels=Y)


def test_tensors_of_two_devices():
    """The device "meta" stands for a GPU."""
    there, labels_there = X.to("meta"), Y.to("meta")
    with refused(ValueError, "labels are on cpu", "vectors on meta", r"\.to"):
        LOSS(there, Y)
    with refused(ValueError, "gallery is on cpu", "queries on meta", r"\.to"):
        LOSS(there, labels_there, gallery=X, gallery_labels=Y)
    with refused(ValueError, "gallery is on cpu", "queries on meta", r"\.to"):
        LOSS(there, labels_there, gallery=losses.MemoryBank(4, 4))
    with refused(ValueError, "MemoryBank is on cpu", "embeddings on meta", r"\.to"):
        losses.MemoryBank(4, 4).add(there, labels_there)
    for make in PROXY_LOSSES:
        with refused(ValueError, f"{make.__name__} is on meta", "embeddings on cpu", r"\.to"):
            make(num_classes=3, dim=4).to("meta")(X, Y)


@pytest.mark.parametrize("make", PROXY_LOSSES)
def test_no_proxies(make):
    make(1, 1)
    with refused(ValueError, "num_classes is 0", "at least 1"):
        make(0, 4)
    with refused(ValueError, "dim is 0", "at least 1"):
        make(3, 0)


@pytest.mark.parametrize("make", [losses.ArcFaceLoss, losses.SoftTripleLoss])
def test_no_centers(make):
    with refused(ValueError, "centers is 0", "at least 1"):
        make(3, 4, centers=0)


def test_a_loss_without_rows():
    with pytest.raises(NotImplementedError, match="must define rows"):
        losses.RowLoss()(X, Y)


def test_an_unknown_geometry():
    with refused(ValueError, "geometry of Cosine", "'cosine'", "dot, euclidean"):
        type("Cosine", (losses.RowLoss,), {"geometry": "cosine"})


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        (lambda self, s, positive, negative: s.sum(1), r"torch.float32 \(6,\);"),
        (lambda self, s, positive, negative: (s.sum(), positive.any(1)), r"torch.float32 \(\) and torch.bool \(6,\);"),
        (lambda self, s, positive, negative: (s, s > 0), r"torch.float32 \(6, 6\) and torch.bool \(6, 6\);"),
        (lambda self, s, positive, negative: None, "NoneType;"),
        (lambda self, s, positive, negative: (s.sum(1), 1), r"torch.float32 \(6,\) and int;"),
    ],
)
def test_bad_result_of_rows(rows, given):
    loss = type("Odd", (losses.RowLoss,), {"rows": rows})()
    with refused(ValueError, "total and a count for each of 6 queries, got " + given, r"shape \(6,\)"):
        loss(X.clone().requires_grad_(), Y)


def test_hooks_for_saved_tensors():
    """The engine differentiates block by block: hooks would see every table."""
    x = X.clone().requires_grad_()
    with refused(RuntimeError, "a loss", "save_on_cpu", "outside"), torch.autograd.graph.save_on_cpu():
        LOSS(x, Y)
    with refused(RuntimeError, "a loss", "checkpoint", "outside"):
        checkpoint(LOSS, x, Y, use_reentrant=False)


@pytest.mark.parametrize("loss", [LOSS, losses.LiftedStructureLoss(), losses.HistogramLoss()], ids=str)
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap], ids=["grad", "vmap"])
def test_transforms_of_functions(loss, transform):
    with refused(RuntimeError, type(loss).__name__, "torch.func", r"backward\(\)"):
        transform(lambda x: loss(x.view(6, 4), Y))(X.view(1, 6, 4))
