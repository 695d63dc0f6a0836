"""An index over HTTP, and one page to search it with."""

from tuplet.search.server.app import create_app
from tuplet.search.server.limits import Limits
from tuplet.search.server.running import serve

__all__ = ["Limits", "create_app", "serve"]
