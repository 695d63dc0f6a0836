"""Show control characters instead of sending them: the name of a file must not command the terminal."""

import re
import sys
from typing import Any, TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""Return a text with its control characters escaped, except for line breaks and tabs.

    >>> print(visible("red \x1b[31m.jpg"))
    red \u001b[31m.jpg
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # as in JSON, which is printed too


class VisibleStream:
    """A text stream that writes `visible` text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show_control_characters() -> None:
    """Let everything that is printed pass through `visible`; rich writes its colours to the streams below."""
    sys.stdout, sys.stderr = VisibleStream(sys.stdout), VisibleStream(sys.stderr)
