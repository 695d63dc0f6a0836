"""The metrics of the server, for Prometheus."""

from typing import Any

from tuplet import extras

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Metrics:
    """Counts and times since the server started."""

    def __init__(self) -> None:
        prometheus = extras.need("prometheus_client", extra="serve", purpose="serving an index")
        registry = prometheus.CollectorRegistry()  # of its own: a process may serve several indexes

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Any:
            return prometheus.Histogram(name, about, buckets=buckets, registry=registry)

        self.requests = prometheus.Counter(
            "tuplet_requests", "Requests, by path and status.", ["path", "status"], registry=registry
        )
        self.request_seconds = histogram(
            "tuplet_request_seconds", "Seconds from a request's first byte to its answer.", SECONDS
        )
        self.embed_seconds = histogram("tuplet_embed_seconds", "Seconds of the model for one batch of images.", SECONDS)
        self.embed_batch = histogram("tuplet_embed_batch", "Images in one batch.", SIZES)
        self.search_seconds = histogram(
            "tuplet_search_seconds", "Seconds of the index for one batch of searches.", SECONDS
        )
        self.search_batch = histogram("tuplet_search_batch", "Searches in one batch.", SIZES)
        self.vectors = prometheus.Gauge("tuplet_vectors", "Vectors in the index.", registry=registry)
        self.images = prometheus.Gauge(
            "tuplet_images_in_progress", "Images being decoded or embedded.", registry=registry
        )
        self.searches = prometheus.Gauge(
            "tuplet_searches_waiting", "Searches that wait for the index.", registry=registry
        )
        self._text = lambda: prometheus.generate_latest(registry)
        self.content_type: str = prometheus.CONTENT_TYPE_LATEST

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return bytes(self._text())
