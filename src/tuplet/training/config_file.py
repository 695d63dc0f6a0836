"""Read files of training options, and describe them with a JSON schema."""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_origin

from tuplet.errors import OptionError, first_line, opt
from tuplet.extras import need
from tuplet.training.recipes import RECIPES
from tuplet.training.settings import Option, check_names, describe_options


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the options in a YAML, JSON or TOML file, or in the run.json of a run; `recipe` may be among them.

    Raises:
        OptionError: the file cannot be read, or names an option that does not exist.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "run.json")
    >>> _ = path.write_text('{"recipe": "npair", "steps": 200}')
    >>> read_config(path)
    {'recipe': 'npair', 'steps': 200}
    """
    path = Path(path)
    formats: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
    formats |= {".yaml": _parse_yaml, ".yml": _parse_yaml}
    if path.suffix not in formats:
        raise OptionError(f"{opt('config')} is {path}; its ending must be .yaml, .json or .toml")
    if not path.is_file():
        raise OptionError(f"{opt('config')} is {path}, which is no file; give the path of one")
    try:
        content = formats[path.suffix](path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionError(f"{opt('config')} {path} cannot be read ({first_line(error)}); correct it") from error
    if not isinstance(content, dict):
        raise OptionError(f"{opt('config')} {path} holds {type(content).__name__}; it must hold names and values")
    if "settings" in content and "versions" in content:  # the run.json of a run, whose settings are complete
        return dict(content["settings"])
    content.pop("$schema", None)
    check_names(name for name in content if name != "recipe")
    return content


def _parse_yaml(text: str) -> Any:
    yaml = need("yaml", extra="yaml", purpose="reading a YAML file")
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    # PyYAML reads 1e-5 as a word, as YAML 1.1 did.
    number = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    try:
        return yaml.load(text, loader) or {}
    except yaml.YAMLError as error:  # which is no ValueError
        raise ValueError(" ".join(str(error).split())) from error


def config_schema() -> dict[str, Any]:
    """Return a JSON schema of a file of options, with which editors complete and check it.

    >>> config_schema()["properties"]["steps"]["type"]
    'integer'
    """
    options = {
        option.name: {**_schema(option), "description": option.about, "default": option.default}
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


def _schema(option: Option) -> dict[str, Any]:
    names = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
    words = [kind for kind in option.alternatives if isinstance(kind, str)]
    found: list[dict[str, Any]] = [{"enum": words}] if words else []
    for kind in option.alternatives:
        if kind in names:
            found.append({"type": names[kind]})
        elif get_origin(kind) is Mapping:  # all others are Python objects, which no file holds
            found.append({"type": "object"})
    return found[0] if len(found) == 1 else {"anyOf": found}
