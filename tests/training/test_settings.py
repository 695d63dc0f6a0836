"""Tests of options: names, types, limits, recipes and precedence."""

import dataclasses
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from foreign import foreign
from training_tools import QUICK, embedder_with_dropout, image_set, vectors
from tuplet import losses, mining, training
from tuplet.data import from_features
from tuplet.models import Preprocessing, create
from tuplet.training.checkpoint import describe_module, plain_settings
from tuplet.training.distributed import World
from tuplet.training.plan import make_plan
from tuplet.training.recipes import recipe_for
from tuplet.training.resolve import Default, resolve_settings
from tuplet.training.settings import Settings, describe_options

DOCS = Path(__file__).parents[2] / "docs" / "options.md"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"batchsize": 3}, "there is no option 'batchsize'; did you mean 'batch_size'?"),
        ({"learning_rate": 3}, "there is no option 'learning_rate'; did you mean 'lr'?"),
        ({"xyz": 3}, "there is no option 'xyz'; choose one of augment, batch_size"),
        ({"lr": "fast"}, "lr is 'fast'; it must be float: learning rate of the backbone"),
        ({"steps": 1.5}, "steps is 1.5; it must be int: number of training steps"),
        ({"steps": True}, "steps is True; it must be int: number of training steps"),
        ({"steps": -1}, "steps is -1; it must be at least 0"),
        ({"lr": float("nan")}, "lr is nan; it must be above 0"),
        ({"lr": -1}, "lr is -1; it must be above 0"),
        ({"ema": 1.0}, "ema is 1.0; it must be at least 0 and below 1"),
        ({"optimizer": "lion"}, "optimizer is 'lion'; it must be 'sgd' or 'adam' or 'adamw'"),
        ({"device": "gpu"}, "device is 'gpu', which cannot be used: "),
        ({"schedule": "step"}, "schedule='step' needs decay_every"),
        ({"loss": losses.RAWLoss(), "loss_options": {"alpha": 1.0}}, "loss_options are for a loss given by name"),
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
        ({"loss": "raw", "loss_options": None}, "loss_options is None; it must be dict: hyperparameters of a loss"),
        ({"resume": None}, "resume is None; give True to continue, or False to start again"),
        ({"recipe": 3}, "there is no recipe 3; choose one of a_bier, abe"),
        ({"recipe": "rankedlist"}, "there is no recipe 'rankedlist'; did you mean 'ranked_list'?"),
        (
            {"batch_size": 15},
            "batch_size is 15 and the sampler class_balanced takes 4 at a time; choose a multiple of 4",
        ),
        (
            {"model": "resnet50", "weights": "x"},
            "weights 'x' are neither a file nor a name known for resnet50; give the path of a file, ",
        ),
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
            "NPairLoss needs the batches of sampler='npair', and sampler='ngroup' makes others; leave sampler out",
        ),
        (
            {"loss": "triplet", "loss_options": {"mining": "disjoint"}, "sampler": "class_balanced", "batch_size": 12},
            "TripletLoss needs the batches of sampler='triplet', and sampler='class_balanced' makes others; leave",
        ),
        (
            {"loss": losses.SoftmaxLoss(4, 512), "batch_size": 12},
            "SoftmaxLoss has proxies for 4 classes and 6 are trained; make it with num_classes=6, or give its name",
        ),
        (
            {"loss": losses.ArcFaceLoss(5, 512, centers=3), "batch_size": 12},
            "ArcFaceLoss has proxies for 5 classes and 6 are trained; make it with num_classes=6, or give its name",
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
        ({"loss": losses.RAWLoss}, "loss is <class 'tuplet.losses.raw.RAWLoss'>; it must be str or RowLoss: loss by"),
        (
            {"loss": torch.nn.Sequential(torch.nn.Identity())},
            "loss is a Sequential; it must be str or RowLoss: loss by name (`losses.LOSSES`), or a loss object; any "
            "other needs your own loop",
        ),
        (
            {"model": torch.nn.Sequential(torch.nn.Identity())},
            "model is a Sequential; it must be str or Embedder: backbone by name, or an embedder from",
        ),
        (
            {"loss": "softmax", "loss_options": {"num_classes": 3}},
            "num_classes of SoftmaxLoss follows from the data and the model; leave it out",
        ),
        (
            {"validation": 0.05, "validation_from": 0.5},
            "validation is 0.05, which is less than one of 6 training classes; choose a larger one",
        ),
        (
            {"validation": 0.8, "validation_from": 0.0},
            "training needs two classes of two examples or more, and there are 1; add examples, or choose a smaller "
            "validation",
        ),
        ({"test_share": 1.0}, "test_share is 1.0; it must be above 0 and below 1"),
        *(
            ({name: value}, f"{name} is {value!r}, which is for images, and the data are feature vectors; leave it out")
            for name, value in (
                *(("size", 32), ("resize", 32), ("resize_mode", "square"), ("stored_size", 32)),
                *(("augment", {"mirror": 0.5}), ("transform", "PIL.ImageOps:mirror"), ("flip_test", True)),
            )
        ),
        ({"device": "meta"}, "device is 'meta', unsupported in training; use cpu, cuda or cuda:1"),
        (
            {"validation": 0.0, "validation_from": 0.5},
            "validation_from=0.5 needs validation: the share of the training classes",
        ),
        ({"decay_every": 5}, "decay_every=5 needs schedule='step', and schedule is 'cosine'"),
        ({"decay_factor": 0.5}, "decay_factor=0.5 needs schedule='step', and schedule is 'cosine'"),
        ({"momentum": 0.5}, "momentum=0.5 needs optimizer='sgd', and optimizer is 'adamw'"),
        ({"candidates": 9}, "candidates=9 needs sampler='hard_class', and sampler is None"),
        ({"memory_start": 9}, "memory_start=9 needs memory: the number of embeddings to remember"),
        (
            {"loss": "raw", "loss_options": {"mining": {"name": "semi_hard", "epsilon": 0.1}}},
            "SemiHard has no option 'epsilon'; it has none",
        ),
        (
            {"loss": "margin", "loss_options": {"mining": "non_trivial"}},
            "NonTrivial needs alpha and margin; give them as its options",
        ),
        ({"seed": 2**64}, "seed is 18446744073709551616; it must be at least 0 and below 2⁶³"),
        ({"memory": 10, "loss": "proxy_nca"}, "memory is 10 and ProxyNCALoss takes no memory"),
        (
            {"memory": 10, "loss": "angular", "loss_options": {"max_per_class": 4}},
            "max_per_class is 4 and a memory of 10 may hold more of a class; leave it out",
        ),
        (
            {"memory": 10, "loss": "sum", "loss_options": {"parts": [{"loss": "angular", "max_per_class": 4}]}},
            "max_per_class is 4 and a memory of 10 may hold more of a class; leave it out",
        ),
    ],
)
def test_wrong_options_raise_one_sentence(wrong, sentence, tmp_path):
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=re.escape(sentence)) as caught:
        training.train(vectors(), tmp_path / "run", **{"validation": 0.0, **wrong})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run/[a-z]*"))


@pytest.mark.parametrize(
    ("late", "sentence"),
    [
        ({"warmup": 6}, "the learning rate rises to the end; give more steps or a smaller warmup"),
        ({"memory": 20, "memory_start": 9}, "the memory is never used; give more steps or a smaller memory_start"),
        (
            {"schedule": "step", "decay_every": 8},
            "the learning rate never decays; give more steps or a",
        ),
    ],
)
def test_options_that_take_effect_after_the_last_step_give_a_warning(late, sentence, tmp_path):
    with pytest.warns(UserWarning, match=rf"^\w+=\d with steps=6: {sentence}") as warned:
        training.train(vectors(), tmp_path / "run", **{**QUICK, **late})
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "training made the model worse")
        training.train(vectors(), tmp_path / "longer", **{**QUICK, **late, "steps": 10})


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": "triplett"},
        {"model": "resnet5"},
        {"per_class": 1},
        {"validation": 0.05, "validation_from": 0.5},
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
def test_errors_come_before_an_image_is_read_and_leave_no_folder_behind(wrong, tmp_path, monkeypatch):
    monkeypatch.setattr("tuplet.training.data.load", lambda *_, **__: pytest.fail("read"))
    small = {"model": "convnet", "model_options": {"size": 12, "channels": 3}}
    with pytest.raises((TypeError, ValueError, ImportError)):
        training.train(image_set(), tmp_path / "run", **{**small, **wrong})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("loss", "each"), [(losses.RAWLoss(), 4), (losses.NPairLoss(), 2), (losses.TripletLoss(mining="disjoint"), 3)]
)
def test_a_batch_with_fewer_classes_than_processes_raises_an_error_at_the_start(loss, each):
    settings = Settings(loss=loss, model="mlp", weights=None, batch_size=2 * each)
    three = World(0, 3, torch.device("cpu"))
    with pytest.raises(ValueError, match=f"a batch of {2 * each} is 2 groups of {each}, .* of {3 * each} or more"):
        make_plan(vectors(), settings, three)
    make_plan(vectors(), dataclasses.replace(settings, batch_size=3 * each), three)


def test_images_and_feature_vectors_need_models_that_take_them(tmp_path):
    with pytest.raises(
        ValueError, match="mlp takes feature vectors and the data are images; give feature vectors, or another model"
    ):
        training.train(image_set(), tmp_path, model="mlp")
    with pytest.raises(ValueError, match=r"convnet takes images and the data are feature vectors.*such as mlp"):
        training.train(vectors(), tmp_path, model="convnet")
    with pytest.raises(TypeError, match="augment has no option 'mirrored'; did you mean 'mirror'"):
        training.train(image_set(), tmp_path, model="convnet", model_options={"size": 12}, augment={"mirrored": 1.0})


def test_every_option_has_a_group():
    groups = [option.group for option in describe_options()]
    order = ["data", "model", "loss", "batches", "optimizer", "schedule", "evaluation", "run"]
    assert groups == sorted(groups, key=order.index)
    assert set(groups) == set(order)


def test_the_page_documents_every_option():
    page = DOCS.read_text()
    for option in describe_options():
        assert f"| `{option.name}` | {option.kind} | `{option.default!r}` | {option.about} |" in page


@pytest.mark.parametrize("name", training.RECIPES)
def test_recipes_are_plain_data_and_valid_settings(name):
    recipe = training.RECIPES[name]
    assert json.loads(json.dumps(recipe)) == recipe
    for own in [{}, *recipe.get("on", {}).values()]:
        settings = Settings(**{k: v for k, v in {**recipe, **own}.items() if k != "on"})
        assert (settings.batch_size or 120) % settings.per_class == 0 or settings.sampler in ("npair", None)
        assert settings.loss in losses.LOSSES


# What the papers say: network, dim, batch size, examples per class, optimizer, learning rate, steps.
PAPERS = {
    ("npair_angular", "cars196"): ("googlenet", 512, 128, "npair", "sgd", 1e-4, 20_000),
    ("npair_angular", "cub200"): ("googlenet", 512, 128, "npair", "sgd", 1e-5, 20_000),
    ("npair", "cub200"): ("googlenet", 64, 120, "npair", "adam", 1e-4, 20_000),
    ("npair_faces", "webface"): ("casianet", None, 384, "npair", "adam", 3e-4, 240_000),
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
SIZES = {"cub200": (200, 11_788), "cars196": (196, 16_170), "sop": (22_634, 120_053), "webface": (10_575, 494_414)}


@pytest.mark.parametrize(("name", "benchmark"), PAPERS)
def test_recipes_agree_with_their_papers(name, benchmark):
    classes, examples = SIZES[benchmark]
    data = from_features(torch.zeros(examples, 1), torch.arange(examples) % classes)
    recipe = recipe_for(name, data)
    share = "npair" if recipe["sampler"] == "npair" else recipe["per_class"]
    facts = [recipe[key] for key in ("model", "dim", "batch_size")]
    assert (*facts, share, *(recipe[key] for key in ("optimizer", "lr", "steps"))) == PAPERS[name, benchmark]
    assert "on" not in recipe


def test_given_options_override_the_recipe_which_overrides_the_defaults():
    def resolve(recipe, given, data):
        return resolve_settings(recipe, {"weights": None, **given}, data)

    settings = resolve("ranked_list", {"model": Default("resnet50"), "lr": 0.5}, image_set())
    assert (settings.model, settings.lr, settings.per_class) == ("bn_inception", 0.5, 3)
    assert resolve("ranked_list", {"model": "resnet50"}, image_set()).model == "resnet50"
    missing = resolve("ranked_list", dict.fromkeys(("loss", "model", "steps", "seed")), image_set())
    assert (missing.loss, missing.model, missing.steps, missing.seed) == ("ranked_list", "bn_inception", 10_000, 0)
    # Another loss or model drops the recipe's options for its own; naming the recipe's own keeps them.
    assert resolve("ranked_list", {"loss": "raw"}, image_set()).loss_options == {}
    assert resolve("ranked_list", {"loss": "ranked_list"}, image_set()).loss_options["alpha"] == 1.2
    assert resolve("ranked_list", {"model": "resnet50"}, image_set()).size is None
    # A loss that needs pairs or triplets drops the sampler of the recipe; other losses keep it.
    assert resolve("nra", {"loss": "npair"}, image_set()).sampler is None
    assert resolve("nra", {"loss": "triplet", "loss_options": {"mining": "disjoint"}}, image_set()).sampler is None
    assert resolve("nra", {"loss": "raw"}, image_set()).sampler == "ngroup"
    assert resolve(None, {}, vectors()).model == "mlp"
    settings = resolve("ranked_list", {}, vectors())
    assert (settings.model, settings.levels, settings.loss) == ("mlp", "H", "ranked_list")


def test_options_that_an_embedder_object_has_fixed_cannot_be_given(tmp_path):
    with pytest.raises(TypeError, match="dim was set when the embedder was made; leave it out"):
        training.train(vectors(), tmp_path, model=embedder_with_dropout(), dim=4)
    embedder = embedder_with_dropout()
    before = {name: value.clone() for name, value in embedder.state_dict().items()}
    run = training.train(vectors(), tmp_path, model=embedder, recipe="raw_vthm", batch_size=10, steps=2)
    assert all(torch.equal(before[name], value) for name, value in embedder.state_dict().items())
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (settings["dim"], settings["normalize"]) == (6, True)
    assert run.embedder.width == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_raise_an_error(dtype, tmp_path):
    """Small steps would be rounded away, and `precision` would have no effect."""
    with pytest.raises(ValueError, match=rf"the embedder's weights are {dtype}, .*; give embedder.float\(\)"):
        training.train(vectors(), tmp_path / "run", model=embedder_with_dropout().to(dtype))


@pytest.mark.parametrize(
    ("source", "dtype", "message"),
    [
        (
            vectors(dim=12),
            torch.float32,
            r"of 12 numbers in torch\.float32 \(mat1 and mat2 shapes cannot be mul",
        ),
        (vectors(), torch.float64, r"of 10 numbers in torch\.float32 \(mat1 and mat2 must have the same dtype"),
    ],
)
def test_vectors_that_do_not_fit_the_embedder_raise_an_error_at_once(source, dtype, message, tmp_path):
    with pytest.raises(
        ValueError, match=f"the embedder does not take the data's vectors {message}.*; give an embedder"
    ):
        training.train(source, tmp_path / "run", model=embedder_with_dropout().to(dtype))
    assert not (tmp_path / "run").exists()


def test_a_size_that_does_not_fit_the_network_raises_an_error_at_once(tmp_path):
    message = r"the embedder does not take images of 8 × 8 pixels \(Given input size.*\); choose another size"
    with pytest.raises(ValueError, match=message):
        training.train(image_set(), tmp_path, model="googlenet", size=8, weights=None)

    class Patches(torch.nn.Module):
        """A network of one size, as transformers are."""

        def forward(self, images):
            assert images.shape[-1] == 12, "Input height doesn't match"
            return images.flatten(1)

    grey = Preprocessing(12, 12, "square", (127.5,) * 3, (127.5,) * 3)
    with pytest.raises(ValueError, match=r"does not take images of 10 × 10 pixels \(Input height doesn't match\)"):
        training.train(image_set(), tmp_path, model=create(Patches(), preprocessing=grey), augment={"size": 10})


def test_a_size_that_a_transformer_of_timm_was_not_made_for_names_its_option(tmp_path):
    foreign("timm")
    message = (
        r"does not take images of 32 × 32 pixels \(.*\); choose another size, or give model_options={'img_size': 32}"
    )
    with pytest.raises(ValueError, match=message):
        training.train(image_set(), tmp_path, model="timm/vit_tiny_patch16_224", weights=None, size=32)


def test_numpy_numbers_are_accepted(tmp_path):
    """Sweeps give them. They are saved as Python numbers, so that JSON and checkpoints can be read."""
    options = {"loss": "raw", "batch_size": np.int64(8), "dim": 4, "lr": np.float64(1e-4)}
    rule = {"name": "valid_triplet", "epsilon": np.float64(0.2)}
    options["loss_options"] = {"alpha": np.float32(2), "mining": rule}
    options["schedule"] = "constant"
    training.train(vectors(), tmp_path, steps=np.int32(2), **options)
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (settings["lr"], settings["loss_options"]["mining"]["epsilon"]) == (1e-4, 0.2)
    training.train(vectors(), tmp_path, steps=3, **options)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["step"] == 3


def test_the_description_of_a_loss_is_the_same_in_every_process():
    """The address of a function would differ, and a run could not be resumed."""
    loss = losses.RAWLoss()
    loss.shape = torch.clamp
    loss.bend = lambda x: x
    assert "shape=<built-in method clamp" in describe_module(loss)
    assert "0x" not in describe_module(loss)


def test_settings_become_plain_data_with_descriptions_of_objects():
    settings = Settings(
        loss=losses.MarginLoss(learn_beta=True), model=embedder_with_dropout(), augment={"area": (0.2, 1.0)}
    )
    data = plain_settings(settings)
    assert json.loads(json.dumps(data)) == data
    assert data["loss"] == (
        "MarginLoss(margin=0.2, beta learned from 1.2, mining=DistanceWeighted(cutoff=0.5, far=1.4, seed=0))"
    )
    assert set(data) == {each.name for each in dataclasses.fields(Settings)}
