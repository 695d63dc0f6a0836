"""The metrics of the server, for Prometheus."""

from tuplet import extras

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
HISTOGRAMS = {
    "tuplet_request_seconds": ("Seconds from a request's first byte to its answer.", SECONDS),
    "tuplet_embed_seconds": ("Seconds of the model for one batch of images.", SECONDS),
    "tuplet_embed_batch": ("Images in one batch.", SIZES),
    "tuplet_search_seconds": ("Seconds of the index for one batch of searches.", SECONDS),
    "tuplet_search_batch": ("Searches in one batch.", SIZES),
}
GAUGES = {
    "tuplet_vectors": "Vectors in the index.",
    "tuplet_images_in_progress": "Images being read, decoded or embedded.",
    "tuplet_searches_waiting": "Searches that wait for the index.",
}


class Metrics:
    """Counts and times since the server started."""

    def __init__(self) -> None:
        prometheus = extras.need("prometheus_client", extra="serve", purpose="serving an index")
        registry = prometheus.CollectorRegistry()  # of its own: a process may serve several indexes
        self._requests = prometheus.Counter(
            "tuplet_requests", "Requests, by path and status.", ["path", "status"], registry=registry
        )
        self._histograms = {
            name: prometheus.Histogram(name, about, buckets=buckets, registry=registry)
            for name, (about, buckets) in HISTOGRAMS.items()
        }
        self._gauges = {name: prometheus.Gauge(name, about, registry=registry) for name, about in GAUGES.items()}
        self._generate = lambda: prometheus.generate_latest(registry).decode()
        self.content_type: str = prometheus.CONTENT_TYPE_LATEST

    def count_request(self, path: str, status: int) -> None:
        """Count one answered request."""
        self._requests.labels(path, status).inc()

    def observe(self, name: str, value: float) -> None:
        """Add one value to a histogram."""
        self._histograms[name].observe(value)

    def text(self, gauges: dict[str, float]) -> str:
        """Return all metrics, with these present values, as Prometheus reads them."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return self._generate()
