"""Every setting of a training run as an option of a command."""

import inspect
import json
import re
import types
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from tuplet.cli.typed import flag, written
from tuplet.training import Option, describe_options


def with_settings(command: Callable[..., None], leave_out: Collection[str] = ()) -> Callable[..., None]:
    """The command with an option for each setting; those that are given reach it as a dictionary `settings`."""
    offered = [option for option in describe_options() if option.name not in leave_out]

    def call(**given: Any) -> None:
        said = {option.name: given.pop(option.name) for option in offered}
        command(settings={o.name: _parsed(o, said[o.name]) for o in offered if said[o.name] is not None}, **given)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
    added = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None, typer.Option(flag(option.name), metavar=_kind(option.hint), help=_about(option))
            ],
        )
        for option in offered
    ]
    call.__doc__, call.__name__ = command.__doc__, command.__name__.lstrip("_")
    call.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return call


#: What only Python can give is of no use here.
_IN_OTHER_WORDS = {"loss": "a loss by name: see tuplet losses", "model": "a backbone by name, timm's included"}


def _about(option: Option) -> str:
    about = _IN_OTHER_WORDS.get(option.name, option.about).replace("None", "none")
    return about if option.default == {} else f"{about} [{written(option.default)}]"


def _kind(hint: Any) -> str:
    """A type in a word.

    >>> _kind(int | None), _kind(bool | Literal["eval"]), _kind(dict[str, int])
    ('INT', 'true|false|eval', 'k=v,…')
    """
    parts = [part for part in _choices(hint) if part is not type(None)]
    words = {int: "INT", float: "NUMBER", bool: "true|false", str: "TEXT"}
    kinds = [words.get(part, part if isinstance(part, str) else "k=v,…") for part in parts]
    if str in parts:  # beside a text only objects are allowed, which no command line can name
        return "TEXT"
    return "|".join(kinds)


def _choices(hint: Any) -> list[Any]:
    """What a value may be: types, and the strings of literals."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return [choice for part in parts for choice in _choices(part)]
    return list(parts) if origin is Literal else [hint]


def _parsed(option: Option, text: str) -> Any:
    """The value that a text stands for; whether it is in range, the settings themselves check."""
    choices = _choices(option.hint)
    if text in choices:
        return text
    if text.lower() == "none" and type(None) in choices:
        return None
    if text.lower() in ("true", "false") and bool in choices:
        return text.lower() == "true"
    for kind in (int, float):
        if kind in choices:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in choices:
        return text
    if any(get_origin(choice) is not None for choice in choices):
        return _mapping(option, text)
    raise typer.BadParameter(f"{flag(option.name)} is {text!r}; it must be {_kind(option.hint)}: {_about(option)}")


def _mapping(option: Option, text: str) -> dict[str, Any]:
    """`{"alpha": 2}` in JSON, or `alpha=2,mining=semi_hard`, whose values are JSON or else texts."""
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise typer.BadParameter(f"{flag(option.name)} is no valid JSON: {error}") from error
    # A comma inside a list, as in area=[0.2,1], is not followed by a name.
    pairs = [pair.partition("=") for pair in re.split(r",\s*(?=\w+=)", text)]
    for name, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(
                f"{flag(option.name)} is {text!r}; write name=value,name=value, and {name} has none"
            )
    return {name.strip(): _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
