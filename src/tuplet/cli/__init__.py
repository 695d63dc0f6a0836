"""The command `tuplet`: parse, call, print.

Each command is a module of this package with a function of its name. Only the one that is called is imported, so that
`tuplet --help` need not wait for torch.
"""

import inspect
import io
import sys
from importlib import import_module
from typing import Annotated

import typer

import tuplet
from tuplet.cli.trouble import STOPPED, said_plainly, say

COMMANDS = {
    "demo": "Train on drawn characters, test on unseen ones, and write a report: a first look in two minutes.",
    "train": "Train an embedder on a folder of pictures, a table, a named dataset or a features file.",
    "evaluate": "Measure an embedder: retrieval, clustering and verification.",
    "embed": "Write the vectors of pictures to a file.",
    "index": "Embed photographs into an index, to search in.",
    "search": "Find what is near a photograph.",
    "serve": "Serve an index over HTTP, with a page to search it.",
    "report": "Write the report of a run, one HTML file.",
    "compare": "Train several losses under one protocol, beside the papers' numbers.",
    "losses": "List the losses: equation, paper, inputs.",
    "data": "Describe a dataset: counts, classes, splits, unreadable files.",
}
_HELP = """Deep metric learning: embeddings in which like is near like.

  tuplet demo                          see it work
  tuplet train photos/ --out birds     a model of your own pictures: one folder a class
  tuplet embed birds new/ --out v.npz  vectors of new pictures
  tuplet index birds photos/ -o b.index; tuplet serve b.index
                                       search them by photograph, in a page

`tuplet COMMAND --help` explains each command, with examples. Exit codes: 0 all is well, 1 a problem, which is said in
a sentence, 2 wrong usage, 130 stopped by ctrl-C."""


def main() -> None:
    """Run the command that the arguments name."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Hours of training must not end in an error because a terminal knows no ±.
        sys.stdout.reconfigure(errors="replace")
    try:
        app = _app(next((word for word in sys.argv[1:] if not word.startswith("-")), ""))
    except KeyboardInterrupt:  # importing torch takes long enough to press it
        say("stopped")
        sys.exit(STOPPED)
    app(prog_name="tuplet")


def _app(called: str) -> typer.Typer:
    app = typer.Typer(
        help=shaped(_HELP),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_options)
    for name, about in COMMANDS.items():
        function = getattr(import_module(f"tuplet.cli.{name}"), name) if name == called else _not_called
        app.command(name, help=shaped(function.__doc__ or ""), short_help=about)(said_plainly(function))
    return app


def shaped(text: str) -> str:
    """A help text whose paragraphs with indented lines, such as examples, keep their line breaks."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith(" ") or "\n " in part else part for part in paragraphs)


def _not_called() -> None:
    """Stand in the list of commands for one whose module is not needed."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tuplet {tuplet.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
