"""Spans over a real exporter, to a collector on loopback."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

CODE = """
from opentelemetry import trace
from llm4llm.kit import set_up_traces, span
print(set_up_traces("llm4llm-test"))
with span("job", job="job_1"):
    with span("stage capture", stage="capture"):
        pass
    try:
        with span("stage profile", stage="profile"):
            raise ValueError("no")
    except ValueError:
        pass
getattr(trace.get_tracer_provider(), "shutdown", lambda: None)()
"""


def run(**environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_spans_reach_a_collector_with_their_parents_and_faults() -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}") == "True"
        server.shutdown()
    resource = ExportTraceServiceRequest.FromString(received[0]).resource_spans[0]
    assert {pair.key: pair.value.string_value for pair in resource.resource.attributes}["service.name"] == "llm4llm-test"
    spans = {one.name: one for one in resource.scope_spans[0].spans}
    assert set(spans) == {"job", "stage capture", "stage profile"}
    assert spans["stage capture"].parent_span_id == spans["job"].span_id
    assert {pair.key: pair.value.string_value for pair in spans["job"].attributes} == {"job": "job_1"}
    assert spans["stage profile"].status.code == 2
    assert spans["stage capture"].status.code == 0


def test_without_a_collector_nothing_is_exported() -> None:
    assert run() == "False"
