"""Tests of comparisons: means and standard deviations over seeds, and the papers' results."""

import json
import statistics
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_tools import image_set, vectors
from tuplet import evaluation, losses, training
from tuplet.data import Dataset, from_features
from tuplet.training import loop
from tuplet.training.comparison import _options_by_label
from tuplet.training.papers import benchmark, published_rows, recall_ks

QUICK = {"steps": 2, "batch_size": 12, "per_class": 3, "dim": 4, "validation": 0.0}


def raw_test_vectors():
    """Return the test vectors at unit length, as embeddings of these losses are, and their labels."""
    test = vectors().split()[1]
    return torch.nn.functional.normalize(test.features), test.labels


def test_means_and_standard_deviations_are_over_the_seeds(tmp_path, monkeypatch, caplog):
    names = ["npair", "raw_vthm", "triplet"]
    with caplog.at_level("INFO", "tuplet"):
        found = training.compare(vectors(), iter(names), (seed for seed in (0, 1, 5)), out=tmp_path, **QUICK)
    messages = [line for line in caplog.messages if "seed" in line]
    assert messages == [
        f"{row['loss']}, seed {run['seed']}: Recall@1 {100 * run['metrics']['recall_at_1']:.2f} %"
        for row in found["rows"]
        for run in row["runs"]
    ]
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    assert [row["loss"] for row in found["rows"]] == ["untrained", "npair", "raw_vthm", "triplet"]
    untrained = evaluation.recall_at_k(*raw_test_vectors())[1]
    assert found["rows"][0]["mean"]["recall_at_1"] == untrained
    for row in found["rows"][1:]:
        assert [run["seed"] for run in row["runs"]] == [0, 1, 5]
        for metric in ("recall_at_1", "nmi", "map_at_r"):
            values = [run["metrics"][metric] for run in row["runs"]]
            assert row["mean"][metric] == pytest.approx(statistics.mean(values))
            assert row["std"][metric] == pytest.approx(statistics.stdev(values))
        assert row["published"] == []
    settings = json.loads((tmp_path / "raw_vthm" / "seed_1" / "run.json").read_text())["settings"]
    assert settings["loss_options"]["mining"] == {"name": "valid_triplet", "epsilon": 0.1}
    assert (settings["dim"], settings["seed"]) == (4, 1)
    # A second call trains nothing again.
    monkeypatch.setattr(loop.Loop, "train", lambda self: pytest.fail("trained again"))
    assert training.compare(vectors(), ["npair"], [5], out=tmp_path, **QUICK)["rows"][1]["std"]["nmi"] is None


def test_no_loss_falls_back_to_the_start_unless_it_is_asked_for(tmp_path):
    options = {"steps": 2, "batch_size": 12, "per_class": 3}
    for name, given in (("default", {}), ("asked", {"keep_start": True})):
        training.compare(vectors(), ["triplet"], [0], out=tmp_path / name, **options, **given)
        settings = json.loads((tmp_path / name / "triplet/seed_0/run.json").read_text())["settings"]
        assert (settings["wise_ft"], settings["keep_start"]) == (True, bool(given))


def test_images_are_decoded_once_for_all_runs(tmp_path, monkeypatch):
    source, photos = image_set(classes=6, each=4), tmp_path / "photos"
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
    # Runs with different sizes decode the images themselves.
    two = {"small": {"loss": "raw", "stored_size": 12}, "large": {"loss": "raw", "stored_size": 16}}
    training.compare(photos, two, [0], out=tmp_path / "sizes", **options)
    assert len(read) == 24 + 2 * 24
    # With resume=False all runs are trained again, on images that are decoded once.
    earlier = tmp_path / "found" / "raw" / "seed_0" / "best" / "earlier"
    earlier.touch()
    training.compare(photos, ["raw"], [0, 1], out=tmp_path / "found", resume=False, **options)
    assert not earlier.exists()
    assert len(read) == 24 + 2 * 24 + 24


@pytest.mark.filterwarnings("ignore:1 of ")
def test_unreadable_images_are_skipped_in_every_run(tmp_path):
    """The indices of test examples refer to the original data, so that a report finds the images."""
    source, photos = image_set(classes=6, each=4), tmp_path / "photos"
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


def test_losses_can_have_labels_and_options(tmp_path):
    mine = {"hot & sharp": {"loss": "ranked_list", "loss_options": {"temperature": 20.0}}}
    _, row = training.compare(vectors(), mine, [0], out=tmp_path, **QUICK)["rows"]
    assert row["loss"] == "hot & sharp"
    assert (tmp_path / "hot_sharp" / "seed_0" / "evaluation.json").is_file()


def test_the_loss_of_a_recipe_has_the_options_of_its_paper_for_the_dataset():
    alphas = [
        _options_by_label(["npair_angular"], data)["npair_angular"]["loss_options"]["alpha"]
        for data in (sized(196, 16_185), sized(22_634, 120_053))
    ]
    assert alphas == [45.0, 36.0]


def test_wrong_comparisons_raise_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="there is no loss 'rankedlist'; did you mean 'ranked_list'"):
        training.compare(vectors(), ["rankedlist"], out=tmp_path)
    with pytest.raises(ValueError, match="nothing to compare"):
        training.compare(vectors(), [], out=tmp_path)
    for labels in (["a b", "a_b"], [".."], [""]):
        with pytest.raises(ValueError, match=r"label .* (names the same folder as 'a b'|cannot name a folder)"):
            training.compare(vectors(), {label: {"loss": "raw"} for label in labels}, out=tmp_path)
    with pytest.raises(TypeError, match=r"the options of 'a' are 'raw'; give a dictionary, such as {'loss': 'raw'}"):
        training.compare(vectors(), {"a": "raw"}, out=tmp_path)
    with pytest.raises(TypeError, match=r"seeds is 2; give a list, such as range\(2\)"):
        training.compare(vectors(), ["raw"], 2, out=tmp_path)
    with pytest.raises(TypeError, match="seed is 3; a comparison takes seeds instead"):
        training.compare(vectors(), ["raw"], seed=3, out=tmp_path)
    with pytest.raises(TypeError, match="seed is 3; a comparison takes seeds instead"):
        training.compare(vectors(), {"a": {"loss": "raw", "seed": 3}}, out=tmp_path)
    with pytest.raises(TypeError, match="there is no option 'recipes'"):
        training.compare(vectors(), {"a": {"recipes": "demo"}}, out=tmp_path)
    with pytest.raises(ValueError, match=r"seeds are \[0, 1, 0\]; give each only once"):
        training.compare(vectors(), ["raw"], [0, 1, 0], out=tmp_path)
    with pytest.raises(TypeError, match="give a list of names"):
        training.compare(vectors(), "raw", out=tmp_path)
    with pytest.raises(TypeError, match=r"losses has RAWLoss.*; give names, or a dictionary from labels to options"):
        training.compare(vectors(), [losses.RAWLoss()], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_errors_of_any_run_come_before_the_first_run_is_trained(tmp_path):
    with pytest.raises(ValueError, match="batch_size is 15 and the sampler npair takes 2 at a time"):
        training.compare(vectors(), ["raw", "npair"], [0], out=tmp_path / "all", **{**QUICK, "batch_size": 15})
    assert not (tmp_path / "all").exists()


def sized(classes, examples):
    return from_features(torch.zeros(examples, 1), torch.arange(examples) % classes)


def test_benchmarks_are_recognised_by_their_size():
    assert benchmark(sized(200, 11_788)) == "cub200"
    assert benchmark(sized(196, 16_170)) == "cars196"  # 15 images are missing
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
def test_published_results_are_those_of_the_papers(data, loss, paper, metrics):
    row = next(row for row in training.published(data, loss) if row.paper == paper)
    assert {name: row.metrics[name] for name in metrics} == metrics


def test_every_published_row_is_complete():
    rows = [row for benchmark, names, _ in published_rows() for row in training.published(benchmark, names[0])]
    assert {row.paper for row in rows} == {row.paper for *_, row in published_rows()}
    for row in rows:
        assert all(0 < value < 1 for value in row.metrics.values())
        recalls = [value for name, value in row.metrics.items() if name.startswith("recall")]
        assert recalls == sorted(recalls)
        assert row.dim in (64, 128, 384, 512, 1536)
    assert training.published(None, "raw") == []


def test_every_published_row_belongs_to_a_loss_a_recipe_or_a_method(monkeypatch):
    """`compare` shows the rows of losses and recipes; docs/results.md shows those of methods."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    known = {*losses.LOSSES, *training.RECIPES, *import_module("methods").METHODS}
    not_built = {"abe", "bier", "hdc", "hierarchical_triplet"}
    assert {name for _, names, _ in published_rows() for name in names} <= known | not_built


def test_results_that_the_ranked_list_paper_repeats_have_their_own_dimension():
    """They are those of Song et al. 2017 and of Proxy-NCA to the digit, whose embeddings have 64 dimensions."""
    repeated = {"Semihard", "Lifted Struct", "N-pair-mc", "Proxy NCA", "Struct Clust"}
    rows = [row for *_, row in published_rows() if row.paper == "Ranked list 2019" and row.method in repeated]
    assert len(rows) == 15
    assert {row.dim for row in rows} == {64}
