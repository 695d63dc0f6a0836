"""Spell options of the library as flags of the command line."""

import ast
import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from tuplet.errors import Spelling, keyword


def flag(name: str) -> str:
    """Return the flag of an option.

    >>> flag("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def format_value(value: Any) -> str:
    """Return a value as the user would type it after a flag.

    >>> format_value({"alpha": 2.0, "mining": "semi_hard"}), format_value(True), format_value(None), format_value(1e-4)
    ('alpha=2.0,mining=semi_hard', 'true', 'none', '0.0001')
    """
    if isinstance(value, Mapping):
        texts = {k: v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in value.items()}
        return ",".join(f"{name}={text}" for name, text in texts.items()) or "{}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


#: The help of an argument that names a model.
MODEL_HELP = "A run, a saved embedder, a weights file, or a model's name such as dinov2_small."
#: Flags of every command that reads data.
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=NAME,…",
        help="Names of a table's columns: path=file,label=species,group=camera. An empty name uses none: group=",
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Find the class in each path: '(?P<label>.+)_'. Other groups become columns."),
]

Boxes = Annotated[
    bool, typer.Option("--boxes", help="Crop images of CUB-200-2011, Cars196 or In-Shop to their official boxes.")
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
        pairs = [pair.partition("=") for pair in columns.split(",")]
        if not all(equals for _, equals, _ in pairs):
            raise typer.BadParameter(f"--columns is {columns!r}; write role=name,role=name, as in label=species")
        options["columns"] = {role.strip(): name.strip() for role, _, name in pairs}
    return options


def flag_spelling(command: Callable[..., None]) -> Spelling:
    """Return the spelling of options as flags of a command, for `OptionError.spelled`.

    Options that the command does not have stay Python keywords. A command may have an attribute `instead`: a phrase
    for each option that it does not have, by name.

    >>> from tuplet.cli.train import train
    >>> spelling = flag_spelling(train)
    >>> spelling("lr"), spelling("normalize", "True"), spelling("resume", "False"), spelling("alpha", "2")
    ('--lr', '--normalize true', '--no-resume', 'alpha=2')
    """
    options = {
        name: parameter.annotation
        for name, parameter in inspect.signature(command).parameters.items()
        if isinstance(getattr(parameter.annotation, "__metadata__", (None,))[0], OptionInfo)
    }
    instead: Mapping[str, str] = getattr(command, "instead", {})

    def spelling(name: str, value: str | None = None) -> str:
        if name not in options:
            return instead.get(name) or keyword(name, value)
        if value is None:
            return flag(name)
        try:
            parsed = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # such as nan
            parsed = value
        if options[name].__origin__ is bool:
            return flag(name if parsed else f"no_{name}")
        return f"{flag(name)} {shlex.quote(format_value(parsed))}"

    return spelling
