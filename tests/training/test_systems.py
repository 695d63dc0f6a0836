"""Test the systems that the papers compare with, end to end: a few steps, exact resume, save and load."""

from pathlib import Path
from typing import ClassVar

import onnxruntime
import pytest
import torch
from torch import nn

import tuplet
from training_tools import SMALL, events, image_set, same, vectors, weights
from tuplet import losses, models
from tuplet.training import RECIPES
from tuplet.training.objective import Objective
from tuplet.training.papers import published
from tuplet.training.resolve import resolve_settings
from tuplet.training.settings import Settings

QUICK = {
    "batch_size": 12,
    "per_class": 2,
    "dim": 6,
    "lr": 1e-3,
    "schedule": "constant",
    "evaluate_every": 100,
    "validation": 0,
}
SMART = {"parts": [{"loss": "triplet_ratio", "mining": "disjoint"}, {"loss": "global", "mining": "disjoint"}]}


class Staged(models.Backbone):
    """Three levels with a pooling after the first, as GoogLeNet has it."""

    channels: ClassVar = {"L": 4, "M": 5, "H": 6}

    def __init__(self):
        super().__init__()
        self.low, self.mid, self.high = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(5, 6, 3, 2)
        self.pool = nn.MaxPool2d(2)

    def stages(self):
        return [("L", self.low), ("", self.pool), ("M", self.mid), ("H", self.high)]


def staged(**options):
    torch.manual_seed(0)
    prepared = models.Preprocessing(12, 12, "square", (127.5,) * 3, (64.0,) * 3)
    return models.create(Staged(), dim=6, preprocessing=prepared, **options)


#: Systems with their data and options.
SYSTEMS = {
    "htl": lambda: (vectors(), {"loss": "hierarchical_triplet", "sampler_options": {"neighbors": 3}}),
    "smart mining": lambda: (vectors(), {"loss": "sum", "loss_options": SMART, "sampler": "smart_triplet"}),
    "lifted, one class": lambda: (image_set(), {**SMALL, "loss": "lifted_structure", "sampler": "one_class"}),
    "hdc": lambda: (image_set(), {"loss": "hdc", "model": staged(levels="LMH", head_hidden=7, part_weights=[1, 1, 2])}),
    "bier": lambda: (vectors(), {"loss": "bier", "model_options": {"heads": [1, 2, 3], "part_weights": [1, 2, 3]}}),
    "a-bier": lambda: (
        vectors(),
        {"loss": "bier", "loss_options": {"adversarial": True}, "model_options": {"heads": [2, 4]}, "memory": 0},
    ),
    "abe": lambda: (image_set(), {"loss": "abe", "model": staged(attention=3)}),
    "npair triplets": lambda: (vectors(), {"loss": "npair", "loss_options": {"variant": "triplet"}}),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_trains_and_resumes_bit_for_bit(system, tmp_path):
    """Stop in the middle of the third epoch: plans, trees and controllers come from the checkpoint."""
    data, options = SYSTEMS[system]()
    options = {**QUICK, **options, "checkpoint_every": 4}
    if isinstance(model := options.get("model"), models.Embedder):
        del options["dim"]
        options["batch_size"] = 8
    whole = tuplet.train(data, tmp_path / "one", steps=13, **options)
    for steps in (4, 8, 13):
        run = tuplet.train(data, tmp_path / "many", steps=steps, **options)
    assert same(weights(tmp_path / "one"), weights(tmp_path / "many"))
    assert run.metrics["recall_at_1"] == whole.metrics["recall_at_1"]
    saved = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("one", "many")]
    assert same(*(each["objective"] for each in saved))
    start, *_, end = events(tmp_path / "one", "train")
    assert start["loss"] != end["loss"]
    backbone = Staged() if isinstance(model, models.Embedder) else None
    loaded = tuplet.load(tmp_path / "one" / "best", backbone=backbone)
    assert loaded.fingerprint() == whole.embedder.fingerprint()


def test_the_tree_of_the_sampler_reaches_the_loss(tmp_path):
    data, options = SYSTEMS["htl"]()
    tuplet.train(data, tmp_path, steps=4, **{**QUICK, **options})
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert torch.equal(saved["objective"]["losses.0.tree_nodes"], saved["sampler"]["plan"]["nodes"])


def test_smart_mining_needs_a_loss_that_tells(tmp_path):
    with pytest.raises(ValueError, match="AngularLoss does not tell"):
        tuplet.train(vectors(), tmp_path, loss="angular", sampler="smart_triplet")
    with pytest.raises(TypeError, match="sampler='smart_triplet' has no option 'kappa'"):
        tuplet.train(vectors(), tmp_path, loss="triplet", loss_options={"mining": "disjoint"}, sampler="smart_triplet",
                     sampler_options={"kappa": 3})  # fmt: skip


def test_active_triplets_are_those_with_a_loss():
    x = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
    labels = torch.arange(12) // 3 * 2 + (torch.arange(12) % 3 == 2)
    loss = losses.SumLoss([(losses.GlobalLoss(mining="disjoint"), 1.0), (losses.TripletLoss(mining="disjoint"), 1.0)])
    d = (x[0::3] - x[1::3]).square().sum(1) - (x[0::3] - x[2::3]).square().sum(1) + 0.2
    assert loss.marks_active
    assert not losses.GlobalLoss(mining="disjoint").marks_active
    assert loss.active(x, labels).tolist() == (d > 0).tolist()


def test_a_sum_by_name_needs_names_of_losses(tmp_path):
    with pytest.raises(TypeError, match="a part of the sum is 'softmax'; give a dictionary"):
        tuplet.train(vectors(), tmp_path, loss="sum", loss_options={"parts": ["softmax"]})


def test_a_joint_loss_is_one_objective_over_all_parts():
    settings = Settings(loss="bier", loss_options={"adversarial": True})
    objective = Objective(settings, (2, 4), classes=3, max_per_class=4)
    parts = [torch.randn(6, width, generator=torch.Generator().manual_seed(width)) for width in (2, 4)]
    labels = torch.arange(6) // 2
    assert len(objective.losses) == 1
    value = objective(parts, labels, step=0, distributed=False)
    assert torch.equal(value, objective.losses[0](parts, labels))


def test_a_sum_of_joint_losses_is_joint_too():
    """Each level by itself would be an embedding of a single part, which such a loss takes without an error."""
    options = {"parts": [{"loss": "bier", "adversarial": True}, {"loss": "hdc", "weight": 0.5}]}
    objective = Objective(Settings(loss="sum", loss_options=options), (2, 4), classes=3, max_per_class=4)
    parts = [torch.randn(6, width, generator=torch.Generator().manual_seed(width)) for width in (2, 4)]
    labels = torch.arange(6) // 2
    bier, hdc = objective.losses[0].losses
    value = objective(parts, labels, step=0, distributed=False)
    torch.testing.assert_close(value, bier(parts, labels) + 0.5 * hdc(parts, labels))
    with pytest.raises(ValueError, match=r"HDCLoss takes all parts .* TripletLoss takes one"):
        losses.SumLoss([(losses.TripletLoss(), 1.0), (losses.HDCLoss(), 1.0)])


def test_a_joint_loss_takes_examples_of_several_labels():
    objective = Objective(Settings(loss="hdc"), (2, 2), classes=3, max_per_class=4)
    parts = [torch.randn(6, 2, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    several = torch.stack([torch.arange(6) // 2, torch.full((6,), -1)], 1)
    value = objective(parts, several, step=0, distributed=False)
    torch.testing.assert_close(value, losses.HDCLoss()(parts, torch.arange(6) // 2))


def test_parts_are_exported_like_every_embedding(tmp_path):
    embedder = staged(attention=2, heads=[2, 4], part_weights=[1, 2, 1, 2]).eval()
    models.export_onnx(embedder, tmp_path / "parts.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "parts.onnx")
    for count in (1, 5):
        images = torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8)
        (found,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), embedder.embed(images), rtol=1e-4, atol=1e-5)


def test_another_network_keeps_the_parts_of_a_recipe():
    settings = resolve_settings("bier", {"model": "resnet50", "weights": None}, image_set())
    assert settings.model_options == {"heads": [96, 160, 256], "part_weights": [96, 160, 256]}
    assert resolve_settings("hdc", {"model": "resnet50", "weights": None}, image_set()).model_options == {
        "head_hidden": 1024,
        "part_weights": [1, 2, 3],
    }
    assert resolve_settings("bier", {}, vectors()).model == "mlp"


#: Recipes of the five papers and of no paper; all others are of the systems that the papers compare with.
OWN = {"npair_angular", "npair", "npair_faces", "raw_vthm", "nra", "ranked_list"}
OWN |= {"best_resnet50", "best_vit", "demo"}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in OWN])
def test_the_page_of_systems_has_the_printed_recalls(recipe):
    page = (Path(__file__).parents[2] / "docs" / "systems.md").read_text().splitlines()
    (row,) = [line for line in page if f"| `{recipe}`: " in line]
    rows = [published(benchmark, recipe) for benchmark in ("cub200", "cars196", "sop")]
    printed = [f"{100 * found[0].metrics['recall_at_1']:.1f}" if found else "–" for found in rows]
    assert (", ".join(printed) if any(rows) else "–") in row.split("|")[-2]
