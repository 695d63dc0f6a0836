"""The analysis of a run's vectors, against literal loops."""

import math

import pytest
import torch

from report_runs import image_run
from tuplet.data import from_features
from tuplet.reports import analysis
from tuplet.reports.run import FinishedRun, read_run
from tuplet.training.split import query_mask


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(image_run(tmp_path_factory.mktemp("analysis"), noise=0.9))


def run_in_memory(embeddings, labels, splits=None):
    """Return a run that has only vectors and labels."""
    data = from_features(torch.zeros(len(labels), 1), labels, splits=splits)
    about = {"settings": {}, "data": ""}
    rows = embeddings, data.labels, torch.arange(len(labels))
    return FinishedRun(None, about, [], {}, *rows, data, missing="", shown=None, is_query=query_mask(data))


def rankings(run, queries, gallery):
    """Yield each query with the rows of the gallery, nearest first."""
    x = run.embeddings.double()
    for q in queries:
        yield q, sorted((g for g in gallery if g != q), key=lambda g: float((x[q] - x[g]).square().sum()))


def test_retrieval_equals_a_loop(run):
    everyone = range(len(run.labels))
    found = analysis.retrieve(run)
    for place, (query, ranked) in enumerate(rankings(run, everyone, everyone)):
        right = [bool(run.labels[g] == run.labels[query]) for g in ranked]
        assert found.results[place].tolist() == ranked[:5]
        assert found.correct[place].tolist() == right[:5]
        assert found.first_correct[place] == right.index(True) + 1
        r = sum(right)
        hits = [sum(right[: i + 1]) / (i + 1) for i in range(r) if right[i]]
        assert found.map_at_r[place] == pytest.approx(sum(hits) / r)


def test_queries_search_in_their_gallery():
    splits = ["query", "gallery", "gallery", "query", "gallery", "gallery"]
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.2, 0.0], [5.0, 0.0], [5.5, 0.0], [0.1, 0.0]])
    run = run_in_memory(x, [0, 0, 1, 1, 1, 0], splits)
    found = analysis.retrieve(run)
    assert found.queries.tolist() == [0, 3]
    assert [row[:2] for row in found.results.tolist()] == [[5, 2], [4, 1]]
    assert found.first_correct.tolist() == [1, 1]


def test_a_query_without_positives_has_no_correct_result():
    found = analysis.retrieve(run_in_memory(torch.eye(3), [0, 0, 1]))
    assert found.first_correct.tolist()[2] == 0
    assert found.worst(torch.tensor([0, 0, 1]), 3)[0] == 2


def test_worst_queries_are_sorted_and_one_per_class(run):
    found = analysis.retrieve(run)
    worst = found.worst(run.labels, 4)
    ranks = found.first_correct[worst].tolist()
    assert ranks == sorted(ranks, reverse=True)
    assert min(ranks) > 1
    classes = run.labels[found.queries[worst]].tolist()
    assert len(set(classes)) == len(classes)
    for query, label in zip(worst, classes, strict=True):
        mates = run.labels[found.queries] == label
        assert found.first_correct[query] == found.first_correct[mates].max()


def test_typical_queries_are_nearest_to_the_median(run):
    found = analysis.retrieve(run)
    typical = found.typical(run.labels, 3)
    distance = (found.map_at_r - found.map_at_r.median()).abs()
    assert distance[typical[0]] == distance.min()
    assert len({int(run.labels[found.queries[query]]) for query in typical}) == 3


def test_few_pairs_have_few_bins(run):
    found = analysis.similarities(run)
    assert len(found.positive) == round(2 * (36 * 5) ** (1 / 3))


def test_similarities_equal_those_of_all_pairs(run):
    found = analysis.similarities(run)
    unit = torch.nn.functional.normalize(run.embeddings.double(), dim=1)
    positive, negative = [], []
    for i in range(len(unit)):
        for j in range(len(unit)):
            if i != j:
                kind = positive if run.labels[i] == run.labels[j] else negative
                kind.append(float(unit[i] @ unit[j]))
    edges = found.edges.tolist()
    assert edges[0] == pytest.approx(min(positive + negative), abs=1e-6)
    assert edges[-1] == pytest.approx(max(positive + negative), abs=1e-6)
    for heights, values in ((found.positive, positive), (found.negative, negative)):
        assert math.isclose(float(heights.sum()), 1, abs_tol=1e-9)
        middle = len(edges) // 2
        below = sum(value < edges[middle] for value in values) / len(values)
        assert float(heights[:middle].sum()) == pytest.approx(below, abs=2 / len(values))
    order = sum((p > n) + (p == n) / 2 for p in positive for n in negative) / len(positive) / len(negative)
    assert found.order == pytest.approx(order, abs=0.01)


def test_confusions_count_both_directions(run):
    everyone = range(len(run.labels))
    times = {}
    for query, ranked in rankings(run, everyone, everyone):
        a, b = sorted((int(run.labels[query]), int(run.labels[ranked[0]])))
        if a != b:
            times[a, b] = times.get((a, b), 0) + 1
    found = analysis.confusions(run, analysis.retrieve(run), 100)
    assert {(each.first, each.second): each.times for each in found} == times
    assert [each.times for each in found] == sorted(times.values(), reverse=True)
    for each in found:
        assert each.queries == 12
        assert [int(run.labels[row]) for row in each.example] == [each.first, each.second]
