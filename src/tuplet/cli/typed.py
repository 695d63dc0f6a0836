"""Options as they are typed, also where a sentence has them as keywords of Python."""

import ast
import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from typer.models import OptionInfo

#: What a keyword must not touch, since it then is a part of something else: a longer word, a path, a quotation.
_OUTSIDE = r"\w/.'\"-"
#: A value as Python writes it: a text, a dictionary of values or of dictionaries, a word or a number.
_VALUE = r"'[^']*'|\{(?:[^{}]|\{[^{}]*\})*\}|True|False|None|-?\d[\w.+-]*"
_KEYWORD = re.compile(
    rf"(?<![{_OUTSIDE}])(?:"
    rf"(?P<given>\w+)=(?P<value>{_VALUE})?"
    r"|^(?P<subject>\w+)(?= is | must )"
    rf"|(?P<word>\w+_\w+)(?![{_OUTSIDE}]))"
)


def flag(name: str) -> str:
    """The option of a setting.

    >>> flag("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def written(value: Any) -> str:
    """A value as it would be typed.

    >>> written({"alpha": 2.0, "mining": "semi_hard"}), written(True), written(None), written(1e-4)
    ('alpha=2.0,mining=semi_hard', 'true', 'none', '0.0001')
    """
    if isinstance(value, Mapping):
        texts = {k: v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in value.items()}
        return ",".join(f"{name}={text}" for name, text in texts.items()) or "{}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def as_typed(sentence: str, command: Callable[..., None]) -> str:
    """A sentence in which the keywords that are options of a command look as they are typed.

    The rooms behind the command speak to users of Python. There `name=value` is a keyword wherever it stands, `name=`
    one without a value; so is a name with an underscore, which no other word has, and a name that begins a sentence.

    >>> from tuplet.cli.train import train
    >>> as_typed("rate is -1.0; use normalize=True, a smaller batch_size, or resume=False", train)
    '--rate is -1.0; use --normalize true, a smaller --batch-size, or --no-resume'
    """
    options = {
        name: parameter.annotation
        for name, parameter in inspect.signature(command).parameters.items()
        if isinstance(getattr(parameter.annotation, "__metadata__", (None,))[0], OptionInfo)
    }

    def typed(found: re.Match[str]) -> str:
        name, value = found["given"] or found["subject"] or found["word"], found["value"]
        if name not in options:
            return found[0]
        if value is None:
            return flag(name)
        read = _read(value)
        if options[name].__origin__ is bool:
            return flag(name if read else f"no_{name}")
        return f"{flag(name)} {shlex.quote(written(read))}"

    return _KEYWORD.sub(typed, sentence)


def _read(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):  # such as nan, which is a number that Python cannot read
        return value
