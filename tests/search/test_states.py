"""An index against a plain dictionary: whatever is done in whatever order, both tell the same."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tuplet.search import Index, copy

pytest.importorskip("faiss", reason="an approximate index needs faiss")

#: Few different numbers, so that many scores are equal.
NUMBERS = st.integers(-2, 2)
LABELS = st.sampled_from(["ant", "bee", None])


class IndexStates(RuleBasedStateMachine):
    """Items are (vector, label, thumbnail) by id, in the order in which they were added."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.copies, self.items = 0, {}
        self.index = None

    @initialize(metric=st.sampled_from(["euclidean", "cosine", "dot"]), dim=st.integers(1, 4))
    def create(self, metric, dim):
        self.metric, self.dim = metric, dim
        self.index = Index.create(self.folder / "0", dim=dim, metric=metric)
        self.reader, self.read = Index.open(self.folder / "0"), {}

    @rule(data=st.data(), count=st.integers(0, 30))
    def add(self, data, count):
        ids = data.draw(st.lists(st.integers(0, 99).map(str), min_size=count, max_size=count, unique=True))
        new = {
            id: (
                data.draw(st.lists(NUMBERS, min_size=self.dim, max_size=self.dim)),
                data.draw(LABELS),
                data.draw(st.binary(max_size=5)),
            )
            for id in ids
        }
        vectors = np.array([vector for vector, _, _ in new.values()], np.float32).reshape(-1, self.dim)
        metadata = [{} if label is None else {"label": label} for _, label, _ in new.values()]
        arguments = vectors, ids, metadata
        thumbnails = [thumbnail for _, _, thumbnail in new.values()]
        if new.keys() & self.items.keys():
            with pytest.raises(ValueError, match="exist"):
                self.index.add(*arguments, thumbnails=thumbnails)
        else:
            self.index.add(*arguments, thumbnails=thumbnails)
            self.items = self.items | new

    @rule(data=st.data())
    def delete(self, data):
        ids = data.draw(st.lists(st.sampled_from([*self.items, "nobody"]), unique=True, max_size=8))
        if "nobody" in ids:
            with pytest.raises(ValueError, match="has no id 'nobody'"):
                self.index.delete(ids)
        else:
            self.index.delete(ids)
            self.items = {id: item for id, item in self.items.items() if id not in ids}

    @rule()
    def reopen(self):
        self.index = Index.open(self.index.folder)

    @rule()
    def refresh(self):
        """Another reader follows, and keeps what it read until then."""
        self.reader.refresh()
        self.read = self.items

    @precondition(lambda self: len(self.items) >= 16)
    @rule(kind=st.sampled_from(["hnsw", "ivf_pq"]))
    def build_approximate(self, kind):
        self.index.build_approximate(kind, recall=0)

    @rule()
    def compact(self):
        """A copy without the deleted rows takes the place of the index."""
        self.copies += 1
        self.index = copy(self.index.folder, self.folder / str(self.copies))
        self.reader, self.read = Index.open(self.index.folder), self.items
        assert len(self.index.snapshot.rows) == len(self.items)

    @rule(
        query=st.lists(NUMBERS, min_size=4, max_size=4),
        k=st.integers(1, 40),
        label=st.sampled_from(["any", "ant", None]),
    )
    def search(self, query, k, label):
        vector = np.array(query[: self.dim], np.float32)
        where = None if label == "any" else {"label": label}
        for index, items in ((self.index, self.items), (self.reader, self.read)):
            scores = {
                id: score(vector, item[0], self.metric) for id, item in items.items() if label in ("any", item[1])
            }
            truth = sorted(scores, key=lambda id, scores=scores: -scores[id])[:k]
            exact = index.search(vector, k, where=where, exact=True)[0]
            assert [hit.id for hit in exact] == truth
            for hits in (exact, index.search(vector, k, where=where)[0]):
                assert len({hit.id for hit in hits}) == len(truth)
                assert [hit.score for hit in hits] == pytest.approx([scores[hit.id] for hit in hits], abs=1e-5)
                assert all(hit.label == items[hit.id][1] for hit in hits)

    @invariant()
    def tells_the_same(self):
        if self.index is None:
            return
        for index, items in ((self.index, self.items), (self.reader, self.read)):
            assert len(index) == len(items)
            assert index.known([*map(str, range(100)), "nobody"]) == items.keys()
            ids = list(items)
            assert index.vectors(ids).tolist() == [item[0] for item in items.values()]
            assert [index.thumbnail(id) or b"" for id in ids[:3]] == [items[id][2] for id in ids[:3]]
            assert index.counts() == Counter(item[1] for item in items.values() if item[1] is not None)
        index.verify()

    def teardown(self):
        shutil.rmtree(self.folder)


def score(query, vector, metric):
    """The score, rounded so that equal ones are equal."""
    query, vector = query.astype(np.float64), np.array(vector, np.float64)
    if metric == "euclidean":
        return -round(float(np.linalg.norm(query - vector)), 9)
    lengths = np.linalg.norm(query) * np.linalg.norm(vector) if metric == "cosine" else 1
    return round(float(query @ vector / lengths), 9) if lengths else 0.0


def check_states(examples, steps):
    """Compare so many histories of so many steps."""
    run_state_machine_as_test(
        IndexStates, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


def test_an_index_tells_what_a_dictionary_tells(soak, capfd):
    check_states(*((300, 40) if soak else (20, 20)))
