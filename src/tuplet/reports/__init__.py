"""Write the report of a run, or the page of a comparison: self-contained HTML files."""

from tuplet.reports.comparison import write_comparison
from tuplet.reports.page import write

__all__ = ["write", "write_comparison"]
