"""Write the pages that come from the code: one for each room, the flags of all commands, the changelog."""

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
from doctest_blocks import fenced
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import tuplet
from tuplet.cli import COMMANDS, make_app
from tuplet.training.config_file import config_schema

ROOT = Path(__file__).parents[2]
ROOMS = [name for name in tuplet.__all__ if inspect.ismodule(getattr(tuplet, name))]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the rooms below the overview of the reference."""
    reference = next(entry["Reference"] for entry in config.nav or [] if "Reference" in entry)
    if not any(f"tuplet.{ROOMS[0]}" in entry for entry in reference if isinstance(entry, dict)):
        reference[1:1] = [{f"tuplet.{room}": f"reference/{room}.md"} for room in ROOMS]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {f"reference/{room}.md": room_page(room) for room in ROOMS}
    pages |= {"reference/flags.md": flags_page(), "changelog.md": (ROOT / "CHANGELOG.md").read_text()}
    pages["reference/train.schema.json"] = json.dumps(config_schema(), indent=1)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository outside of the documentation lead to the repository."""
    return markdown.replace("](../benchmarks/", f"]({config.repo_url}/blob/main/benchmarks/")


def room_page(room: str) -> str:
    """Return the page of a room: the docstring of the module, then everything that it offers."""
    module = import_module(f"tuplet.{room}")
    about = fenced(inspect.getdoc(module) or "")
    blocks = [f"# tuplet.{room}", about]
    blocks += [f"::: tuplet.{room}.{name}" + _members(getattr(module, name)) for name in public(module)]
    return "\n\n".join(blocks) + "\n"


def _members(value: Any) -> str:
    """Return the option that lists only what a loss, a sampler or a rule adds to the class that it inherits from."""
    bases = (tuplet.losses.RowLoss, tuplet.sampling.ClassSampler, tuplet.mining.Mining)
    if not (inspect.isclass(value) and issubclass(value, bases)) or value in bases:
        return ""
    inherited = {name for base in value.__mro__[1:] for name in (*vars(base), *getattr(base, "__annotations__", ()))}
    added = [name for name in vars(value) if name[0] != "_" and name not in inherited and callable(vars(value)[name])]
    return f"\n    options:\n      members: {json.dumps(added)}"


def public(module: Any) -> list[str]:
    """Return the names that a module offers, without the modules in it; those that it defines where it has no list."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    offered = getattr(module, "__all__", [name for name in defined if name[0] != "_"])
    return [name for name in offered if not inspect.ismodule(getattr(module, name))]


def flags_page() -> str:
    """Return the help of every command with all of its flags, as the terminal shows it."""
    blocks = [
        "# Every flag",
        "What `tuplet COMMAND --help` prints. [Commands](../commands.md) explains how to use them.",
    ]
    for name in COMMANDS:
        app: Any = typer.main.get_command(make_app(name))
        command, settings = app.commands[name], {**app.context_settings, "terminal_width": 95}
        context = command.make_context(f"tuplet {name}", [], resilient_parsing=True, **settings)
        blocks += [f"## {name}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(blocks) + "\n"
