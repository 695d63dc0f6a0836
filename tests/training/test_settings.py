"""Options: their names, types and limits, recipes, and who takes precedence over whom."""

import dataclasses
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from training_tools import QUICK, dropping, pictures, vectors
from tuplet import losses, mining, training
from tuplet.data import from_features
from tuplet.models import Preprocessing, create
from tuplet.training.assemble import decide
from tuplet.training.processes import Team
from tuplet.training.recipes import recipe_for
from tuplet.training.resolve import Unsaid, described, plain, resolve
from tuplet.training.settings import Settings, describe_options

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"batchsize": 3}, "there is no option 'batchsize'; did you mean 'batch_size'?"),
        ({"learning_rate": 3}, "there is no option 'learning_rate'; did you mean 'rate'?"),
        ({"xyz": 3}, "there is no option 'xyz'; choose one of augment, average, batch_size"),
        ({"rate": "fast"}, "rate is 'fast'; it must be float: the learning rate of the backbone"),
        ({"steps": 1.5}, "steps is 1.5; it must be int: how many batches"),
        ({"steps": True}, "steps is True; it must be int: how many batches"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"rate": float("nan")}, "rate is nan; it must be above 0"),
        ({"rate": -1}, "rate is -1; it must be above 0"),
        ({"average": 1.0}, "average is 1.0; it must be at least 0 and below 1"),
        ({"optimizer": "lion"}, "optimizer is 'lion'; it must be 'sgd' or 'adam' or 'adamw'"),
        ({"device": "gpu"}, "device is 'gpu', which torch does not know; use cpu, cuda or cuda:1"),
        ({"schedule": "step"}, "schedule='step' needs decay_every"),
        ({"loss": losses.RAWLoss(), "loss_options": {"alpha": 1.0}}, "loss_options belong to a loss by name"),
        ({"loss": "ranked"}, "there is no loss 'ranked'; did you mean 'ranked_list'?"),
        ({"loss": "raw", "loss_options": {"alfa": 1}}, "RAWLoss has no option 'alfa'; did you mean 'alpha'?"),
        (
            {"loss": "raw", "loss_options": {"mining": "semihard"}},
            "there is no mining 'semihard'; did you mean 'semi_h",
        ),
        ({"loss": "raw", "loss_options": {"alpha": "two"}}, "alpha of RAWLoss is 'two'; it must be float"),
        ({"loss": "histogram", "loss_options": {"bins": 1.5}}, "bins of HistogramLoss is 1.5; it must be int"),
        ({"loss": "margin", "loss_options": {"learn_beta": "no"}}, "learn_beta of MarginLoss is 'no'; it must be bool"),
        (
            {"loss": "raw", "loss_options": {"mining": {"name": "valid_triplet", "epsilon": None}}},
            "epsilon of ValidTriplet is None; it must be float",
        ),
        (
            {"loss": "raw", "loss_options": {"mining": {"name": 3}}},
            "mining is {'name': 3}; give a name, a dictionary with a name, or a whole loss as an object",
        ),
        ({"loss": "raw", "loss_options": None}, "loss_options is None; give a dictionary, such as {'margin': 0.4}"),
        ({"resume": None}, "resume is None; give True to go on with a run, or False to begin again"),
        ({"recipe": 3}, "there is no recipe 3; choose one of demo, npair"),
        ({"recipe": "rankedlist"}, "there is no recipe 'rankedlist'; did you mean 'ranked_list'?"),
        (
            {"batch_size": 15},
            "batch_size is 15 and the sampler class_balanced takes 4 at a time; choose a multiple of 4",
        ),
        ({"model": "resnet50", "weights": "x"}, "weights 'x' are neither a file nor a name known for resnet50"),
        (
            {"loss": "raw", "loss_options": {"mining": {"epsilon": 0.2}}},
            "mining is {'epsilon': 0.2}; give a name, a dictionary with a name, or a whole loss as an object",
        ),
        (
            {"loss": "raw", "loss_options": {"mining": mining.SemiHard()}},
            "mining is SemiHard(); give a name, a dictionary with a name, or a whole loss as an object",
        ),
        (
            {"loss": "npair", "sampler": "ngroup", "per_class": 3, "batch_size": 12},
            "NPairLoss needs the batches of sampler='npair', and sampler='ngroup' makes others; leave sampler= out",
        ),
        (
            {"loss": "triplet", "loss_options": {"mining": "disjoint"}, "sampler": "class_balanced", "batch_size": 12},
            "TripletLoss needs the batches of sampler='triplet', and sampler='class_balanced' makes others; leave",
        ),
        (
            {"loss": losses.SoftmaxLoss(4, 512), "batch_size": 12},
            "SoftmaxLoss has proxies for 4 classes and 6 are trained; make it with num_classes=6, or give its name",
        ),
        ({"batch_size": 4}, "a batch of 4 is a single class, which has no negatives; choose a batch_size of 8 or more"),
        (
            {"loss": "npair", "batch_size": 2},
            "a batch of 2 is a single class, which has no negatives; choose a batch_size of 4 or more",
        ),
        ({"per_class": 1}, "per_class is 1, which leaves no example a positive; choose 2 or more"),
        ({"batch_size": 3}, "takes 4 at a time; choose a multiple of 4, such as 8"),
        ({"batch_size": 30}, "takes 4 at a time; choose a multiple of 4, such as 24"),  # of the six classes
        (
            {"batch_size": 28},
            "a batch of 28 is 7 classes of 4, and only 6 training classes have two examples; choose a batch_size of 24 "
            "or less, or a larger per_class",
        ),
        (
            {"sampler": "ngroup", "batch_size": 28},
            "a batch of 28 is more than the 24 examples that 6 training classes give, each 4 at most; choose a "
            "batch_size of 24 or less, or a larger per_class",
        ),
        ({"loss": losses.RAWLoss}, "loss is <class 'tuplet.losses.raw.RAWLoss'>; give a name, or a loss object"),
        (
            {"loss": torch.nn.Sequential(torch.nn.Identity())},
            "loss is a Sequential; give a name, or a loss object of tuplet.losses",
        ),
        (
            {"model": torch.nn.Sequential(torch.nn.Identity())},
            "model is a Sequential; it must be str or Embedder: a backbone by name, or an embedder from",
        ),
        (
            {"loss": "softmax", "loss_options": {"num_classes": 3}},
            "num_classes of SoftmaxLoss follows from the data and the model; leave it out",
        ),
        ({"validation": 0.05}, "validation is 0.05, which does not divide 6 training classes; choose another share"),
        ({"validation": 0.99}, "validation is 0.99, which does not divide 6 training classes; choose another share"),
        (
            {"validation": 0.05, "validation_from": 0.5},
            "validation is 0.05, which does not divide 6 training classes; choose another share",
        ),
        (
            {"validation": 0.8},
            "training needs two classes of two examples or more, and there are 1; add examples, or choose a smaller "
            "validation=",
        ),
        *(
            ({name: value}, f"{name} is {value!r} and the data are feature vectors, which are no pictures; leave it")
            for name, value in (
                *(("size", 32), ("resize", 32), ("fit", "square"), ("stored_size", 32)),
                *(("augment", {"mirror": 0.5}), ("mirrored", True)),
            )
        ),
        ({"device": "meta"}, "device is 'meta', which training does not know; use cpu, cuda or cuda:1"),
        ({"validation_from": 0.5}, "validation_from=0.5 needs validation=, the share of the classes"),
        ({"decay_every": 5}, "decay_every=5 needs schedule='step', and the schedule is 'cosine'"),
        ({"decay_factor": 0.5}, "decay_factor=0.5 needs schedule='step', and the schedule is 'cosine'"),
        ({"momentum": 0.5}, "momentum=0.5 needs optimizer='sgd', and the optimizer is 'adamw'"),
        ({"candidates": 9}, "candidates=9 needs sampler='hard_class', and the sampler is None"),
        ({"memory_start": 9}, "memory_start=9 needs memory=, the number of embeddings to remember"),
        (
            {"loss": "raw", "loss_options": {"mining": {"name": "semi_hard", "epsilon": 0.1}}},
            "SemiHard has no option 'epsilon'; it has none",
        ),
        (
            {"loss": "margin", "loss_options": {"mining": "non_trivial"}},
            "NonTrivial needs alpha and margin; give them as its options",
        ),
        ({"seed": 2**64}, "seed is 18446744073709551616; it must be at least 0 and below 2⁶³"),
        ({"memory": 10, "loss": "proxy_nca"}, "memory is 10 and ProxyNCALoss compares its batch with no other"),
        (
            {"memory": 10, "loss": "angular", "loss_options": {"max_per_class": 4}},
            "max_per_class is 4 and a memory of 10 may hold more of a class; leave it out",
        ),
    ],
)
def test_bad_options_get_one_sentence(wrong, sentence, tmp_path):
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=re.escape(sentence)) as caught:
        training.train(vectors(), tmp_path / "run", **wrong)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run/[a-z]*"))


@pytest.mark.parametrize(
    ("late", "sentence"),
    [
        ({"warmup": 6}, "the rate rises to the end; give more steps or a smaller warmup"),
        ({"memory": 20, "memory_start": 9}, "the memory is never used; give more steps or a smaller memory_start"),
        ({"schedule": "step", "decay_every": 8}, "the rate never falls; give more steps or a smaller decay_every"),
    ],
)
def test_what_the_steps_do_not_reach_is_said(late, sentence, tmp_path):
    with pytest.warns(UserWarning, match=rf"^\w+=\d with 6 steps: {sentence}$") as said:
        training.train(vectors(), tmp_path / "run", **{**QUICK, **late})
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.train(vectors(), tmp_path / "longer", **{**QUICK, **late, "steps": 10})


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": "triplett"},
        {"model": "resnet5"},
        {"per_class": 1},
        {"validation": 0.05},
        {"batch_size": 15},
        {"batch_size": 400},
        {"augment": {"blur": 1.0}},
        {"augment": {"mirror": "yes"}},
        {"size": 16},
        {"augment": {"size": 16}},
        {"loss": losses.SoftmaxLoss(2, 512)},
        {"loss": "softmax", "memory": 10},
        {"dim": None, "head_steps": 3},
    ],
    ids=str,
)
def test_what_is_refused_is_refused_before_a_picture_is_read_and_leaves_no_folder_behind(wrong, tmp_path, monkeypatch):
    monkeypatch.setattr("tuplet.training.examples.load", lambda *_, **__: pytest.fail("read"))
    small = {"model": "convnet", "model_options": {"size": 12, "channels": 3}}
    with pytest.raises((TypeError, ValueError, ImportError)):
        training.train(pictures(), tmp_path / "run", **{**small, **wrong})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("loss", "each"), [(losses.RAWLoss(), 4), (losses.NPairLoss(), 2), (losses.TripletLoss(mining="disjoint"), 3)]
)
def test_batches_of_fewer_classes_than_processes_are_refused_at_the_start(loss, each):
    settings, three = Settings(loss=loss, model="mlp", batch_size=2 * each), Team(0, 3, torch.device("cpu"))
    with pytest.raises(ValueError, match=f"a batch of {2 * each} is 2 groups of {each}, .* of {3 * each} or more"):
        decide(vectors(), settings, three)
    decide(vectors(), dataclasses.replace(settings, batch_size=3 * each), three)


def test_pictures_and_vectors_need_models_that_take_them(tmp_path):
    with pytest.raises(ValueError, match="mlp takes feature vectors and the data are pictures; choose another model"):
        training.train(pictures(), tmp_path, model="mlp")
    with pytest.raises(ValueError, match=r"convnet takes pictures and the data are feature vectors.*such as mlp"):
        training.train(vectors(), tmp_path, model="convnet")
    with pytest.raises(TypeError, match="augment has no option 'mirrored'; did you mean 'mirror'"):
        training.train(pictures(), tmp_path, model="convnet", model_options={"size": 12}, augment={"mirrored": 1.0})


def test_every_option_is_documented_as_it_is():
    page = DOCS.read_text()
    for option in describe_options():
        assert f"| `{option.name}` | {option.kind} | `{option.default!r}` | {option.about} |" in page


@pytest.mark.parametrize("name", training.RECIPES)
def test_recipes_are_plain_data_that_the_settings_take(name):
    recipe = training.RECIPES[name]
    assert json.loads(json.dumps(recipe)) == recipe
    for own in [{}, *recipe.get("on", {}).values()]:
        settings = Settings(**{k: v for k, v in {**recipe, **own}.items() if k != "on"})
        assert settings.batch_size % settings.per_class == 0 or settings.sampler in ("npair", None)
        assert settings.loss in training.LOSSES


# The table at the end of the papers' descriptions: network, dim, batch, share of a class, optimiser, rate, steps.
PAPERS = {
    ("npair_angular", "cars196"): ("googlenet", 512, 128, "npair", "sgd", 1e-4, 20_000),
    ("npair_angular", "cub200"): ("googlenet", 512, 128, "npair", "sgd", 1e-5, 20_000),
    ("npair", "cub200"): ("googlenet", 64, 120, "npair", "adam", 1e-4, 20_000),
    ("npair", "sop"): ("googlenet", 512, 120, "npair", "adam", 1e-4, 20_000),
    ("raw_vthm", "cub200"): ("bn_inception", 512, 120, 5, "adam", 1e-5, 10_000),
    ("raw_vthm", "sop"): ("bn_inception", 512, 120, 4, "adam", 1e-5, 10_000),
    ("nra", "cub200"): ("googlenet", 512, 128, 8, "sgd", 1e-4, 20_000),
    ("nra", "cars196"): ("googlenet", 512, 128, 8, "sgd", 5e-4, 20_000),
    ("nra", "sop"): ("googlenet", 512, 128, 4, "sgd", 1e-3, 20_000),
    ("ranked_list", "cub200"): ("bn_inception", 512, 180, 3, "sgd", 1e-3, 10_000),
    ("ranked_list", "cars196"): ("bn_inception", 512, 180, 3, "sgd", 1e-2, 10_000),
    ("ranked_list", "sop"): ("bn_inception", 512, 180, 3, "sgd", 1e-2, 16_000),
}
SIZES = {"cub200": (200, 11_788), "cars196": (196, 16_170), "sop": (22_634, 120_053)}


@pytest.mark.parametrize(("name", "photographs"), PAPERS)
def test_recipes_say_what_their_papers_say(name, photographs):
    classes, examples = SIZES[photographs]
    data = from_features(torch.zeros(examples, 1), torch.arange(examples) % classes)
    recipe = recipe_for(name, data)
    share = "npair" if recipe["sampler"] == "npair" else recipe["per_class"]
    facts = [recipe[key] for key in ("model", "dim", "batch_size")]
    assert (*facts, share, *(recipe[key] for key in ("optimizer", "rate", "steps"))) == PAPERS[name, photographs]
    assert "on" not in recipe


def test_what_is_said_comes_before_the_recipe_and_the_recipe_before_the_defaults():
    settings = resolve("ranked_list", {"model": Unsaid("resnet50"), "rate": 0.5}, pictures())
    assert (settings.model, settings.rate, settings.per_class) == ("bn_inception", 0.5, 3)
    assert resolve("ranked_list", {"model": "resnet50"}, pictures()).model == "resnet50"
    unsaid = resolve("ranked_list", dict.fromkeys(("loss", "model", "steps", "seed")), pictures())
    assert (unsaid.loss, unsaid.model, unsaid.steps, unsaid.seed) == ("ranked_list", "bn_inception", 10_000, 0)
    # A loss's options and a model's sizes do not outlive it; the same one said again keeps them.
    assert resolve("ranked_list", {"loss": "raw"}, pictures()).loss_options == {}
    assert resolve("ranked_list", {"loss": "ranked_list"}, pictures()).loss_options["alpha"] == 1.2
    assert resolve("ranked_list", {"model": "resnet50"}, pictures()).size is None
    # A loss that needs pairs gets them; others take the recipe's batches.
    assert resolve("nra", {"loss": "npair"}, pictures()).sampler is None
    assert resolve("nra", {"loss": "triplet", "loss_options": {"mining": "disjoint"}}, pictures()).sampler is None
    assert resolve("nra", {"loss": "raw"}, pictures()).sampler == "ngroup"
    assert resolve(None, {}, vectors()).model == "mlp"
    settings = resolve("ranked_list", {}, vectors())
    assert (settings.model, settings.levels, settings.loss) == ("mlp", "H", "ranked_list")


def test_an_embedder_that_is_made_decides_for_itself(tmp_path):
    with pytest.raises(TypeError, match="dim was decided when the embedder was made; leave it out"):
        training.train(vectors(), tmp_path, model=dropping(), dim=4)
    embedder = dropping()
    before = {name: value.clone() for name, value in embedder.state_dict().items()}
    run = training.train(vectors(), tmp_path, model=embedder, recipe="raw_vthm", batch_size=10, steps=2)
    assert all(torch.equal(before[name], value) for name, value in embedder.state_dict().items())
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (settings["dim"], settings["normalize"]) == (6, True)
    assert run.embedder.width == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_are_not_trained(dtype, tmp_path):
    """Small steps would be rounded away, and `precision` would not be what computes."""
    with pytest.raises(ValueError, match=rf"the embedder's weights are {dtype}, .*; give embedder.float\(\)"):
        training.train(vectors(), tmp_path / "run", model=dropping().to(dtype))


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (
            vectors(dim=12),
            torch.float32,
            r"of 12 numbers in torch\.float32 \(mat1 and mat2 shapes cannot be mul",
        ),
        (vectors(), torch.float64, r"of 10 numbers in torch\.float32 \(mat1 and mat2 must have the same dtype"),
    ],
)
def test_vectors_that_the_embedder_does_not_take_are_refused_at_once(source, kind, said, tmp_path):
    with pytest.raises(ValueError, match=f"the embedder does not take the data's vectors {said}.*; give one that was"):
        training.train(source, tmp_path / "run", model=dropping().to(kind))
    assert not (tmp_path / "run").exists()


def test_a_size_that_the_network_does_not_take_is_refused_at_once(tmp_path):
    said = r"the embedder does not take pictures of 8 × 8 pixels \(Given input size.*\); choose another size"
    with pytest.warns(UserWarning, match="random weights"), pytest.raises(ValueError, match=said):
        training.train(pictures(), tmp_path, model="googlenet", size=8)

    class Patches(torch.nn.Module):
        """As transformers do."""

        def forward(self, images):
            assert images.shape[-1] == 12, "Input height doesn't match"
            return images.flatten(1)

    grey = Preprocessing(12, 12, "square", (127.5,) * 3, (127.5,) * 3)
    with pytest.raises(ValueError, match=r"does not take pictures of 10 × 10 pixels \(Input height doesn't match\)"):
        training.train(pictures(), tmp_path, model=create(Patches(), preprocessing=grey), augment={"size": 10})


def test_numbers_of_numpy_are_numbers(tmp_path):
    """As they come out of a sweep; what is saved of them can be read again."""
    options = {"loss": "raw", "batch_size": np.int64(8), "dim": 4, "rate": np.logspace(-4, -3, 2)[0]}
    rule = {"name": "valid_triplet", "epsilon": np.float64(0.2)}
    options["loss_options"] = {"alpha": np.float32(2), "mining": rule}
    options["schedule"] = "constant"
    training.train(vectors(), tmp_path, steps=np.int32(2), **options)
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (settings["rate"], settings["loss_options"]["mining"]["epsilon"]) == (1e-4, 0.2)
    training.train(vectors(), tmp_path, steps=3, **options)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["step"] == 3


def test_a_loss_is_described_alike_in_every_process():
    """Where a function lies in memory would tell a run from itself."""
    loss = losses.RAWLoss()
    loss.shape = torch.clamp
    loss.bend = lambda x: x
    assert "shape=<built-in method clamp" in described(loss)
    assert "0x" not in described(loss)


def test_settings_become_plain_data_with_objects_described():
    settings = Settings(loss=losses.MarginLoss(learn_beta=True), model=dropping(), augment={"area": (0.2, 1.0)})
    data = plain(settings)
    assert json.loads(json.dumps(data)) == data
    assert data["loss"] == (
        "MarginLoss(margin=0.2, beta learns from 1.2, mining=DistanceWeighted(cutoff=0.5, far=1.4, seed=0))"
    )
    assert set(data) == {each.name for each in dataclasses.fields(Settings)}
