"""Spell options of the library as flags of the command line."""

import ast
import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

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
