"""Write the report of a run, or the page of a comparison or a tuning: self-contained HTML files."""

from tuplet.reports.comparison import write_comparison
from tuplet.reports.page import write
from tuplet.reports.tuning import write_tuning

__all__ = ["write", "write_comparison", "write_tuning"]
