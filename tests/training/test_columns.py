"""From a table to the report: groups, levels, several labels, pairs and metadata, without Python."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from commands import SMALL, typed
from data.written import write_table
from tuplet import search
from tuplet.data import from_features
from tuplet.losses import RAWLoss
from tuplet.sampling import ClassBalancedSampler

CLASSES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of 64 images: two boxes in each, of two classes, seen by two cameras."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(32):
        path = f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (24, 48, 3), np.uint8)).save(folder / path)
        for side in range(2):
            label = (2 * number + side) % CLASSES
            box = {"x": 24 * side, "y": 0, "width": 24, "height": 24}
            about = {"label": f"c{label}", "camera": number // 4 % 2, "price": number, "parent": f"p{label // 2 % 2}"}
            rows.append({"path": path, **about, **box})
    write_table(folder / "shop.csv", rows)
    several = [{**row, "labels": f"{row['label']}|{'even' if i % 2 else 'odd'}"} for i, row in enumerate(rows)]
    write_table(folder / "several.csv", [{k: v for k, v in r.items() if k not in ("label", "parent")} for r in several])
    pairs = [{"a": f"{i}.png", "b": f"{(i + j) % 32}.png", "same": int(j == 4)} for i in range(28) for j in (1, 4)]
    write_table(folder / "pairs.csv", [p for p in pairs if not (p["same"] and int(p["b"][:-4]) < 4)])
    return folder


def done(folder, *words):
    """Run a command that must succeed and return its output."""
    result = typed(*words, cwd=folder)
    assert result.exit_code == 0, result.output
    return result.stdout


def metrics(folder, run):
    return json.loads((folder / run / "evaluation.json").read_text())


def test_groups_levels_and_metadata_reach_evaluation_report_and_index(folder):
    shown = done(folder, "data", "shop.csv")
    assert "groups: 2 by camera; a query leaves out its own class in its own group" in shown
    assert "boxes: every image is cropped to its own, 24 × 24 pixels" in shown
    assert "levels: 8 of class, 2 of parent" in shown
    assert "metadata price: 32 values: 0, 1, 2, 3, 4, …" in shown
    output = done(folder, "train", "shop.csv", "--out", "run", "--same", "parent", *SMALL)
    found = metrics(folder, "run")
    assert found["group"] == "camera"
    assert set(found["levels"]) == {"parent"}
    assert "nDCG@10" in output
    assert "Recall@1, parent" in output
    assert "nDCG@10" in (folder / "run" / "report.html").read_text()
    again = json.loads(done(folder, "evaluate", "run", "--json"))
    assert {name: again[name] for name in ("recall_at_1", "levels", "ndcg_at_10")} == {
        name: found[name] for name in ("recall_at_1", "levels", "ndcg_at_10")
    }
    without = json.loads(done(folder, "evaluate", "run", "--json", "--columns", "group="))
    assert "group" not in without
    done(folder, "index", "run", "shop.csv", "-o", "shop.index")
    where = '{"price": 3, "camera": 0}'
    found = done(folder, "search", "shop.index", "3.png", "--where", where, "--json")
    hits = json.loads(found)[0]["hits"]
    assert {hit["id"] for hit in hits} == {"3.png#0,0,24,24", "3.png#24,0,48,24"}
    assert hits[0]["metadata"].keys() == {"label", "camera", "price", "parent", "file"}
    done(folder, "embed", "run", "shop.csv", "--out", "v.npz")
    written = np.load(folder / "v.npz")
    assert len(written["paths"]) == 64
    indexed = search.open(folder / "shop.index").vectors(written["paths"].tolist())
    np.testing.assert_allclose(indexed, written["embeddings"], atol=1e-5)


def test_several_labels_train_and_are_measured(folder):
    shown = done(folder, "data", "several.csv", "--no-check")
    assert re.search("all +64 +10 +8 +8 +32\n", shown)  # of every label, not of the first alone
    assert "labels: 2.0 for each example on average" in shown
    output = done(folder, "train", "several.csv", "--out", "several", "--loss", "raw", *SMALL)
    assert "nDCG@10" in output
    assert "nmi" not in metrics(folder, "several")
    failed = typed("train", "several.csv", "--out", "x", "--loss", "proxy_anchor", *SMALL, cwd=folder)
    problem = "has one proxy for each class, and the examples have several labels"
    assert f"{problem}; use a loss of pairs, such as --loss multi_similarity" in failed.stderr


def test_pairs_are_trained_as_classes_and_measured_as_pairs(folder):
    output = done(folder, "train", "pairs.csv", "--out", "pairs", *SMALL, "--batch-size", "8")
    assert "Pair accuracy" in output
    assert metrics(folder, "pairs")["pairs"] > 10


def test_same_by_name_is_the_loop_over_shared_labels():
    x = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    sets = torch.tensor([[i % 3, i % 2 + 3] if i % 4 else [i % 3, -1] for i in range(12)])

    def literal(a, b):
        return torch.tensor([[bool(set(p) & set(q) - {-1}) for q in b.tolist()] for p in a.tolist()])

    loss = RAWLoss()
    assert loss(x, sets, same="any") == loss(x, sets, same=literal)
    with pytest.raises(ValueError, match="same is 'some'; give 'any', or a function of two sets of labels"):
        loss(x, sets, same="some")


def test_a_sampler_draws_an_example_for_each_of_its_labels():
    sets = [[0, 2], [0, -1], [1, 2], [1, -1]]
    batches = [batch for epoch in range(20) for batch in ClassBalancedSampler(sets, classes=2, per_class=2, seed=epoch)]
    groups = {tuple(sorted(batch[i : i + 2])) for batch in batches for i in (0, 2)}
    assert groups == {(0, 1), (2, 3), (0, 2)}


def test_a_level_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="there is no level 'parent' here; the data have no column parent"):
        from_features(torch.eye(2), [0, 1]).at_level("parent")
