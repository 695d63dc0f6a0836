"""Groups that a query leaves out, several labels for each example, and graded relevance, against literal loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from tuplet import evaluation
from tuplet.evaluation import neighbors, ranking, top_ranks


def lists(x, sets, groups, gallery=None):
    """Yield for each query the members that it may find, nearest first, with wrong ones before right ones."""
    members, member_sets, member_groups = (x, sets, groups) if gallery is None else gallery
    for i in range(len(x)):
        found = []
        for j in range(len(members)):
            same = bool(set(sets[i]) & set(member_sets[j]) - {-1})
            if (gallery is None and i == j) or (same and groups[i] == member_groups[j]):
                continue
            found.append((float(((x[i] - members[j]) ** 2).sum()), same))
        yield [same for _, same in sorted(found)]


def recall(ranked, k):
    return float(np.mean([any(each[:k]) for each in ranked]))


def average_precision(ranked):
    values = []
    for each in ranked:
        ranks = [rank for rank, same in enumerate(each, 1) if same]
        if ranks:
            values.append(np.mean([(j + 1) / rank for j, rank in enumerate(ranks)]))
    return float(np.mean(values))


def drawn(seed, count=40, classes=5, several=False):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(-3, 4, (count, 2)).astype(np.float64))  # ties too
    sets = rng.integers(0, classes, (count, 3 if several else 1))
    if several:
        sets[rng.random(sets.shape) < 0.4] = -1
        sets[:, 0] = np.where(sets[:, 0] < 0, 0, sets[:, 0])
    return x, sets, rng.integers(0, 3, count)


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_recall_and_map_leave_out_the_group_of_the_class(seed, several, separate):
    x, sets, groups = drawn(seed, several=several)
    labels = sets if several else sets[:, 0]
    cut = 15 if separate else len(x)
    gallery = (x[cut:], sets[cut:], groups[cut:]) if separate else None
    options = {"groups": groups[:cut]}
    if separate:
        options |= {"gallery": x[cut:], "gallery_labels": labels[cut:], "gallery_groups": groups[cut:]}
    ranked = list(lists(x[:cut], sets[:cut], groups[:cut], gallery))
    found = evaluation.recall_at_k(x[:cut], labels[:cut], ks=(1, 3), **options)
    assert found == {k: pytest.approx(recall(ranked, k)) for k in (1, 3)}
    if any(map(any, ranked)):
        values, positives = evaluation.per_query(x[:cut], labels[:cut], metrics=["mean_average_precision"], **options)
        assert positives.tolist() == [sum(each) for each in ranked]
        mean = values["mean_average_precision"][positives > 0].mean().item()
        assert mean == pytest.approx(average_precision(ranked))


def test_the_quick_ranking_leaves_out_groups_too(monkeypatch):
    """Recall@1 of many vectors takes the way of `top_ranks`, mAP the other."""
    x, labels = torch.randn(600, 8, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 50
    groups = torch.arange(600) // 50 % 4
    quick = evaluation.recall_at_k(x, labels, ks=(1, 2), groups=groups)
    monkeypatch.setattr(ranking, "top_ranks", lambda *_: iter([None] * 600))
    assert evaluation.recall_at_k(x, labels, ks=(1, 2), groups=groups) == quick
    assert top_ranks.MIN_GALLERY_RATIO * 2 < 600


@given(st.integers(0, 2**32), st.booleans())
def test_ndcg_is_that_of_sklearn_where_nothing_ties(seed, hierarchy):
    rng = np.random.default_rng(seed)
    x, classes = rng.normal(size=(30, 3)), rng.integers(0, 8, 30)
    sets = np.stack([classes, classes // 2, classes // 4], 1) if hierarchy else drawn(seed, 30, several=True)[1]
    values = []
    for i in range(30):
        others = [j for j in range(30) if j != i]
        if hierarchy:
            gains = [int((sets[i] == sets[j]).sum()) for j in others]
        else:
            gains = [sum(int(a == b >= 0) for a in sets[i] for b in sets[j]) for j in others]
        if any(gains):
            values.append(ndcg_score([gains], [[-((x[i] - x[j]) ** 2).sum() for j in others]], k=7))
    found = evaluation.ndcg_at_k(x, sets, 7, hierarchy=hierarchy)
    assert found == pytest.approx(np.mean(values))


def test_ndcg_of_copies_finds_the_least_relevant_first():
    """Regression: of members that tie at the end of the list, those of the lowest index were taken."""
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1], [3, 1]])
    copies, options = torch.ones(5, 2), {"gallery_labels": labels, "hierarchy": True}
    for k, gain in ((1, 0.0), (2, 0.0), (3, 1 / np.log2(4))):
        best = sum(g / np.log2(r + 2) for r, g in enumerate([2, 2, 1][:k]))
        found = evaluation.ndcg_at_k(copies[:1], labels[:1], k, gallery=copies, **options)
        assert found == pytest.approx(gain / best)


def test_ndcg_leaves_out_groups():
    x, labels = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([[0], [0], [1], [0]])
    assert evaluation.ndcg_at_k(x[:1], labels[:1], 2, gallery=x[1:], gallery_labels=labels[1:]) == pytest.approx(
        1 / (1 + 1 / np.log2(3))
    )
    groups = {"groups": [0], "gallery_groups": [0, 0, 1]}  # the nearest is of its class and its camera
    options = {"gallery": x[1:], "gallery_labels": labels[1:], **groups}
    assert evaluation.ndcg_at_k(x[:1], labels[:1], 2, **options) == pytest.approx(1 / np.log2(3))


def test_a_search_that_hides_all_but_one_gives_that_one_first():
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))

    def hide(tile, rows, start):
        columns = torch.arange(start, start + tile.shape[1])
        tile[:, columns != 7] = -torch.inf

    found = neighbors.nearest(x[:3], x, k=5, hide=hide)
    assert found.indices[:, 0].tolist() == [7, 7, 7]
    assert (found.scores[:, 1:] == -torch.inf).all()


def test_classes_of_one_group_have_no_positives():
    with pytest.raises(ValueError, match=r"none of the 4 queries shares its label .*with groups: of another group"):
        evaluation.map_at_r(torch.randn(4, 2), [0, 0, 1, 1], groups=[5, 5, 6, 6])


def test_groups_and_labels_that_do_not_fit_get_one_sentence():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="groups and gallery_groups do not fit; give both"):
        evaluation.recall_at_k(x, [0, 0, 1], gallery=x, gallery_labels=[0, 0, 1], groups=[1, 2, 3])
    with pytest.raises(ValueError, match=r"labels have shape \(3, 1\) and gallery_labels \(3,\)"):
        evaluation.recall_at_k(x, [[0], [0], [1]], gallery=x, gallery_labels=[0, 0, 1])
