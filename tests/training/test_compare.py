"""Several losses under one protocol, with means, deviations and the papers' numbers."""

import json
import statistics
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_tools import pictures, vectors
from tuplet import losses, training
from tuplet.data import Dataset, from_features
from tuplet.training import loop
from tuplet.training.compare import _chosen
from tuplet.training.published import _LINES, benchmark, recall_ks

QUICK = {"steps": 2, "batch_size": 12, "per_class": 3, "dim": 4}


def test_means_and_deviations_are_over_the_seeds(tmp_path, monkeypatch, caplog):
    names = ["npair", "raw_vthm", "triplet"]
    with caplog.at_level("INFO", "tuplet"):
        found = training.compare(vectors(), iter(names), (seed for seed in (0, 1, 5)), out=tmp_path, **QUICK)
    told = [line for line in caplog.messages if "step" not in line]
    assert told == [
        f"{row['loss']}, seed {run['seed']}: Recall@1 {100 * run['metrics']['recall_at_1']:.2f} %"
        for row in found["rows"]
        for run in row["runs"]
    ]
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    assert [row["loss"] for row in found["rows"]] == ["npair", "raw_vthm", "triplet"]
    for row in found["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1, 5]
        for metric in ("recall_at_1", "nmi", "map_at_r"):
            values = [run["metrics"][metric] for run in row["runs"]]
            assert row["mean"][metric] == pytest.approx(statistics.mean(values))
            assert row["deviation"][metric] == pytest.approx(statistics.stdev(values))
        assert row["published"] == []
    settings = json.loads((tmp_path / "raw_vthm" / "seed_1" / "run.json").read_text())["settings"]
    assert settings["loss_options"]["mining"] == {"name": "valid_triplet", "epsilon": 0.1}
    assert (settings["dim"], settings["seed"]) == (4, 1)
    # Run again, nothing is trained again.
    monkeypatch.setattr(loop.Loop, "train", lambda self: pytest.fail("trained again"))
    assert training.compare(vectors(), ["npair"], [5], out=tmp_path, **QUICK)["rows"][0]["deviation"]["nmi"] is None


def test_pictures_are_decoded_once_for_all_runs(tmp_path, monkeypatch):
    source, photos = pictures(classes=6, each=4), tmp_path / "photos"
    for i in range(len(source)):
        (photos / str(int(source.labels[i]))).mkdir(parents=True, exist_ok=True)
        source.image(i).save(photos / str(int(source.labels[i])) / f"{i}.png")
    read = []
    monkeypatch.setattr(
        Dataset, "image", lambda self, i, least=None, image=Dataset.image: read.append(i) or image(self, i)
    )
    options = {**QUICK, "batch_size": 6, "model": "convnet", "model_options": {"size": 12, "channels": 3}}
    training.compare(photos, ["raw", "margin"], [0, 1], out=tmp_path / "found", **options)
    assert sorted(read) == list(range(24))
    training.compare(photos, ["raw", "margin"], [0, 1], out=tmp_path / "found", **options)
    assert len(read) == 24
    # What differs in size is decoded for each.
    two = {"small": {"loss": "raw", "stored_size": 12}, "large": {"loss": "raw", "stored_size": 16}}
    training.compare(photos, two, [0], out=tmp_path / "sizes", **options)
    assert len(read) == 24 + 2 * 24
    # Begun again, all of them are trained again, on pictures that are decoded once.
    earlier = tmp_path / "found" / "raw" / "seed_0" / "best" / "earlier"
    earlier.touch()
    training.compare(photos, ["raw"], [0, 1], out=tmp_path / "found", resume=False, **options)
    assert not earlier.exists()
    assert len(read) == 24 + 2 * 24 + 24


@pytest.mark.filterwarnings("ignore:1 of ")
def test_unreadable_pictures_are_left_out_of_every_run_alike(tmp_path):
    """The places of test examples are those in the data that were opened, so that a report finds their pictures."""
    source, photos = pictures(classes=6, each=4), tmp_path / "photos"
    for i in range(len(source)):
        (photos / str(int(source.labels[i]))).mkdir(parents=True, exist_ok=True)
        source.image(i).save(photos / str(int(source.labels[i])) / f"{i:02}.png")
    (photos / "0" / "00.png").write_bytes(b"")
    options = {**QUICK, "batch_size": 6, "model": "convnet", "model_options": {"size": 12, "channels": 3}}
    with pytest.raises(
        ValueError, match=r"00\.png cannot be read: .*; replace it or leave it out with unreadable='skip'"
    ):
        training.compare(photos, ["raw"], [0], out=tmp_path / "found", **options)
    first, again = (
        training.compare(photos, ["raw"], [0], out=tmp_path / "found", unreadable="skip", **options) for _ in range(2)
    )
    assert again == first
    run = tmp_path / "found" / "raw" / "seed_0"
    assert load_file(run / "vectors.safetensors")["indices"].tolist() == list(range(12, 24))
    assert json.loads((run / "run.json").read_text())["data"] == str(photos)


def test_losses_of_ones_own_have_labels(tmp_path):
    mine = {"hot & sharp": {"loss": "ranked_list", "loss_options": {"temperature": 20.0}}}
    (row,) = training.compare(vectors(), mine, [0], out=tmp_path, **QUICK)["rows"]
    assert row["loss"] == "hot & sharp"
    assert (tmp_path / "hot_sharp" / "seed_0" / "evaluation.json").is_file()


def test_the_loss_of_a_recipe_has_the_numbers_of_its_paper_for_the_data():
    alphas = [
        _chosen(["npair_angular"], data)["npair_angular"]["loss_options"]["alpha"]
        for data in (sized(196, 16_185), sized(22_634, 120_053))
    ]
    assert alphas == [45.0, 36.0]


def test_bad_comparisons_get_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="there is no loss 'rankedlist'; did you mean 'ranked_list'"):
        training.compare(vectors(), ["rankedlist"], out=tmp_path)
    with pytest.raises(ValueError, match="nothing to compare"):
        training.compare(vectors(), [], out=tmp_path)
    for labels in (["a b", "a_b"], [".."], [""]):
        with pytest.raises(ValueError, match=r"label .* names (the same folder as 'a b'|no folder); give another"):
            training.compare(vectors(), {label: {"loss": "raw"} for label in labels}, out=tmp_path)
    with pytest.raises(TypeError, match=r"the options of 'a' are 'raw'; give a dictionary, such as {'loss': 'raw'}"):
        training.compare(vectors(), {"a": "raw"}, out=tmp_path)
    with pytest.raises(TypeError, match=r"seeds is 2; give a list, such as range\(2\)"):
        training.compare(vectors(), ["raw"], 2, out=tmp_path)
    with pytest.raises(TypeError, match="seed is 3, and a comparison has several; give seeds="):
        training.compare(vectors(), ["raw"], seed=3, out=tmp_path)
    with pytest.raises(TypeError, match="seed is 3, and a comparison has several; give seeds="):
        training.compare(vectors(), {"a": {"loss": "raw", "seed": 3}}, out=tmp_path)
    with pytest.raises(TypeError, match="there is no option 'recipes'"):
        training.compare(vectors(), {"a": {"recipes": "demo"}}, out=tmp_path)
    with pytest.raises(ValueError, match=r"seeds are \[0, 1, 0\]; give each once"):
        training.compare(vectors(), ["raw"], [0, 1, 0], out=tmp_path)
    with pytest.raises(TypeError, match="give a list of names"):
        training.compare(vectors(), "raw", out=tmp_path)
    with pytest.raises(TypeError, match=r"losses has RAWLoss.*; give names, or a dictionary from labels to options"):
        training.compare(vectors(), [losses.RAWLoss()], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_one_run_would_refuse_is_refused_before_another_has_trained(tmp_path):
    with pytest.raises(ValueError, match="batch_size is 15 and the sampler npair takes 2 at a time"):
        training.compare(vectors(), ["raw", "npair"], [0], out=tmp_path / "all", **{**QUICK, "batch_size": 15})
    assert not (tmp_path / "all").exists()


def sized(classes, examples):
    return from_features(torch.zeros(examples, 1), torch.arange(examples) % classes)


def test_benchmarks_are_recognised_by_their_size():
    assert benchmark(sized(200, 11_788)) == "cub200"
    assert benchmark(sized(196, 16_170)) == "cars196"  # fifteen photographs are missing
    assert benchmark(sized(196, 15_000)) is None
    assert recall_ks(sized(22_634, 120_053)) == (1, 10, 100, 1000)
    assert recall_ks(sized(10, 40)) == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("data", "loss", "paper", "metrics"),
    [
        ("cub200", "npair_angular", "Angular 2017", {"recall_at_1": 0.547, "recall_at_8": 0.839, "f1": 0.294}),
        ("cars196", "npair", "N-pair 2016", {"recall_at_1": 0.7112, "nmi": 0.6395, "f1": 0.3355}),
        ("cub200", "raw_vthm", "Unified view 2019", {"recall_at_1": 0.6685, "recall_at_4": 0.858}),
        ("inshop", "multi_similarity", "Unified view 2019", {"recall_at_1": 0.8964, "recall_at_20": 0.9847}),
        ("sop", "nra", "NRA 2019", {"recall_at_1": 0.756, "recall_at_100": 0.957}),
        ("sop", "ranked_list", "Ranked list 2019", {"recall_at_1": 0.798, "nmi": 0.904}),
    ],
)
def test_published_numbers_are_the_papers(data, loss, paper, metrics):
    row = next(row for row in training.published(data, loss) if row.paper == paper)
    assert {name: row.metrics[name] for name in metrics} == metrics


def test_every_published_row_is_complete():
    rows = [row for line in _LINES for row in training.published(line[0], line[1].split()[0])]
    assert {row.paper for row in rows} == {line[2] for line in _LINES}
    for row in rows:
        assert all(0 < value < 1 for value in row.metrics.values())
        recalls = [value for name, value in row.metrics.items() if name.startswith("recall")]
        assert recalls == sorted(recalls)
        assert row.dim in (64, 128, 512, 1536)
    assert training.published(None, "raw") == []


def test_every_published_row_belongs_to_something(monkeypatch):
    """A loss or a recipe, beside which `compare` shows it, or a method of the results."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    known = {*training.LOSSES, *training.RECIPES, *import_module("methods").METHODS}
    assert {name for line in _LINES for name in line[1].split()} <= known
