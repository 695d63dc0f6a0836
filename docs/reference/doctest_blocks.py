"""Show the examples of docstrings as code: Markdown takes the prompt `>>>` for a quotation."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """Put every example of a docstring between the fences of a code block."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


class DoctestBlocks(griffe.Extension):
    """Fences the examples of all objects."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of an object, once it is complete."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
