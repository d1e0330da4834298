"""The life of a server: how it starts, what it refuses to be, how it ends."""

import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import postgresql_server
import pytest
from serving import COMMAND, environment_of, serving

SCRIPT = {"script": ("infer.py", b"print(1)\n")}


def refused(home: Path, *options: str) -> str:
    done = subprocess.run(
        [*COMMAND, "serve", "--workers", "0", *options], env=environment_of(home, ""), cwd=home, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_a_server_that_strangers_could_reach_asks_for_keys(tmp_path: Path) -> None:
    assert "--require-keys" in refused(tmp_path, "--host", "0.0.0.0", "--port", "0")
    assert "--require-keys" in refused(tmp_path, "--host", "::", "--port", "0")


def test_a_port_that_is_taken_and_an_address_that_is_not_ours(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        port = service.url.rpartition(":")[2]
        assert "--port" in refused(tmp_path, "--port", port)
    assert "can't be had" in refused(tmp_path, "--host", "203.0.113.7", "--require-keys", "--without-isolation")


def test_a_server_beyond_loopback_with_keys(tmp_path: Path) -> None:
    with serving(tmp_path, "", "--host", "0.0.0.0", "--require-keys", "--without-isolation") as service:
        url = service.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/jobs").status_code == 401
        assert "keys are required" in "".join(service.said)


def test_without_keys_it_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert "API keys are off" in "".join(service.said)


def test_the_database_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    with serving(tmp_path):
        assert (tmp_path / "llm4llm.sqlite3").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_streams_and_waiting_polls_and_ends_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as service:
        job = httpx.post(f"{service.url}/v1/jobs", files=SCRIPT).json()["id"]
        ends: dict[str, object] = {}

        def stream() -> None:
            with httpx.stream("GET", f"{service.url}/v1/jobs/{job}/events", timeout=60) as answer:
                ends["stream"] = "".join(answer.iter_text())

        def poll() -> None:
            ends["poll"] = httpx.get(f"{service.url}/v1/jobs/{job}", params={"wait": 60}, timeout=90).status_code

        threads = [threading.Thread(target=stream), threading.Thread(target=poll)]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        assert ends == {}
        service.process.send_signal(number)
        assert service.process.wait(30) == 0
        for thread in threads:
            thread.join(10)
        assert "event: end" not in str(ends["stream"])
        assert ends["poll"] == 200


def test_jobs_are_still_there_after_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        headers = {"Idempotency-Key": "before"}
        job = httpx.post(f"{service.url}/v1/jobs", files=SCRIPT, headers=headers).json()["id"]
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(30)
    with serving(tmp_path) as service:
        assert httpx.get(f"{service.url}/v1/jobs/{job}").json()["status"] == "queued"
        again = httpx.post(f"{service.url}/v1/jobs", files=SCRIPT, headers=headers)
        assert (again.status_code, again.json()["id"]) == (200, job)


def test_servers_that_start_at_once_migrate_once(tmp_path: Path, postgresql: str) -> None:

    with postgresql_server.database(postgresql) as database, ExitStack() as running:
        urls: list[str] = []

        def start() -> None:
            urls.append(running.enter_context(serving(tmp_path, database)).url)

        threads = [threading.Thread(target=start) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        job = httpx.post(f"{urls[0]}/v1/jobs", files=SCRIPT).json()["id"]
        assert httpx.get(f"{urls[1]}/v1/jobs/{job}").json()["id"] == job


def test_a_bucket_holds_what_is_uploaded(tmp_path: Path) -> None:
    """`local://` goes through the bucket's code on a file system of fsspec's own."""
    bucket = tmp_path / "bucket"
    with serving(tmp_path, "", LLM4LLM_BLOB_ROOT=f"local://{bucket}") as service:
        assert httpx.post(f"{service.url}/v1/jobs", files=SCRIPT).status_code == 201
        (stored,) = [path for path in bucket.rglob("*") if path.is_file()]
        assert stored.read_bytes() == SCRIPT["script"][1]


def test_a_database_that_goes_away_is_a_503_and_the_process_stays(tmp_path: Path) -> None:
    with ExitStack() as database, ExitStack() as running:
        url = database.enter_context(postgresql_server.started())
        service = running.enter_context(serving(tmp_path, url))
        job = httpx.post(f"{service.url}/v1/jobs", files=SCRIPT).json()["id"]
        assert httpx.get(f"{service.url}/readyz").status_code == 200
        database.close()
        for path in ("/readyz", f"/v1/jobs/{job}", "/v1/jobs", f"/v1/jobs/{job}/events", f"/v1/jobs/{job}/report"):
            answer = httpx.get(service.url + path)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
            assert int(answer.headers["retry-after"]) > 0
        refused = httpx.post(f"{service.url}/v1/jobs", files=SCRIPT, data={"args": '["other"]'})
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert httpx.get(f"{service.url}/healthz").status_code == 200


def test_a_request_can_not_forge_a_line_of_the_log(tmp_path: Path) -> None:
    with serving(tmp_path, LLM4LLM_LOG_LEVEL="info") as service:
        assert httpx.get(f"{service.url}/x%0A2026-01-01T00:00:00.000+00:00%20info%20forged%1b%5b2J").status_code == 404
        assert service.stop() == 0
    lines = [line for line in service.said if "forged" in line]
    assert len(lines) == 1
    assert "GET /x 2026" in lines[0] or "GET /x\\n2026" in lines[0]
    assert "\\x1b[2J" in lines[0]
    assert all(line.rstrip("\n").isprintable() for line in service.said)
