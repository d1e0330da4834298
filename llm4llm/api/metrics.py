"""Figures for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llm4llm.store import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0)


class _JobCounts(Collector):
    """Read when asked for: other processes change them as well."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily("llm4llm_jobs", "Stored jobs by status.", labels=["status"])
        for status, count in self._store.listing.counts().items():
            gauge.add_metric([status], count)
        yield gauge

    def describe(self) -> Iterator[Metric]:
        return iter(())


class Metrics:
    """Of one app: tests may have several in a process."""

    def __init__(self, store: Store) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_JobCounts(store))
        labels = ("method", "route", "status")
        self._requests = Counter("llm4llm_http_requests", "Requests that were answered.", labels, registry=self._registry)
        self._seconds = Histogram(
            "llm4llm_http_seconds", "Seconds until an answer had begun.", ("method", "route"), registry=self._registry, buckets=_BUCKETS
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
