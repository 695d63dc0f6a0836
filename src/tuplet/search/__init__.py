"""From a trained model to answers: an index of vectors, searched in Python, in the terminal and in a page."""

from tuplet.search.index import Index
from tuplet.search.results import Found, Hit

__all__ = ["Found", "Hit", "Index"]
