"""Messages name options as flags, and the flags can be typed."""

from contextlib import suppress

import pytest
import typer

from tuplet.cli.compare import compare
from tuplet.cli.errors import explain_errors
from tuplet.cli.flags import flag_spelling, format_value
from tuplet.cli.options import parse_value
from tuplet.cli.train import train
from tuplet.errors import OptionError, OptionTypeError, opt, warn
from tuplet.training import describe_options

OPTIONS = {option.name: option for option in describe_options()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 20),
        ("clip", None),
        ("normalize", "eval"),
        ("normalize", False),
        ("lr", 1e-5),
        ("loss_options", {}),
        ("loss_options", {"mining": {"name": "valid_triplet", "epsilon": 0.2}, "squared": False, "beta": None}),
        ("augment", {"area": [0.2, 1.0], "fill": "mean"}),
    ],
)
def test_a_formatted_value_can_be_parsed(name, value):
    assert parse_value(OPTIONS[name], format_value(value)) == value


@pytest.mark.parametrize(
    ("marked", "spelled"),
    [
        (opt("normalize", "eval"), "--normalize eval"),
        (opt("normalize", True), "--normalize true"),
        (opt("clip", None), "--clip none"),
        (opt("lr", float("nan")), "--lr nan"),
        (opt("lr"), "--lr"),
        (opt("resume", False), "--no-resume"),
        (opt("resume", True), "--resume"),
        (opt("weights", "my file.pt"), "--weights 'my file.pt'"),
        (opt("loss_options", {"mining": {"name": "semi_hard"}}), """--loss-options 'mining={"name":"semi_hard"}'"""),
        (opt("block_rows", 16), "block_rows=16"),
    ],
)
def test_marked_options_become_flags(marked, spelled):
    assert OptionError(f"use {marked}").spelled(flag_spelling(train)) == f"use {spelled}"


def test_an_option_that_a_command_lacks_has_another_remedy():
    error = OptionError("wrong folder", remedy=f"give another one, or {opt('resume', False)} to begin again")
    assert error.spelled(flag_spelling(compare)).endswith("or delete that run's folder to begin again")


def printed(capsys, problem):
    """Return the lines that the command line prints for an error or a warning in `tuplet train`."""

    def command(**_):
        problem()

    command.__signature__ = train.__signature__
    with suppress(typer.Exit):
        explain_errors(command)()
    return capsys.readouterr().err


@pytest.mark.parametrize("kind", [OptionError, OptionTypeError])
def test_option_errors_are_printed_with_flags(capsys, kind):
    def fail():
        raise kind(f"{opt('batch_size')} is -1", remedy=f"use {opt('batch_size', 8)}; the class 'a batch_size' is fine")

    expected = "tuplet: --batch-size is -1; use --batch-size 8; the class 'a batch_size' is fine\n"
    assert printed(capsys, fail) == expected


def test_option_warnings_are_printed_with_flags(capsys):
    def fail():
        warn(f"the classes batch_size and lr=1 are small; use {opt('lr', 0.1)}")

    expected = "tuplet: warning: the classes batch_size and lr=1 are small; use --lr 0.1\n"
    assert printed(capsys, fail) == expected


def test_a_class_called_batch_size_is_not_respelled(capsys):
    def fail():
        raise ValueError("the class batch_size has 1 example; add examples")

    assert printed(capsys, fail) == "tuplet: the class batch_size has 1 example; add examples\n"
