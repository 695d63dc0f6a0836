"""Filters on metadata: values of every type, unknown keys, growing columns, counts."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from tuplet.search import Index


def test_equal_numbers_match_and_true_differs_from_1(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    values = [2011, 2011.0, 1, True, 0.5]
    index.add(torch.arange(5.0)[:, None], range(5), [{"value": value} for value in values])
    for asked, expected in ((2011, "01"), (2011.0, "01"), (1, "2"), (1.0, "2"), (True, "3"), ([0.5, 1], "24")):
        assert {hit.id for hit in index.search(torch.zeros(1), where={"value": asked})[0]} == set(expected), asked
    # In a Python dict True equals 1.
    assert index.counts("value") == {1: 2, 2011: 2, 0.5: 1}


def test_unknown_keys_are_not_kept(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(2, 1), ["a", "b"], [{"label": "x"}, {}])
    for key in map(str, range(50)):
        assert index.search(torch.zeros(1), where={key: 1})[0] == []
        assert [hit.id for hit in index.search(torch.zeros(1), where={key: None})[0]] == ["a", "b"]
    assert [hit.id for hit in index.search(torch.zeros(1), where={"label": "x"})[0]] == ["a"]
    assert set(index._columns._columns) == {"label"}
    index.add(torch.zeros(2, 1), ["c", "d"], [{"7": 1}, {"label": "x"}])
    assert [hit.id for hit in index.search(torch.zeros(1), where={"7": 1})[0]] == ["c"]
    assert [hit.id for hit in index.search(torch.zeros(1), where={"label": "x", "7": None})[0]] == ["a", "d"]


def test_columns_are_read_in_blocks(tmp_path, monkeypatch):
    """Each block is parsed at once, also if texts look like ends of lines."""
    reads = []

    def loads(text):
        reads.append(len(text))
        return parse(text)

    parse = json.loads
    monkeypatch.setattr("tuplet.search.filters.BLOCK", 4)
    texts = ["a\nb", '"}\n{"', ",", "", "\u2028", "é\\n", "]", "\r\n", "last"]
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(9, 1), range(9), [{"text": text} for text in texts])
    monkeypatch.setattr(json, "loads", loads)
    columns = index._columns
    for row, text in enumerate(texts):
        assert np.flatnonzero(columns.allowed({"text": text}, index.snapshot)).tolist() == [row], text
    assert len(reads) == 3


def test_columns_of_another_index_are_not_mixed(tmp_path):
    """While a folder is replaced, searches of the old and the new state alternate."""
    old, new = (Index.create(tmp_path / name, dim=1) for name in ("old", "new"))
    old.add(torch.zeros(2, 1), ["a", "b"], [{"label": "x"}, {"label": "y"}])
    new.add(torch.zeros(3, 1), ["a", "b", "c"], [{"label": "y"}, {"label": "y"}, {"label": "x"}])
    columns = old._columns
    for _ in range(2):
        assert columns.allowed({"label": "x"}, old.snapshot).tolist() == [True, False]
        assert columns.allowed({"label": "x"}, new.snapshot).tolist() == [False, False, True]


def test_a_replaced_index_brings_its_own_metadata(tmp_path):
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(1, 1), ["a"], [{"label": "old"}])
    reader = Index.open(tmp_path / "i")
    assert reader.counts() == {"old": 1}
    shutil.rmtree(tmp_path / "i")
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(2, 1), ["a", "b"], [{"label": "new"}] * 2)
    reader.refresh()
    assert reader.counts() == {"new": 2}


def test_counts_and_known(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(4, 1), list("abcd"), [{"label": "x"}, {"label": "y"}, {"label": "y"}, {}])
    index.delete(["a"])
    assert index.counts() == {"y": 2}
    assert index.known(["a", "b", "z"]) == {"b"}


def test_wrong_filters_are_refused(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(1, 1), ["a"], [{"year": 2011}])
    with pytest.raises(ValueError, match=r"the filter year=.*object.* cannot be JSON; use text, numbers"):
        index.search(torch.zeros(1), where={"year": object()})
    with pytest.raises(TypeError, match=r"where is 'year'; it must be a mapping, such as \{'label': 'bee'\}"):
        index.search(torch.zeros(1), where="year")
    with pytest.raises(TypeError, match=r"where has the key 2011; keys are text: '2011'"):
        index.search(torch.zeros(1), where={2011: "year"})
    for distinct in (math.nan, "most"):
        with pytest.raises(ValueError, match=rf"distinct is {distinct!r}; it must be a number"):
            index.search(torch.zeros(1), distinct=distinct)


def test_numbers_of_numpy_and_torch(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    metadata = [{"label": label, "share": share} for label, share in zip(np.arange(3), torch.eye(3)[0], strict=True)]
    index.add(np.zeros((3, 1), np.float32), torch.arange(3), metadata)
    assert [hit.metadata for hit in index.search(torch.zeros(1), 1)[0]] == [{"label": 0, "share": 1.0}]
    for label in (np.int64(2), np.array([2]), torch.tensor([2]), torch.tensor(2), np.array(2), {2.0}):
        where = {"label": label}
        assert [hit.id for hit in index.search(torch.zeros(1), where=where)[0]] == ["2"]
    assert index.known(np.arange(5)) == {"0", "1", "2"}
