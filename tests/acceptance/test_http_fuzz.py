"""Requests made up from the API's own OpenAPI: no fault of ours, and nothing that the document does not say."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from serving import Service

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
OPERATIONS = [
    "POST /v1/jobs",
    "GET /v1/jobs",
    "GET /v1/jobs/{job_id}",
    "POST /v1/jobs/{job_id}/cancel",
    "DELETE /v1/jobs/{job_id}",
    "GET /v1/jobs/{job_id}/events",
    "GET /v1/jobs/{job_id}/hotspots",
    "GET /v1/jobs/{job_id}/candidates",
    "GET /v1/jobs/{job_id}/report",
    "GET /v1/jobs/{job_id}/logs",
    "GET /v1/jobs/{job_id}/bundle",
    "GET /v1/targets",
    "GET /v1/agents",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
]
WITHOUT_INPUT = {"GET /v1/targets", "GET /v1/agents", "GET /healthz", "GET /readyz", "GET /metrics"}
EXAMPLES = 40
EXAMPLES_OF_STREAMS = 8  # each stream of a job that has just ended stays open for half a second


def document(service: Service) -> dict[str, Any]:
    return dict(httpx.get(f"{service.url}/openapi.json").json())


def test_every_operation_is_tried_and_every_refusal_documented_as_a_problem(service: Service) -> None:
    paths = document(service)["paths"]
    assert sorted(f"{method.upper()} {path}" for path, item in paths.items() for method in item) == sorted(OPERATIONS)
    for path, item in paths.items():
        for method, operation in item.items():
            assert operation["summary"], (path, method)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (path, method, status)
    body = paths["/v1/jobs"]["post"]["requestBody"]["content"]
    assert set(body) == {"multipart/form-data", "application/json"}
    assert body["application/json"]["examples"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_made_up_request_makes_it_fail(service: Service, name: str, mode: GenerationMode) -> None:
    method, path = name.split()
    operation = schemathesis.openapi.from_url(f"{service.url}/openapi.json")[path][method]
    if mode is GenerationMode.NEGATIVE and name in WITHOUT_INPUT:
        pytest.skip("takes no input that could be wrong")
    known = httpx.post(f"{service.url}/v1/jobs", files={"script": ("infer.py", b"print(1)\n")}).json()["id"]
    httpx.post(f"{service.url}/v1/jobs/{known}/cancel")
    tried = 0

    @settings(
        max_examples=EXAMPLES_OF_STREAMS if path.endswith("/events") else EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def attempt(case: schemathesis.Case) -> None:
        nonlocal tried
        tried += 1
        if "job_id" in case.path_parameters and tried % 2:
            case.path_parameters["job_id"] = known
        if isinstance(case.query, dict) and isinstance(case.query.get("wait"), float | int):
            case.query["wait"] = min(case.query["wait"], 0.05)
        case.call_and_validate(checks=list(CHECKS), timeout=30)

    attempt()
    assert tried >= 1
