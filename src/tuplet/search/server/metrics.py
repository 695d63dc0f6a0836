"""Counts and times in the plain text that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import Counter

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """How many observations were at most each bound.

    >>> sizes = Histogram((1.0, 2.0))
    >>> sizes.observe(2.0)
    >>> print(*sizes.lines("batch"), sep=chr(10))
    batch_bucket{le="1"} 0
    batch_bucket{le="2"} 1
    batch_bucket{le="+Inf"} 1
    batch_sum 2.0
    batch_count 1
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one value."""
        with self._lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    def lines(self, name: str) -> list[str]:
        """The histogram as text."""
        total, lines = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {total}')
        return [*lines, f"{name}_sum {self.sum}", f"{name}_count {total}"]


class Metrics:
    """What the server has done since it started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.times = {
            "tuplet_request_seconds": (Histogram(SECONDS), "From a request's first byte to its answer."),
            "tuplet_embed_seconds": (Histogram(SECONDS), "The model's time for one batch of photographs."),
            "tuplet_embed_batch": (Histogram(SIZES), "Photographs in one batch."),
            "tuplet_search_seconds": (Histogram(SECONDS), "The index's time for one batch of searches."),
            "tuplet_search_batch": (Histogram(SIZES), "Searches in one batch."),
        }

    def observe(self, name: str, value: float) -> None:
        """Count one value of a histogram."""
        self.times[name][0].observe(value)

    def text(self, gauges: dict[str, tuple[float, str]]) -> str:
        """Everything, with these present values: by name, a number and what it is."""
        lines = ["# HELP tuplet_requests_total Requests, by path and status.", "# TYPE tuplet_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'tuplet_requests_total{{path="{path}",status="{status}"}} {count}')
        for name, (histogram, about) in self.times.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} histogram", *histogram.lines(name)]
        for name, (value, about) in gauges.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"
