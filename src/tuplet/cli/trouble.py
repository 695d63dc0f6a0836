"""What the command says beside its result, on standard error: how far it is, and what goes wrong, with an exit code."""

import errno
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import typer

from tuplet.cli.typed import as_typed

STOPPED = 130
#: Where the commands that leave something to go on with begin when they are called again.
GOES_ON = {**dict.fromkeys(("demo", "train", "compare"), "the last checkpoint"), "index": "there"}


def said_plainly(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors about its input are sentences, and whose warnings are lines, not pieces of source code.

    Errors of other types are the program's own, and keep their traceback.
    """

    def say_typed(text: str) -> None:
        say(as_typed(text, command))

    @wraps(command)
    def plain(*arguments: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings(), _telling():
                # Pillow's, of a picture that is refused in a sentence of its own.
                warnings.filterwarnings("ignore", "Image size .* decompression bomb")
                warnings.showwarning = lambda message, *_: say_typed(f"warning: {message}")
                command(*arguments, **options)
        except KeyboardInterrupt:
            place = GOES_ON.get(command.__name__)
            say(f"stopped; the same command goes on from {place}" if place else "stopped")
            raise typer.Exit(STOPPED) from None
        except BrokenPipeError:
            raise  # the reader of a pipe has had enough: typer ends quietly
        except (OSError, ValueError, TypeError, ImportError, FloatingPointError) as error:
            say_typed(sentence(error))
            raise typer.Exit(1) from None
        except RuntimeError as error:
            # By its words, since its type would import torch, which the help need not wait for.
            if not re.search("out of memory|can't allocate memory", str(error)):
                raise
            reason = re.sub(r"^\[enforce fail.*DefaultCPUAllocator: ", "", sentence(error))
            say(f"{reason}; to train in less memory choose a smaller --piece-size or --batch-size")
            raise typer.Exit(1) from None

    return plain


class _Teller(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def _telling() -> Iterator[None]:
    """What the rooms behind the command tell of their work becomes lines."""
    log, teller = logging.getLogger("tuplet"), _Teller()
    log.addHandler(teller)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(teller)


def sentence(error: BaseException) -> str:
    """An error in one line, with the file that it is about.

    >>> sentence(OSError(28, "No space left on device", "run/best"))
    'run/best: No space left on device; make room or choose another folder'
    """
    if isinstance(error, OSError) and error.strerror:
        remedy = {
            errno.ENOSPC: "; make room or choose another folder",
            errno.EACCES: "; ask for the right to do so",
            errno.EROFS: "; choose another folder",
            errno.EEXIST: ", and it is no folder; choose another name",
        }
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}{remedy.get(error.errno or 0, '')}"
    return str(error).strip().split("\n")[0] or type(error).__name__


def say(text: str) -> None:
    """A line on standard error."""
    print(f"tuplet: {text}", file=sys.stderr)
