"""Labels are integers everywhere. Booleans are refused, because they are more often a mask than classes."""

import numpy as np
import pytest
import torch

from tuplet import evaluation, losses, sampling
from tuplet.data import Dataset, from_features, from_images

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([True, True, False, False])
USES = {
    "data of features": lambda labels: from_features(X, labels),
    "data of images": lambda labels: from_images(torch.zeros(4, 5, 5, dtype=torch.uint8), labels),
    "data with names": lambda labels: from_features(X, labels, class_names=["no", "yes"]),
    "samplers": lambda labels: sampling.NPairSampler(labels, pairs=2),
    "evaluation": lambda labels: evaluation.recall_at_k(X, labels),
    "clusters": lambda labels: evaluation.nmi(labels, [0, 0, 1, 1]),
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@every_use
@pytest.mark.parametrize("labels", [MASK, MASK.numpy(), MASK.tolist()], ids=["tensor", "array", "list"])
def test_booleans_are_refused(use, labels):
    with pytest.raises(TypeError, match=r"labels must be integers.*, got bool; .*return_inverse=True"):
        use(labels)


@every_use
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_floating_point_labels_are_refused(use, kind):
    with pytest.raises(TypeError, match=rf"labels must be integers.*, got {str(kind)[6:]}; .*return_inverse=True"):
        use(MASK.to(kind))


@pytest.mark.parametrize("use", ["samplers", "evaluation", "clusters"])
def test_names_are_refused_where_numbers_are_needed(use):
    with pytest.raises(TypeError, match=r"labels must be integers, got text; number the classes with np.unique"):
        USES[use](["ant", "ant", "bee", "bee"])


def test_a_dataset_in_place_of_its_labels_is_refused():
    data = from_features(X, MASK.long())
    with pytest.raises(ValueError, match=r"got Dataset of shape \(\); give those of a dataset as dataset.labels"):
        sampling.NPairSampler(data, pairs=2)
    sampling.NPairSampler(data.labels, pairs=2)


@every_use
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_of_all_widths_are_accepted(use, kind):
    use(MASK.numpy().astype(kind))


@pytest.mark.parametrize(
    "labels", [[2**63, 3] * 2, [2**63, -1] * 2, [2**70, 2**70 + 1] * 2, [-(2**70), 0] * 2], ids=str
)
def test_integers_beyond_the_types_of_numpy_stay_different(labels):
    """numpy would make floats of a list of small and huge integers, in which 2^63 and 2^63 + 1 are one class."""
    assert {len(set(batch)) for batch in sampling.NPairSampler(labels, pairs=2)} == {4}
    assert len(set(from_features(X, labels).labels[:2].tolist())) == 2
    with pytest.raises(ValueError, match=f"labels must fit into int64, got {labels[0]};"):
        evaluation.recall_at_k(X, labels)


def test_losses_memories_and_datasets_refuse_booleans():
    loss, bank = losses.RAWLoss(), losses.MemoryBank(4, 3)
    for use in (
        lambda: loss(X, MASK),
        lambda: loss.weights(X, MASK),
        lambda: loss(X, MASK.long(), gallery=X, gallery_labels=MASK),
        lambda: bank.add(X, MASK),
    ):
        with pytest.raises(TypeError, match=r"labels must be integers, got torch.bool; convert them with .long()"):
            use()
    with pytest.raises(ValueError, match="labels must be int64"):
        Dataset(MASK, ("no", "yes"), features=X)


@pytest.mark.parametrize("odd", [float("nan"), None, 3, True], ids=str)
@pytest.mark.parametrize("kind", [list, lambda names: np.array(names, dtype=object)], ids=["list", "array"])
def test_names_mixed_with_other_values_are_refused(odd, kind):
    """numpy would convert the whole list to text, and a missing name would become a class."""
    with pytest.raises(TypeError, match=f"labels must be integers or names, got {odd} among names; name every class"):
        from_features(X, kind(["ant", "ant", "bee", odd]))
