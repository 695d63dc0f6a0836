"""Serve an index over HTTP, with a web page to search it."""

from tuplet.search.server.app import create_app
from tuplet.search.server.limits import Limits
from tuplet.search.server.run import serve

__all__ = ["Limits", "create_app", "serve"]
