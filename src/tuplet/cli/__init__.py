"""The command line `tuplet`: parse arguments, call the library, print the result.

Each command is a module of this package with a function of the same name. Only the called command is imported. It
imports the library inside its functions, so that help and tab completion do not wait for torch.
"""

import inspect
import io
import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import tuplet
from tuplet.cli.errors import explain_errors
from tuplet.cli.terminal import show_control_characters

COMMANDS = {
    "demo": "Train on drawn characters, test on unseen ones and write a report, in about a minute.",
    "train": "Train an embedder on a folder of images, a table, a named dataset or a file of features.",
    "evaluate": "Measure an embedder: retrieval, clustering and verification.",
    "embed": "Write the embeddings of images to a file.",
    "index": "Embed images into an index that can be searched.",
    "search": "Find the nearest images in an index.",
    "serve": "Serve an index over HTTP, with a search page.",
    "export": "Write a model for ONNX Runtime, OpenVINO or torch.export.",
    "report": "Write the report of a run as one HTML file.",
    "compare": "Train several losses under one protocol and show published numbers beside them.",
    "tune": "Search for good options of train, on validation classes.",
    "losses": "List the losses: equation, inputs, paper.",
    "data": "Describe a dataset: counts, classes, splits, unreadable files.",
}
_HELP = """Deep metric learning: train embeddings that place images of one class close together.

  tuplet demo                          see it work
  tuplet train photos/ --out birds     train on your images: one folder per class
  tuplet embed birds new/ --out v.npz  embed new images
  tuplet index birds photos/ -o b.index; tuplet serve b.index
                                       search them by image, in a web page

`tuplet COMMAND --help` explains a command and shows examples. Exit codes: 0 success, 1 error (explained in one line),
2 wrong usage, 130 interrupted by ctrl-C, 143 ended by SIGTERM."""


def main() -> None:
    """Run the command that the arguments name."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot print "±" must not end hours of training in an error.
        sys.stdout.reconfigure(errors="replace")
    show_control_characters()
    make_app(_called(sys.argv[1:]))(prog_name="tuplet")


def _called(words: list[str]) -> str:
    """Return the name of the command in the words that were typed, or in those that a shell asks to complete."""
    typed = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    if "_TUPLET_COMPLETE" in os.environ:
        words = typed.split()[1:]
    return next((word for word in words if not word.startswith("-")), "")


def make_app(called: str) -> typer.Typer:
    """Return the application; only the command `called` is imported, the others are placeholders in the help."""
    app = typer.Typer(
        help=_keep_indented_lines(_HELP),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        # Without colours: `show_control_characters` would print their codes.
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "color": False},
    )
    app.callback()(_options)
    for name, about in COMMANDS.items():
        function = getattr(import_module(f"tuplet.cli.{name}"), name) if name == called else _placeholder
        help_text = _keep_indented_lines(function.__doc__ or "")
        app.command(name, cls=_GroupedCommand, help=help_text, short_help=about)(explain_errors(function))
    return app


class _GroupedCommand(TyperCommand):
    """A command whose help lists options under the titles of their help panels, in plain text."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:  # pydantic begins the text about a choice with the type of the error
            error.message = error.message.removeprefix("Value error, ")
            raise

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # typer's script for zsh loses the text in brackets, which is the default, and apostrophes.
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = item.help and item.help.partition(" [")[0].replace("'", "’")
        return items

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            title = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name.title()}s"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append(_plain(*record))
        sections["Run"] = sections.pop("Run", [])  # last, like the options of training that it begins
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


#: What the help prints for the kinds of values, by typer's names for them.
_KINDS = {
    **dict.fromkeys(("str", "list[str]"), "TEXT"),
    **dict.fromkeys(("int", "int range"), "INT"),
    **dict.fromkeys(("float", "float range"), "NUMBER"),
    "path": "PATH",
}


def _plain(term: str, text: str) -> tuple[str, str]:
    """Return a line of the help with short placeholders; long lists of choices move into the text.

    >>> _plain("--top <int range>", "The number of results.  [default: 10; x>=1]")
    ('--top INT', 'The number of results. [10]')
    >>> _plain("MODEL <path>", "A run.  [required]")
    ('MODEL', 'A run. [required]')
    >>> _plain("--metric <euclidean|cosine|dot>", "How to compare.  [default: dot]")
    ('--metric NAME', 'How to compare (euclidean, cosine, dot). [dot]')
    """
    term = re.sub("<(.*)>", lambda found: _KINDS.get(found[1], found[1]), term)
    if not term.startswith("-"):
        term = term.partition(" ")[0]
    text = re.sub(r"\s*\[default: ([^;\]]*)(;[^\]]*)?\]", r" [\1]", text).replace("  [", " [")
    name, _, choices = term.partition(" ")
    if len(term) > 26 and "|" in choices and choices != "true|false":
        term, listed = f"{name} NAME", f" ({choices.replace('|', ', ')})."
        text = re.sub(r"\.?( \[|$)", rf"{listed}\1", text, count=1)
    return term, text


def _keep_indented_lines(text: str) -> str:
    """Return a help text in which paragraphs with indented lines, such as examples, keep their line breaks."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith(" ") or "\n " in part else part for part in paragraphs)


def _placeholder() -> None:
    """Stand for a command that is listed but not called."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tuplet {tuplet.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
