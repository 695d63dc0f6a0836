"""Parsing flags into settings."""

import pytest
import typer

from tuplet.cli.options import parse_mapping, parse_value
from tuplet.training import Settings, describe_options

OPTIONS = {option.name: option for option in describe_options()}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("steps", "20", 20),
        ("lr", "1e-3", 1e-3),
        ("clip", "none", None),
        ("clip", "2", 2.0),
        ("normalize", "eval", "eval"),
        ("normalize", "True", True),
        ("normalize", "none", None),
        ("compile", "false", False),
        ("loss", "none", "none"),
        ("weights", "none", None),
        ("weights", "a.pt", "a.pt"),
        ("optimizer", "sgd", "sgd"),
        ("loss_options", "alpha=2,mining=semi_hard", {"alpha": 2, "mining": "semi_hard"}),
        ("augment", "area=[0.2,1],brightness=0.4, mirror=0", {"area": [0.2, 1], "brightness": 0.4, "mirror": 0}),
        ("model_options", "hidden=[512,64]", {"hidden": [512, 64]}),
        ("loss_options", '{"mining": {"name": "valid_triplet", "epsilon": 0.2}}',
         {"mining": {"name": "valid_triplet", "epsilon": 0.2}}),
        ("loss_options", "squared=false", {"squared": False}),
    ],
)  # fmt: skip
def test_text_is_parsed(name, text, value):
    parsed = parse_value(OPTIONS[name], text)
    assert parsed == value
    assert type(parsed) is type(value)
    Settings(**{name: parsed})


@pytest.mark.parametrize(("name", "text"), [("steps", "1.5"), ("compile", "yes"), ("optimizer", "lion"), ("dim", "")])
def test_wrong_text_is_an_error_with_the_meaning(name, text):
    with pytest.raises(typer.BadParameter, match=f"--{name} is {text!r}; it must be .*: {OPTIONS[name].about[:10]}"):
        parse_value(OPTIONS[name], text)


@pytest.mark.parametrize("text", ["alpha", "{alpha", ""])
def test_wrong_dictionaries_are_errors(text):
    with pytest.raises(typer.BadParameter, match="--loss-options is"):
        parse_mapping(OPTIONS["loss_options"], text)
