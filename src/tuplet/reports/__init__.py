"""A run as a page to look at: one self-contained HTML file."""

from tuplet.reports.page import write

__all__ = ["write"]
