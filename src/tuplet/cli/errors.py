"""Print errors, warnings and log messages of a command as lines on standard error, and set the exit code."""

import errno
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from tuplet.cli.flags import flag_spelling
from tuplet.cli.terminal import visible
from tuplet.errors import OptionError, OptionWarning, Spelling, first_line, spell
from tuplet.signals import raise_on_signals, restore_stop

INTERRUPTED, TERMINATED = 130, 143
NOTHING_KEPT = "; nothing is kept yet, and the same command starts again"


def explain_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that wrong input ends in one line and exit code 1, and warnings are lines.

    Errors of other types are bugs of the program and keep their traceback.
    """

    def message(problem: BaseException) -> str:
        if isinstance(problem, OptionError | OptionWarning):
            return problem.spelled(flag_spelling(command)).partition("\n")[0]
        return describe(problem)

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            with raise_on_signals(), warnings.catch_warnings(), _log_to_stderr(flag_spelling(command)):
                # Pillow's warning; the error that follows it names the file.
                warnings.filterwarnings("ignore", "Image size .* decompression bomb")
                warnings.showwarning = lambda warning, *_: print_stderr(f"warning: {message(warning)}")
                command(*arguments, **options)
        except (KeyboardInterrupt, SystemExit) as stopped:
            code = stopped.code if isinstance(stopped, SystemExit) else INTERRUPTED
            if code not in (INTERRUPTED, TERMINATED):
                raise
            print_stderr("stopped" + getattr(stopped, "__notes__", [NOTHING_KEPT])[0])
            raise typer.Exit(code) from None
        except BrokenPipeError:
            raise  # the reader of the pipe has closed it: typer exits silently
        except (OSError, ValueError, TypeError, ImportError, FloatingPointError) as error:
            print_stderr(message(error))
            raise typer.Exit(1) from None
        except RuntimeError as error:
            # torch has no error type of its own for a CPU without memory, and its text begins with its source file.
            if "out of memory" not in str(error) and "can't allocate memory" not in str(error):
                raise
            reason = describe(error).rpartition("DefaultCPUAllocator: ")[2]
            print_stderr(
                f"{reason}; to train in less memory choose a smaller --micro-batch-size, --batch-size or --size"
            )
            raise typer.Exit(1) from None

    return wrapped


@contextmanager
def when_stopped(describe: Callable[[], str]) -> Iterator[None]:
    """Say this after the word "stopped", and not that nothing is kept, if ctrl-C or SIGTERM ends this block.

    Args:
        describe: says what is kept and how to continue, such as "; the same command adds the rest".
    """
    try:
        with restore_stop():
            yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        stopped.add_note(describe())
        raise


def kept_with(file: Path) -> str:
    """Return how a stopped training continues: from its last checkpoint, if it has written this file."""
    return "; the same command continues from the last checkpoint" if file.is_file() else NOTHING_KEPT


class _StderrHandler(logging.Handler):
    """Print messages; options that `record.marked` marks are shown as flags."""

    def __init__(self, spelling: Spelling) -> None:
        super().__init__()
        self.spelling = spelling

    def emit(self, record: logging.LogRecord) -> None:
        marked = getattr(record, "marked", None)
        print_stderr(record.getMessage() if marked is None else spell(marked, self.spelling))


@contextmanager
def _log_to_stderr(spelling: Spelling) -> Iterator[None]:
    """Print the log of the library on standard error."""
    log, handler = logging.getLogger("tuplet"), _StderrHandler(spelling)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def describe(error: BaseException) -> str:
    """Return an error in one line, with the file that it is about.

    >>> describe(OSError(28, "No space left on device", "run/best"))
    'run/best: No space left on device; free some space or choose another folder'
    """
    if isinstance(error, OSError) and error.strerror:
        remedy = {
            errno.ENOSPC: "; free some space or choose another folder",
            errno.EACCES: "; change its permissions or choose another path",
            errno.EROFS: "; choose another folder",
            errno.EEXIST: " and is not a folder; choose another name",
        }
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}{remedy.get(error.errno or 0, '')}"
    return first_line(error)


def print_stderr(text: str) -> None:
    """Print a line on standard error, after the name of the program."""
    print(f"tuplet: {visible(text)}", file=sys.stderr)  # also while rich has replaced the stream
