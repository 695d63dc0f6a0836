"""Errors and warnings about options, spelled as Python keywords or as flags of the command line."""

import difflib
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias

#: Spells an option, with its value where one is given: see `keyword`.
Spelling: TypeAlias = Callable[..., str]

# Characters of a private use area: no message holds them otherwise.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARKED = re.compile(f"{_OPEN}(\\w+)(=(.*?))?{_CLOSE}", re.DOTALL)
_PACKAGE = str(Path(__file__).parent)
_NOT_GIVEN = object()


def opt(name: str, value: Any = _NOT_GIVEN) -> str:
    """Mark an option inside a message, so that the command line can show it as a flag.

    >>> str(OptionError(f"{opt('lr')} is -1; it must be above 0"))
    'lr is -1; it must be above 0'
    >>> str(OptionError(f"too long for this loss; use {opt('normalize', True)}"))
    'too long for this loss; use normalize=True'
    """
    return f"{_OPEN}{name}{'' if value is _NOT_GIVEN else f'={value!r}'}{_CLOSE}"


def keyword(name: str, value: str | None = None) -> str:
    """Spell an option as a Python keyword.

    >>> keyword("lr"), keyword("lr", "0.1")
    ('lr', 'lr=0.1')
    """
    return name if value is None else f"{name}={value}"


def spell(message: str, spelling: Spelling = keyword) -> str:
    """Replace every option that `opt` marked by `spelling(name)` or `spelling(name, value)`."""
    return _MARKED.sub(lambda found: spelling(found[1]) if found[2] is None else spelling(found[1], found[3]), message)


class OptionError(ValueError):
    """A wrong option: `str(error)` names it as a Python keyword, `error.spelled(spelling)` as a flag, for example.

    Args:
        message: what was given and what is expected, with options marked by `opt`.
        remedy: what to do, marked likewise; it is the end of the message.

    Attributes:
        option: the first option that the message names, or None.
        remedy: what to do, or None.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        self.marked = message if remedy is None else f"{message}; {remedy}"
        super().__init__(spell(self.marked))
        named = _MARKED.search(self.marked)
        self.option = named[1] if named else None
        self.remedy = None if remedy is None else spell(remedy)

    def spelled(self, spelling: Spelling) -> str:
        """Return the message with its options in another spelling."""
        return spell(self.marked, spelling)


class OptionTypeError(OptionError, TypeError):
    """An option of the wrong type, or one that does not exist."""


class OptionWarning(UserWarning):
    """A warning whose message may name options, marked by `opt`."""

    def __init__(self, message: str) -> None:
        self.marked = message
        super().__init__(spell(message))

    def spelled(self, spelling: Spelling) -> str:
        """Return the message with its options in another spelling."""
        return spell(self.marked, spelling)


def warn(message: str) -> None:
    """Warn at the line outside of this package that made the call; options may be marked by `opt`."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(OptionWarning(message), stacklevel=level)


def first_of(names: Sequence[Any], most: int) -> str:
    """Return the first names of a list, in words.

    >>> first_of(["ant", "bee", "cat"], 2)
    'ant, bee, …'
    """
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about a name that does not exist.

    >>> did_you_mean("ranked", ["ranked_list", "npair"])
    "did you mean 'ranked_list'?"
    """
    names = sorted(names)
    close = difflib.get_close_matches(str(name), names, 1)
    some = names if len(names) <= 60 else [*names[:5], "…"]
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(some)}"


def refuse_unknown(owner: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise an error for an option that `owner`, such as a loss, does not have.

    >>> refuse_unknown("SemiHard", ["epsilon"], known=[])
    Traceback (most recent call last):
    tuplet.errors.OptionTypeError: SemiHard has no option 'epsilon'; it has none
    """
    for name in options:
        if name not in known:
            remedy = did_you_mean(name, known) if known else "it has none"
            raise OptionTypeError(f"{owner} has no option {name!r}; {remedy}")


def at_least(least: int, **numbers: int) -> None:
    """Raise an error unless all numbers are integers of at least `least`.

    >>> at_least(1, pairs=0)
    Traceback (most recent call last):
    ValueError: pairs is 0; it must be at least 1
    """
    for name, value in numbers.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; it must be an integer of at least {least}")
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


def above_zero(**numbers: float) -> None:
    """Raise an error unless all numbers are finite and above 0.

    >>> above_zero(temperature=-0.1)
    Traceback (most recent call last):
    ValueError: temperature is -0.1; it must be above 0 and finite
    """
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; it must be above 0 and finite")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return str(error).strip().split("\n")[0] or type(error).__name__
