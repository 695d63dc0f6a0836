"""Options in a file: every format, precedence of flags, and the schema for editors."""

import json

import jsonschema
import pytest

from commands import SMALL, typed
from report_runs import draw_folder
from tuplet.errors import OptionError
from tuplet.training import describe_options
from tuplet.training.config_file import config_schema, read_config


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.yaml", "recipe: npair\nsteps: 7\nloss_options:\n  scale: 2.0\n"),
        ("run.json", '{"$schema": "x", "recipe": "npair", "steps": 7, "loss_options": {"scale": 2.0}}'),
        ("run.toml", 'recipe = "npair"\nsteps = 7\nloss_options = {scale = 2.0}\n'),
    ],
)
def test_formats_hold_the_same(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_config(tmp_path / name) == {"recipe": "npair", "steps": 7, "loss_options": {"scale": 2.0}}


def test_numbers_in_yaml_need_no_point(tmp_path):
    (tmp_path / "a.yaml").write_text("lr: 1e-5\nclip: 2E+3\nweights: 1e-5.safetensors\n")
    assert read_config(tmp_path / "a.yaml") == {"lr": 1e-5, "clip": 2e3, "weights": "1e-5.safetensors"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"step": 3}', "there is no option 'step'; did you mean 'steps'"),
        ("a.json", "{", "cannot be read"),
        ("a.yaml", "steps: [1", r"a\.yaml cannot be read \(while parsing a flow sequence .*; correct it"),
        ("a.json", b"\xff", "cannot be read"),
        ("a.json", "[1]", "holds list"),
        ("a.ini", "", r"must be \.yaml, \.json or \.toml"),
    ],
)
def test_mistakes_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as caught:
        read_config(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OptionError, match=r"config is .*nowhere\.yaml, which is no file; give the path of one$"):
        read_config(tmp_path / "nowhere.yaml")


def test_printed_options_are_a_file_and_flags_take_precedence(tmp_path):
    draw_folder(tmp_path / "photos", ("ant", "bee", "cat", "dog"), each=4)
    first = typed("train", "photos", *SMALL, "--print-config", cwd=tmp_path)
    assert first.exit_code == 0, first.output
    printed = json.loads(first.stdout)
    jsonschema.validate(printed, config_schema())
    (tmp_path / "run.json").write_text(first.stdout)
    again = typed("train", "photos", "--config", "run.json", "--lr", "0.5", "--print-config", cwd=tmp_path)
    assert json.loads(again.stdout) == {**printed, "lr": 0.5}
    assert not (tmp_path / "runs").exists()


def test_schema_knows_every_option():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert {option.name for option in describe_options()} <= {*schema["properties"]}
    for wrong in ({"steps": "many"}, {"transform": {"size": 3}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
