"""Options of a run in a file (YAML, JSON, TOML or the run.json of an earlier run), and their schema for editors."""

import json
import os
import tomllib
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from tuplet.errors import OptionError, first_line, opt
from tuplet.extras import need
from tuplet.training.recipes import RECIPES
from tuplet.training.settings import check_names, describe_options

#: Names in a file that are arguments of `tuplet.train` beside the options.
_ARGUMENTS = ("recipe",)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the options in a file, and its recipe if it names one; unknown names are an error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "run.json")
    >>> _ = path.write_text('{"recipe": "npair", "steps": 200}')
    >>> read_config(path)
    {'recipe': 'npair', 'steps': 200}
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".toml":
            content: Any = tomllib.loads(text)
        elif path.suffix == ".json":
            content = json.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            content = need("yaml", extra="yaml", purpose="reading a YAML file").safe_load(text) or {}
        else:
            raise OptionError(f"{opt('config')} is {path}; its ending must be .yaml, .json or .toml")
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{opt('config')} {path} cannot be read ({first_line(error)}); correct it") from error
    if not isinstance(content, dict):
        raise OptionError(f"{opt('config')} {path} holds {type(content).__name__}; it must hold names and values")
    if "settings" in content and "versions" in content:  # the run.json of a run, whose settings are complete
        return dict(content["settings"])
    content.pop("$schema", None)
    check_names(name for name in content if name not in _ARGUMENTS)
    return content


def config_schema() -> dict[str, Any]:
    """Return a JSON schema of such a file, with which editors complete and check it.

    >>> config_schema()["properties"]["steps"]["type"]
    'integer'
    """
    options = {
        option.name: {**_schema(option.hint), "description": option.about, "default": option.default}
        for option in describe_options()
    }
    recipe = {"enum": [*RECIPES, None], "description": "a paper's settings, which the options override"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Options of tuplet train",
        "type": "object",
        "additionalProperties": False,
        "properties": {"$schema": {"type": "string"}, "recipe": recipe, **options},
    }


def _schema(hint: Any) -> dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        found = [_schema(part) for part in parts]
        known = [each for each in found if each]  # a Python object cannot be written in a file
        return known[0] if len(known) == 1 else {"anyOf": known}
    if origin is Literal:
        return {"enum": list(parts)}
    names = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
    if hint in names:
        return {"type": names[hint]}
    return {"type": "object"} if origin is not None else {}
