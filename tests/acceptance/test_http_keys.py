"""A server that requires keys: who may do what, how much, and what others see of it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from serving import Service

SCRIPT = {"script": ("infer.py", b"print(1)\n")}


def new_key(service: Service, *options: str, name: str = "test") -> dict[str, Any]:
    done = service.cli("keys", "create", name, "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def client(service: Service, key: dict[str, Any] | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key['key']}"} if key else {}
    return httpx.Client(base_url=service.url, headers=headers, timeout=30)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_nothing_without_a_key_but_health(guarded: Service) -> None:
    with client(guarded, None) as http:
        for path in ("/v1/jobs", "/v1/jobs/job_0", "/v1/jobs/job_0/events", "/v1/targets", "/metrics"):
            answer = http.get(path)
            assert code_of(answer) == (401, "not_authenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert code_of(http.post("/v1/jobs", files=SCRIPT)) == (401, "not_authenticated")
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        for wrong in ("Bearer nonsense", "Bearer", "Basic eDp5", "Bearer é".encode("latin-1").decode("latin-1")):
            assert code_of(http.get("/v1/jobs", headers=[(b"Authorization", wrong.encode("latin-1"))])) == (401, "not_authenticated")


def test_the_key_is_printed_once_and_stored_nowhere(guarded: Service) -> None:
    done = guarded.cli("keys", "create", "printed")
    secret = done.stdout.strip()
    assert secret.startswith("l4l_")
    assert len(secret) > 40
    assert secret not in done.stderr
    listed = guarded.cli("keys", "list").stdout
    assert "printed" in listed
    assert secret not in listed
    store = guarded.store()
    try:
        with store.engine.connect() as connection:
            rows = connection.exec_driver_sql("select * from api_keys").all()
    finally:
        store.close()
    assert secret not in str(rows)


def test_scopes(guarded: Service) -> None:
    reader, submitter = new_key(guarded, "--scope", "read"), new_key(guarded, "--scope", "submit")
    with client(guarded, reader) as http:
        assert code_of(http.post("/v1/jobs", files=SCRIPT)) == (403, "not_permitted")
        assert http.get("/v1/jobs").status_code == 200
        assert code_of(http.get("/metrics")) == (403, "not_permitted")
    with client(guarded, submitter) as http:
        assert http.post("/v1/jobs", files=SCRIPT).status_code == 201
        assert code_of(http.get("/v1/jobs")) == (403, "not_permitted")


def test_somebody_elses_job_does_not_exist_except_for_an_admin(guarded: Service) -> None:
    owner, other, admin = new_key(guarded), new_key(guarded), new_key(guarded, "--scope", "admin")
    with client(guarded, owner) as http:
        job = http.post("/v1/jobs", files=SCRIPT, headers={"Idempotency-Key": "same"}).json()["id"]
    with client(guarded, other) as http:
        unknown = http.get("/v1/jobs/job_00000000000000000").json()
        for tail in ("", "/events", "/hotspots", "/candidates", "/report", "/logs", "/bundle"):
            answer = http.get(f"/v1/jobs/{job}{tail}")
            assert code_of(answer) == (404, "unknown_job")
            assert answer.json()["detail"].replace(job, "job_00000000000000000") == unknown["detail"]
        assert code_of(http.post(f"/v1/jobs/{job}/cancel")) == (404, "unknown_job")
        assert code_of(http.delete(f"/v1/jobs/{job}")) == (404, "unknown_job")
        assert http.get("/v1/jobs").json()["jobs"] == []
        mine = http.post("/v1/jobs", files=SCRIPT, headers={"Idempotency-Key": "same"})
        assert mine.status_code == 201
        assert mine.json()["id"] != job
    with client(guarded, admin) as http:
        assert http.get(f"/v1/jobs/{job}").json()["status"] == "queued"
        assert job in [one["id"] for one in http.get("/v1/jobs").json()["jobs"]]
        assert http.get("/metrics").status_code == 200


def test_a_revoked_key_stops_working(guarded: Service) -> None:
    key = new_key(guarded)
    with client(guarded, key) as http:
        assert http.get("/v1/jobs").status_code == 200
        assert guarded.cli("keys", "revoke", key["id"]).returncode == 0
        deadline = time.monotonic() + 20
        while http.get("/v1/jobs").status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    unknown = guarded.cli("keys", "revoke", "key_0")
    assert (unknown.returncode, "keys list" in unknown.stderr) == (2, True)


def test_limits_of_a_key(guarded: Service) -> None:
    key = new_key(guarded, "--concurrent-jobs", "2", "--request-bytes", "20000", "--budget", "60s")
    with client(guarded, key) as http:
        assert code_of(http.post("/v1/jobs", files=SCRIPT, data={"budget": "61"})) == (422, "budget_too_large")
        large = {**SCRIPT, "files": ("data", bytes(30_000))}
        assert code_of(http.post("/v1/jobs", files=large, data={"budget": "60"})) == (413, "too_large")
        made = [http.post("/v1/jobs", files=SCRIPT, data={"budget": "60"}, headers={"Idempotency-Key": str(number)}) for number in range(3)]
        assert [answer.status_code for answer in made] == [201, 201, 429]
        assert code_of(made[2]) == (429, "too_many_jobs")
        assert int(made[2].headers["retry-after"]) > 0
        again = http.post("/v1/jobs", files=SCRIPT, data={"budget": "60"}, headers={"Idempotency-Key": "1"})
        assert (again.status_code, again.json()["id"]) == (200, made[1].json()["id"])
        http.post(f"/v1/jobs/{made[0].json()['id']}/cancel")
        assert http.post("/v1/jobs", files=SCRIPT, data={"budget": "60"}).status_code == 201


def test_the_limit_of_jobs_holds_for_requests_at_once(guarded: Service) -> None:
    with client(guarded, new_key(guarded, "--concurrent-jobs", "4")) as http, ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: http.post("/v1/jobs", files=SCRIPT).status_code, range(20)))
    assert sorted(answers) == [201] * 4 + [429] * 16


def test_too_many_requests(guarded: Service) -> None:
    key, other = new_key(guarded, "--rate", "0.5", "--burst", "3"), new_key(guarded)
    with client(guarded, key) as http, client(guarded, other) as elsewhere:
        answers = [http.get("/v1/jobs") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert code_of(answers[4]) == (429, "rate_limited")
        assert 1 <= int(answers[4].headers["retry-after"]) <= 4
        assert elsewhere.get("/v1/jobs").status_code == 200


def test_limits_that_make_no_sense(guarded: Service) -> None:
    for options in (("--rate", "0"), ("--burst", "0"), ("--concurrent-jobs", "-1"), ("--budget", "soon"), ("--scope", "everything")):
        done = guarded.cli("keys", "create", "x", *options)
        assert done.returncode == 2, options
        assert done.stderr.count("\n") == 1
    assert guarded.cli("keys", "create", "  ").returncode == 2


@pytest.mark.parametrize("origin", ["https://elsewhere.example"])
def test_a_web_page_with_a_key_is_welcome(guarded: Service, origin: str) -> None:
    with client(guarded, new_key(guarded)) as http:
        assert http.get("/v1/jobs", headers={"Origin": origin, "Host": "service.example"}).status_code == 200


def test_wrong_keys_are_limited_and_valid_ones_go_on(guarded: Service) -> None:
    key = new_key(guarded)
    with client(guarded, {"key": "l4l_wrong"}) as guessing, client(guarded, key) as http:
        answers = [guessing.get("/v1/jobs") for _ in range(100)]
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {401, 429}
        assert statuses.index(429) > 5
        limited = answers[statuses.index(429)]
        assert code_of(limited) == (429, "rate_limited")
        assert int(limited.headers["retry-after"]) >= 1
        assert http.get("/v1/jobs").status_code == 200
        time.sleep(1.1)
        assert guessing.get("/v1/jobs").status_code == 401
