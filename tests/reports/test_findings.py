"""What a report says of a run's vectors, against literal loops."""

import math

import pytest
import torch

from report_runs import picture_run
from tuplet.data import from_features
from tuplet.reports import findings
from tuplet.reports.run import Run, read


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read(picture_run(tmp_path_factory.mktemp("findings"), noise=0.9))


def run_of(embeddings, labels, splits=None):
    """A run in memory, with nothing but vectors."""
    data = from_features(torch.zeros(len(labels), 1), labels, splits=splits)
    about = {"settings": {}, "data": ""}
    return Run(None, about, [], {}, embeddings, data.labels, torch.arange(len(labels)), data)


def lists_of(run, queries, gallery):
    """For each query the gallery's rows, nearest first."""
    x = run.embeddings.double()
    for q in queries:
        yield q, sorted((g for g in gallery if g != q), key=lambda g: float((x[q] - x[g]).square().sum()))


def test_search_finds_what_a_loop_finds(run):
    everyone = range(len(run.labels))
    found = findings.search(run)
    for place, (query, ranked) in enumerate(lists_of(run, everyone, everyone)):
        right = [bool(run.labels[g] == run.labels[query]) for g in ranked]
        assert found.found[place].tolist() == ranked[:5]
        assert found.right[place].tolist() == right[:5]
        assert found.first_right[place] == right.index(True) + 1
        r = sum(right)
        hits = [sum(right[: i + 1]) / (i + 1) for i in range(r) if right[i]]
        assert found.goodness[place] == pytest.approx(sum(hits) / r)


def test_queries_search_in_their_gallery():
    splits = ["query", "gallery", "gallery", "query", "gallery", "gallery"]
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.2, 0.0], [5.0, 0.0], [5.5, 0.0], [0.1, 0.0]])
    run = run_of(x, [0, 0, 1, 1, 1, 0], splits)
    found = findings.search(run)
    assert found.queries.tolist() == [0, 3]
    assert [row[:2] for row in found.found.tolist()] == [[5, 2], [4, 1]]
    assert found.first_right.tolist() == [1, 1]


def test_a_query_without_positives_has_no_first_right():
    found = findings.search(run_of(torch.eye(3), [0, 0, 1]))
    assert found.first_right.tolist()[2] == 0
    assert found.worst(torch.tensor([0, 0, 1]), 3)[0] == 2


def test_the_worst_come_first_and_no_class_twice(run):
    found = findings.search(run)
    worst = found.worst(run.labels, 4)
    ranks = found.first_right[worst].tolist()
    assert ranks == sorted(ranks, reverse=True)
    assert min(ranks) > 1
    classes = run.labels[found.queries[worst]].tolist()
    assert len(set(classes)) == len(classes)
    for query, label in zip(worst, classes, strict=True):
        mates = run.labels[found.queries] == label
        assert found.first_right[query] == found.first_right[mates].max()


def test_the_typical_are_nearest_to_the_median(run):
    found = findings.search(run)
    typical = found.typical(run.labels, 3)
    distance = (found.goodness - found.goodness.median()).abs()
    assert distance[typical[0]] == distance.min()
    assert len({int(run.labels[found.queries[query]]) for query in typical}) == 3


def test_similarities_are_those_of_all_pairs(run):
    found = findings.similarities(run)
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
        below = sum(value < edges[50] for value in values) / len(values)
        assert float(heights[:50].sum()) == pytest.approx(below, abs=2 / len(values))
    order = sum((p > n) + (p == n) / 2 for p in positive for n in negative) / len(positive) / len(negative)
    assert found.order == pytest.approx(order, abs=0.01)


def test_confusions_are_counted_over_both_directions(run):
    everyone = range(len(run.labels))
    times = {}
    for query, ranked in lists_of(run, everyone, everyone):
        a, b = sorted((int(run.labels[query]), int(run.labels[ranked[0]])))
        if a != b:
            times[a, b] = times.get((a, b), 0) + 1
    found = findings.confusions(run, findings.search(run), 100)
    assert {(each.first, each.second): each.times for each in found} == times
    assert [each.times for each in found] == sorted(times.values(), reverse=True)
    for each in found:
        assert each.queries == 12
        assert [int(run.labels[row]) for row in each.example] == [each.first, each.second]
