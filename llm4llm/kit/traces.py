"""Spans for OpenTelemetry, where its packages are installed; without them, or without a collector, they cost nothing and say nothing.

The names of its own environment variables are kept: OTEL_EXPORTER_OTLP_ENDPOINT switches the export on, OTEL_SERVICE_NAME names us.
"""

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_trace: Any = None
with suppress(ImportError):  # pip install 'llm4llm[traces]'
    _trace = importlib.import_module("opentelemetry.trace")

_SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_log = logging.getLogger("llm4llm")


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[None]:
    """One piece of work; an exception that leaves the block is noted in the span."""
    if _trace is None:
        yield
        return
    with _trace.get_tracer("llm4llm").start_as_current_span(name, attributes=attributes):
        yield


def set_up_traces(service: str) -> bool:
    """Export this process's spans from now on, if a collector is named in the environment; whether they are."""
    if not any(os.environ.get(name) for name in _SWITCHES):
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("a collector of traces is named, but OpenTelemetry is not installed: pip install 'llm4llm[traces]'")
        return False
    named = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: named}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _trace.set_tracer_provider(provider)
    return True
