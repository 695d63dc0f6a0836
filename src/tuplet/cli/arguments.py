"""Arguments and flags that several commands share, and the options of `tuplet.data.open` that they give."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tuplet.cli.catalog import complete_model

_MODEL = "A run, a saved embedder, a weights file, or a model's name such as dinov2_small."
Data = Annotated[str, typer.Argument(metavar="DATA", help="As for tuplet train.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help=_MODEL, autocompletion=complete_model)]
OptionalModel = Annotated[Path | None, typer.Argument(metavar="MODEL", help=_MODEL, autocompletion=complete_model)]
IndexModel = Annotated[Path | None, typer.Option(help="The run, if the index does not contain its model.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … [a GPU if there is one]")]
_data_option = partial(typer.Option, rich_help_panel="Data")
Columns = Annotated[
    str | None,
    _data_option(
        metavar="ROLE=NAME,…",
        help="Names of a table's columns: path=file,label=species,group=camera. An empty name uses none: group=",
    ),
]
Pattern = Annotated[
    str | None,
    _data_option(metavar="REGEX", help="Find the class in each path: '(?P<label>.+)_'. Other groups become columns."),
]
Boxes = Annotated[
    bool, _data_option("--boxes", help="Crop images of CUB-200-2011, Cars196 or In-Shop to their official boxes.")
]


def open_options(columns: str | None, pattern: str | None, boxes: bool = False) -> dict[str, Any]:
    """Return the options of `tuplet.data.open` that the flags --columns, --pattern and --boxes give.

    >>> open_options("label=species,group=", None)
    {'columns': {'label': 'species', 'group': ''}}
    """
    options: dict[str, Any] = {"boxes": True} if boxes else {}
    if pattern is not None:
        options["pattern"] = pattern
    if columns is not None:
        options["columns"] = split_pairs("--columns", columns, "role=name,role=name")
    return options


def split_pairs(flag: str, text: str, form: str = "name=value,name=value") -> dict[str, str]:
    """Split the text of a flag into names and values.

    >>> split_pairs("--augment", "area=[0.2,1], mirror=0")
    {'area': '[0.2,1]', 'mirror': '0'}
    """
    # Split only at commas before a name: the one in area=[0.2,1] belongs to a list.
    pairs = [pair.partition("=") for pair in re.split(r",\s*(?=\w+=)", text)]
    for name, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"{flag} is {text!r}; write {form}: {name!r} has no =")
    values = {name.strip(): value.strip() for name, _, value in pairs}
    if len(values) < len(pairs):
        raise typer.BadParameter(f"{flag} is {text!r}; give each name once")
    return values


def json_or_text(text: str) -> Any:
    """Return a value that is typed as JSON or as plain text.

    >>> json_or_text("10"), json_or_text("true"), json_or_text("semi_hard")
    (10, True, 'semi_hard')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
