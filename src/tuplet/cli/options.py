"""Turn every option of `tuplet.train` into a flag of a command."""

import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_origin

import typer

from tuplet.cli.arguments import json_or_text, split_pairs
from tuplet.cli.catalog import catalog, complete, complete_words
from tuplet.cli.flags import flag, format_value

if TYPE_CHECKING:
    from tuplet.training import Option

#: A flag of every command that trains.
Recipe: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A paper's settings, such as ranked_list or npair; or best_resnet50, best_vit or demo.",
        autocompletion=complete("recipes"),
    ),
]
#: A flag of the commands that read options from a file.
Config: TypeAlias = Annotated[
    Path | None, typer.Option(help="Options in a .yaml, .json or .toml file, or a run.json; flags take precedence.")
]


def add_training_options(command: Callable[..., None], leave_out: Collection[str] = ()) -> Callable[..., None]:
    """Return the command with a flag for each option of training.

    Args:
        command: a function that takes the options given by the user as a dictionary `settings`.
        leave_out: names of options that the command does not offer.
    """
    flags = {name: about for name, about in catalog()["options"].items() if name not in leave_out}

    def call(**given: Any) -> None:
        from tuplet.training import describe_options

        texts = {name: given.pop(name) for name in flags}
        settings = {o.name: parse_value(o, texts[o.name]) for o in describe_options() if texts.get(o.name) is not None}
        command(settings=settings, **given)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, _info(name, about)]
        )
        for name, about in flags.items()
    ]
    call.__doc__, call.__name__ = command.__doc__, command.__name__.lstrip("_")
    call.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return call


def read_options(
    config: Path | None, recipe: str | None, settings: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Return the recipe and the options of training, from a file and from flags, which take precedence."""
    from tuplet.training.config_file import read_config

    options = {} if config is None else read_config(config)
    recipe_of_file = options.pop("recipe", None)
    return recipe or recipe_of_file, {**options, **settings}


def _info(name: str, about: Mapping[str, Any]) -> Any:
    names = {"loss": "losses", "model": "models"}.get(name)
    return typer.Option(
        flag(name),
        metavar=about["metavar"],
        help=_as_sentence(about["help"]),
        rich_help_panel=about["group"].title(),
        autocompletion=complete(names) if names else complete_words(about["choices"]),
    )


def _as_sentence(help_text: str) -> str:
    """Return the help of an option as a sentence that names other options as flags, then its default.

    >>> _as_sentence("side of the decoded images; none: same as `stored_size` [none]")
    'Side of the decoded images; none: same as --stored-size. [none]'
    """
    text, bracket, default = help_text.partition(" [")
    text = re.sub(r"`(\w+)`", lambda found: flag(found[1]) if found[1] in catalog()["options"] else found[1], text)
    return f"{text[:1].upper()}{text[1:]}.{bracket}{default}"


#: Help for options that also take Python objects, which the command line does not.
_HELP = {
    "loss": "a loss by name: see tuplet losses",
    "model": "a backbone by name, timm's included",
    "transform": "own augmentation, as module:function; none: `augment`",
    "device": "the device: cpu, cuda, cuda:1 …; none: a GPU if there is one",
}
#: Defaults that depend on the machine.
_DEFAULTS = {"model": "the one with the best weights at hand"}


def describe_flag(option: "Option") -> dict[str, Any]:
    """Return what help and tab completion show of an option: group, help, placeholder and possible words."""
    words = _metavar(option.alternatives).split("|")
    if type(None) in option.alternatives:
        words.append("none")
    return {
        "group": option.group,
        "help": _help(option),
        "metavar": _metavar(option.alternatives),
        "choices": [word for word in words if word.islower() and "=" not in word],
    }


def _help(option: "Option") -> str:
    about = _HELP.get(option.name, option.about).replace("None", "none")
    default = _DEFAULTS.get(option.name, format_value(option.default))
    return about if option.default == {} else f"{about} [{default}]"


def _metavar(alternatives: list[Any]) -> str:
    """Return the placeholder of a value in the help.

    >>> _metavar([int, type(None)]), _metavar([bool, "eval"]), _metavar([dict[str, int]])
    ('INT', 'true|false|eval', 'k=v,…')
    """
    parts = [part for part in alternatives if part is not type(None)]
    if str in parts:  # the alternatives to a string are Python objects
        return "TEXT"
    words = {int: "INT", float: "NUMBER", bool: "true|false"}
    return "|".join(words.get(part, part if isinstance(part, str) else "k=v,…") for part in parts)


def parse_value(option: "Option", text: str) -> Any:
    """Return the value of an option from the text that the user typed; `Settings` checks its range."""
    choices = option.alternatives
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
    if any(get_origin(choice) is Mapping for choice in choices):
        return parse_mapping(option, text)
    raise typer.BadParameter(f"{flag(option.name)} is {text!r}; it must be {_metavar(choices)}: {_help(option)}")


def parse_mapping(option: "Option", text: str) -> dict[str, Any]:
    """Parse JSON such as `{"alpha": 2}`, or `alpha=2,mining=semi_hard` with values in JSON or plain text."""
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise typer.BadParameter(f"{flag(option.name)} is not valid JSON: {error}") from error
    return {name: json_or_text(value) for name, value in split_pairs(flag(option.name), text).items()}
