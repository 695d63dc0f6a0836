"""Sentences about Python's keywords, as a user of the command would type them; and that these can be typed."""

import pytest

from tuplet.cli.compare import compare
from tuplet.cli.options import _parsed
from tuplet.cli.search import search
from tuplet.cli.train import train
from tuplet.cli.typed import as_typed, written
from tuplet.training import describe_options

OPTIONS = {option.name: option for option in describe_options()}


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("use normalize='eval'", "use --normalize eval"),
        ("use normalize=True, or clip=0.5", "use --normalize true, or --clip 0.5"),
        ("give weights=, a file", "give --weights, a file"),
        ("or resume=False to begin again", "or --no-resume to begin again"),
        ("with clip=None, not clip=1e-05", "with --clip none, not --clip 1e-05"),
        ("with weights='my file.pt'", "with --weights 'my file.pt'"),
        ("with loss_options={}, not", "with --loss-options '{}', not"),
        ("loss_options={'mining': {'name': 'semi_hard'}}, not loss_options={'beta': 2.0}; give",
         """--loss-options 'mining={"name":"semi_hard"}', not --loss-options beta=2.0; give"""),
        ("a larger per_class", "a larger --per-class"),
        ("seed is -1; it must be at least 0", "--seed is -1; it must be at least 0"),
        ("seed must be an integer, got 0.5", "--seed must be an integer, got 0.5"),
        ("mirrored is True and the data", "--mirrored is True and the data"),
        # What is no keyword stays as it is: English, paths, names in quotes, options of a loss.
        ("step 7: the loss is nan; the weights are not finite", "step 7: the loss is nan; the weights are not finite"),
        ("runs/batch_size/dim=8/checkpoint.pt is damaged", "runs/batch_size/dim=8/checkpoint.pt is damaged"),
        ("has no option 'batch_size'", "has no option 'batch_size'"),
        ("use alpha=2", "use alpha=2"),
        ("batch_sizes", "batch_sizes"),
    ],
)  # fmt: skip
def test_keywords_become_options(python, typed):
    assert as_typed(python, train) == typed


def test_only_what_the_command_takes():
    assert as_typed("give loss='raw', or dim=8", compare) == "give loss='raw', or --dim 8"
    assert as_typed("give index=, or top=5", search) == "give index=, or --top 5"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 20),
        ("clip", None),
        ("normalize", "eval"),
        ("normalize", False),
        ("rate", 1e-5),
        ("loss_options", {}),
        ("loss_options", {"mining": {"name": "valid_triplet", "epsilon": 0.2}, "squared": False, "beta": None}),
        ("augment", {"area": [0.2, 1.0], "fill": "mean"}),
    ],
)
def test_what_is_written_can_be_typed(name, value):
    assert _parsed(OPTIONS[name], written(value)) == value
