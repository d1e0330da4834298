"""Jobs over a real socket: hand in, list, wait, cancel, remove."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Service

from llm4llm.kit import iso
from llm4llm.kit.clock import SystemClock
from llm4llm.sandbox.isolation import isolation
from llm4llm.schema.event import Event
from llm4llm.schema.job import JobStatus, StageName
from llm4llm.schema.reason import Reason

SCRIPT = b"import sys\nprint('ran', sys.argv[1:])\n"


@pytest.fixture
def http(service: Service) -> Any:
    with httpx.Client(base_url=service.url, timeout=30) as client:
        yield client


def hand_in(http: httpx.Client, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
    return http.post("/v1/jobs", files={"script": ("infer.py", SCRIPT)}, data=fields, headers=headers or {})


def happen(service: Service, job_id: str, text: str = "something", **facts: Any) -> None:
    store = service.store()
    try:
        store.events.add(Event(job=job_id, kind="trial", stage=StageName.EPISODE, text=text, facts=facts), iso(SystemClock().now()))
    finally:
        store.close()


def end(service: Service, job_id: str, status: JobStatus = JobStatus.SUCCEEDED) -> None:
    store, at = service.store(), iso(SystemClock().now())
    try:
        store.jobs.move(job_id, {JobStatus.QUEUED, JobStatus.RUNNING}, status, Reason(code="nothing_accepted", text="as tested"), at)
        store.events.add(Event(job=job_id, kind="decision", text=f"{status.value}: as tested"), at)
    finally:
        store.close()


def test_a_script_becomes_a_queued_job_with_everything_that_came_with_it(service: Service, http: httpx.Client) -> None:
    files = [
        ("script", ("src/infer.py", SCRIPT)),
        ("files", ("src/model/net.py", b"x = 1\n")),
        ("files", ("weights.bin", bytes(range(256)) * 9000)),
    ]
    fields = {"args": '["--size", "tiny"]', "environment": '{"OMP_NUM_THREADS": "2"}', "budget": "1m30s", "min_gain": "1.1"}
    answer = http.post("/v1/jobs", files=files, data=fields)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["status"], job["progress"], job["script"], job["spend"]["budget_seconds"]) == ("queued", 0.0, "infer.py", 90.0)
    store = service.store()
    try:
        request = store.jobs.get(job["id"]).request
        assert request.uploaded
        assert (request.script, request.arguments, request.min_gain) == ("src/infer.py", ("--size", "tiny"), 1.1)
        assert request.environment == {"OMP_NUM_THREADS": "2"}
        assert store.blobs.get(request.script_sha256) == SCRIPT
        contents = {file.path: store.blobs.get(file.sha256) for file in request.files}
        assert contents == {"src/model/net.py": b"x = 1\n", "weights.bin": bytes(range(256)) * 9000}
    finally:
        store.close()


def test_the_same_as_json(http: httpx.Client) -> None:
    body = {"script": "print(1)\n", "files": [{"path": "a/b.txt", "text": "é"}], "args": ["x"], "budget": 30}
    answer = http.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spend"]["budget_seconds"] == 30


def test_repeating_a_request_is_safe_and_another_body_is_refused(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"k-{time.monotonic_ns()}"}
    first, second = hand_in(http, headers, args='["a"]'), hand_in(http, headers, args='[ "a" ]')
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    other = hand_in(http, headers, args='["b"]')
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


def test_many_at_once_with_one_key_make_one_job(service: Service, http: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"race-{time.monotonic_ns()}"}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: hand_in(http, headers), range(24)))
    assert sorted(answer.status_code for answer in answers) == [200] * 23 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_pages_hold_every_job_once_newest_first(http: httpx.Client) -> None:
    made = [hand_in(http).json()["id"] for _ in range(5)]
    found, cursor = [], None
    while True:
        page = http.get("/v1/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(set(found)) == len(found)
    assert [job for job in found if job in made] == made[::-1]
    assert {job["status"] for job in http.get("/v1/jobs", params={"status": "queued"}).json()["jobs"]} == {"queued"}


def test_a_poll_costs_nothing_while_nothing_happens(service: Service, http: httpx.Client) -> None:
    job = hand_in(http).json()["id"]
    first = http.get(f"/v1/jobs/{job}")
    again = http.get(f"/v1/jobs/{job}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    happen(service, job, best=1.5, budget_left_s=100.0)
    changed = http.get(f"/v1/jobs/{job}", headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["best"]["module_speedup"]) == (200, 1.5)


def test_a_long_poll_is_answered_when_something_happens(service: Service, http: httpx.Client) -> None:
    job = hand_in(http).json()["id"]
    etag = http.get(f"/v1/jobs/{job}").headers["etag"]
    timer = threading.Timer(0.5, happen, (service, job))
    timer.start()
    began = time.monotonic()
    answer = http.get(f"/v1/jobs/{job}", params={"wait": 25}, headers={"If-None-Match": etag})
    timer.join()
    assert answer.status_code == 200
    assert answer.headers["etag"] != etag
    assert 0.4 < time.monotonic() - began < 20
    nothing = http.get(f"/v1/jobs/{job}", params={"wait": 0.3}, headers={"If-None-Match": answer.headers["etag"]})
    assert nothing.status_code == 304


def test_a_job_that_nobody_runs_is_cancelled_at_once(http: httpx.Client) -> None:
    job = hand_in(http).json()["id"]
    answer = http.post(f"/v1/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["status"], answer.json()["reason"]["code"]) == (202, "cancelled", "cancelled")
    assert http.post(f"/v1/jobs/{job}/cancel").json()["status"] == "cancelled"


def test_only_an_ended_job_is_removed_and_nothing_of_it_stays(service: Service, http: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"gone-{time.monotonic_ns()}"}
    job = hand_in(http, headers).json()["id"]
    refused = http.delete(f"/v1/jobs/{job}")
    assert (refused.status_code, refused.json()["code"]) == (409, "job_active")
    end(service, job)
    folder = service.home / "jobs" / job
    folder.mkdir(parents=True)
    (folder / "script.stdout").write_text("printed\n")
    assert http.get(f"/v1/jobs/{job}/logs", params={"stream": "stdout"}).text == "printed\n"
    assert http.delete(f"/v1/jobs/{job}").status_code == 204
    assert http.get(f"/v1/jobs/{job}").status_code == 404
    assert http.get(f"/v1/jobs/{job}/events").status_code == 404
    assert not folder.exists()
    assert hand_in(http, headers).status_code == 201


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    found, fields = [], {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        elif fields:
            if "data" in fields:
                found.append(fields)
            fields = {}
    return found


def test_events_are_streamed_until_the_end_and_can_be_resumed(service: Service, http: httpx.Client) -> None:
    job = hand_in(http).json()["id"]
    happen(service, job, "first")

    def go_on() -> None:
        time.sleep(0.7)
        happen(service, job, "second\nline")
        time.sleep(0.7)
        end(service, job)

    thread = threading.Thread(target=go_on)
    thread.start()
    with http.stream("GET", f"/v1/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events_of(answer)
    thread.join()
    assert [event["event"] for event in found] == ["trial", "trial", "decision", "end"]
    texts = [json.loads(event["data"]).get("text") for event in found[:3]]
    assert texts == ["first", "second\nline", "succeeded: as tested"]
    assert json.loads(found[3]["data"])["status"] == "succeeded"
    with http.stream("GET", f"/v1/jobs/{job}/events", headers={"Last-Event-ID": found[1]["id"]}) as answer:
        assert [event["event"] for event in events_of(answer)] == ["decision", "end"]


def test_results_of_a_job_without_any(service: Service, http: httpx.Client) -> None:
    job = hand_in(http).json()["id"]
    assert http.get(f"/v1/jobs/{job}/hotspots").json() == {"hotspots": []}
    assert http.get(f"/v1/jobs/{job}/candidates").json() == {"candidates": []}
    assert http.get(f"/v1/jobs/{job}/report").json()["job"]["id"] == job
    page = http.get(f"/v1/jobs/{job}/report", headers={"Accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert page.text == http.get(f"/v1/jobs/{job}/report", params={"format": "html"}).text
    waiting = http.get(f"/v1/jobs/{job}/bundle")
    assert (waiting.status_code, waiting.json()["code"]) == (409, "no_bundle")
    end(service, job)
    assert "as tested" in http.get(f"/v1/jobs/{job}/bundle").json()["detail"]
    happen(service, job, "said")
    assert "said" in http.get(f"/v1/jobs/{job}/logs").text


def test_the_service_says_what_it_offers_and_how_it_is(service: Service, http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    ready = http.get("/readyz").json()
    assert ready["database"] == ("postgresql" if service.database else "sqlite")
    assert ready["isolation"] == isolation().level
    assert "h200" in [target["name"] for target in http.get("/v1/targets").json()["targets"]]
    assert "seeds" in [agent["name"] for agent in http.get("/v1/agents").json()["agents"]]
    job = hand_in(http).json()["id"]
    http.get(f"/v1/jobs/{job}")
    figures = http.get("/metrics").text
    assert 'llm4llm_jobs{status="queued"}' in figures
    assert 'route="/v1/jobs/{job_id}"' in figures


def test_a_bundle_comes_whole_in_parts_and_with_its_hash(service: Service, http: httpx.Client) -> None:
    from llm4llm.kit import sha256_bytes
    from llm4llm.schema.run import StageRun

    job = hand_in(http).json()["id"]
    content = bytes(range(256)) * 1000
    store, at = service.store(), iso(SystemClock().now())
    try:
        sha256 = store.blobs.put(content)
        attempt = store.stages.start(job, StageName.BUNDLE, at)
        packed = {"bundle": {"sha256": sha256, "bytes": len(content), "patches": 1, "manifest_sha256": "0" * 64}}
        store.stages.finish(
            StageRun(job=job, stage=StageName.BUNDLE, attempt=attempt, status="finished", result=packed, started_at=at, ended_at=at)
        )
    finally:
        store.close()
    end(service, job)
    whole = http.get(f"/v1/jobs/{job}/bundle")
    assert whole.content == content
    assert whole.headers["x-checksum-sha256"] == sha256 == sha256_bytes(content)
    assert f'filename="bundle-{job}.zip"' in whole.headers["content-disposition"]
    part = http.get(f"/v1/jobs/{job}/bundle", headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, content[1000:2000])
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(content)}"
    beyond = http.get(f"/v1/jobs/{job}/bundle", headers={"Range": f"bytes={len(content)}-"})
    assert (beyond.status_code, beyond.json()["code"]) == (416, "range_not_satisfiable")
    store = service.store()
    try:
        path: Path = store.blobs.path(sha256)
    finally:
        store.close()
    path.unlink()
    assert http.get(f"/v1/jobs/{job}/bundle").json()["code"] == "blob_damaged"


def test_whatever_can_be_read_can_be_asked_for_its_head(http: httpx.Client) -> None:
    job = hand_in(http).json()["id"]
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/jobs", "/v1/targets", f"/v1/jobs/{job}", "/v1/jobs/job_0"):
        whole, head = http.get(path), http.head(path)
        assert (head.status_code, head.content, head.headers["content-type"]) == (whole.status_code, b"", whole.headers["content-type"])
    for tail in ("report", "logs", "hotspots", "candidates", "bundle"):
        assert http.head(f"/v1/jobs/{job}/{tail}").status_code == http.get(f"/v1/jobs/{job}/{tail}").status_code
    began = time.monotonic()
    assert http.head(f"/v1/jobs/{job}/events").status_code == 200
    assert time.monotonic() - began < 5
    wrong = http.put("/v1/jobs")
    assert (wrong.status_code, {"GET", "HEAD"} <= set(wrong.headers["allow"].split(", "))) == (405, True)
    assert http.head(f"/v1/jobs/{job}/cancel").status_code == 405
