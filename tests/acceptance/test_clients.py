"""The Python client and the command line, against a real server."""

import json
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from serving import COMMAND, Service, environment_of, serving
from test_http_jobs import end, happen

import llm4llm
from llm4llm.client import Conflict, DownloadDamaged, NotAuthenticated, NotFound, Refused, ServerUnreachable
from llm4llm.errors import BadArguments, ScriptNotFound
from llm4llm.kit import iso
from llm4llm.kit.clock import SystemClock
from llm4llm.schema.job import JobStatus, StageName
from llm4llm.schema.reason import Reason
from llm4llm.schema.run import StageRun

Client = llm4llm.Client


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").write_text("x = 1\n")
    file = tmp_path / "infer.py"
    file.write_text("print('client')\n")
    return file


def packed(service: Service, job: str, content: bytes) -> str:
    """Give the job a bundle, as a worker would."""
    store, at = service.store(), iso(SystemClock().now())
    try:
        sha256 = store.blobs.put(content)
        attempt = store.stages.start(job, StageName.BUNDLE, at)
        result = {"bundle": {"sha256": sha256, "bytes": len(content), "patches": 1, "manifest_sha256": "0" * 64}}
        store.stages.finish(
            StageRun(job=job, stage=StageName.BUNDLE, attempt=attempt, status="finished", result=result, started_at=at, ended_at=at)
        )
    finally:
        store.close()
    end(service, job)
    return sha256


def test_from_submission_to_download_in_python(service: Service, script: Path, tmp_path: Path) -> None:
    with Client(service.url) as client:
        job = client.submit(script, ["--size", "tiny"], [script.parent / "model" / "net.py"], budget=60, environment={"LANG": "C"})
        assert client.job(job["id"])["status"] == "queued"
        assert job["id"] in [one["id"] for one in client.jobs(limit=500)]
        with pytest.raises(TimeoutError):
            client.wait(job["id"], timeout_s=0.3)
        with pytest.raises(Conflict) as raised:
            client.download(job["id"], tmp_path / "none.zip")
        assert raised.value.problem_code == "no_bundle"
        happen(service, job["id"], "tried")
        timer = threading.Timer(0.6, packed, (service, job["id"], b"bundle" * 1000))
        timer.start()
        seen = [event["event"] for event in client.events(job["id"])]
        timer.join()
        assert (seen[0], seen[-1]) == ("trial", "end")
        assert client.wait(job["id"])["status"] == "succeeded"
        assert client.download(job["id"], tmp_path / "sub" / "b.zip").read_bytes() == b"bundle" * 1000
        assert client.report(job["id"])["job"]["request"]["files"][0]["path"] == "model/net.py"
        assert client.hotspots(job["id"]) == client.candidates(job["id"]) == []
        assert "tried" in client.logs(job["id"])
        assert client.targets()
        assert client.agents()
        client.delete(job["id"])
        with pytest.raises(NotFound):
            client.job(job["id"])


def test_an_interrupted_download_goes_on_and_a_wrong_one_is_thrown_away(service: Service, script: Path, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    with Client(service.url) as client:
        job = client.submit(script)["id"]
        packed(service, job, content)
        place, part = tmp_path / "b.zip", tmp_path / "b.zip.part"
        part.write_bytes(content[:500_000])
        assert client.download(job, place).read_bytes() == content
        part.write_bytes(content)
        assert client.download(job, place).read_bytes() == content
        part.write_bytes(b"wrong" * 100)
        with pytest.raises(DownloadDamaged):
            client.download(job, place)
        assert not part.exists()
        assert client.download(job, place).read_bytes() == content


def test_typed_errors(service: Service, guarded: Service, script: Path, tmp_path: Path) -> None:
    with Client(service.url) as client:
        with pytest.raises(Refused) as raised:
            client.submit(script, target="abacus")
        assert (raised.value.status, raised.value.problem_code) == (422, "unknown_target")
        with pytest.raises(ScriptNotFound):
            client.submit(tmp_path / "nowhere.py")
        with pytest.raises(NotFound):
            client.job("../../etc/passwd")
    with Client(guarded.url, api_key="wrong") as client, pytest.raises(NotAuthenticated):
        client.job("job_0")
    with pytest.raises(BadArguments):
        Client("no address")


def test_nobody_listens(script: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with Client(url) as client, pytest.raises(ServerUnreachable, match="llm4llm serve"):
        client.job("job_0")


def test_a_stream_goes_on_at_another_server_process(tmp_path: Path, script: Path) -> None:
    """The first server is killed in the middle of the stream; the client takes it up at the second, on the same address."""
    seen: list[str] = []
    with serving(tmp_path) as first:
        url = first.url
        client = Client(url)
        job = client.submit(script)["id"]
        happen(first, job, "one")

        def follow() -> None:
            seen.extend(event["data"].get("text", "end") for event in client.events(job))

        waited: list[str] = []
        waiting = threading.Thread(target=lambda: waited.append(client.wait(job)["status"]))
        thread = threading.Thread(target=follow)
        for one in (thread, waiting):
            one.start()
        time.sleep(1.0)
        first.process.kill()
        first.process.wait()
    with serving(tmp_path, "", "--port", url.rpartition(":")[2]) as second:
        happen(second, job, "two")
        end(second, job)
        for one in (thread, waiting):
            one.join(60)
    client.close()
    assert waited == ["succeeded"]
    assert seen == ["one", "two", "succeeded: as tested", "end"]


def test_the_package_does_not_import_its_client_by_itself() -> None:
    import subprocess
    import sys

    code = "import llm4llm, sys; print('httpx' in sys.modules); llm4llm.Client; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_the_command_line_from_submission_to_download(service: Service, script: Path, tmp_path: Path) -> None:
    done = service.cli("submit", str(script), "--file", str(script.parent / "model" / "net.py"), "--budget", "1m", "--", "--size", "tiny")
    assert (done.returncode, done.stderr) == (0, "")
    job = done.stdout.strip()
    shown = json.loads(service.cli("status", job, "--json").stdout)
    assert (shown["status"], shown["spend"]["budget_seconds"]) == ("queued", 60)
    local = json.loads(service.cli("status", job, "--json", LLM4LLM_SERVER="").stdout)
    assert local.pop("stages") == []
    assert local == shown
    listed = [json.loads(line) for line in service.cli("jobs", "--json", "--limit", "500", LLM4LLM_SERVER="").stdout.splitlines()]
    assert shown in listed
    assert "queued" in service.cli("status", job).stdout
    assert job in service.cli("jobs").stdout
    assert job in [json.loads(line)["id"] for line in service.cli("jobs", "--json", "--limit", "500").stdout.splitlines()]
    none = service.cli("download", job)
    assert (none.returncode, "no bundle" in none.stderr) == (2, True)
    happen(service, job, "tried it")
    packed(service, job, b"content")
    assert "tried it" in service.cli("logs", job).stdout
    assert json.loads(service.cli("logs", job, "--stream", "stdout", "--json").stdout)["text"] == ""
    got = service.cli("download", job, "--out", str(tmp_path / "b.zip"))
    assert (got.returncode, got.stdout.strip()) == (0, str(tmp_path / "b.zip"))
    assert (tmp_path / "b.zip").read_bytes() == b"content"


def test_following_shows_stages_and_ends_with_the_job(service: Service, script: Path) -> None:
    def finish() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            waiting = [
                job["id"]
                for job in httpx.get(f"{service.url}/v1/jobs", params={"status": "queued"}).json()["jobs"]
                if job["script"] == "followed.py"
            ]
            if waiting:
                happen(service, waiting[0], "a trial")
                end(service, waiting[0])
                return
            time.sleep(0.1)

    followed = script.with_name("followed.py")
    followed.write_text("print(2)\n")
    thread = threading.Thread(target=finish)
    thread.start()
    done = service.cli("submit", str(followed), "--follow")
    thread.join()
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert "a trial" in done.stderr


def test_cancelling_and_what_goes_wrong_in_one_line(service: Service, script: Path) -> None:
    job = service.cli("submit", str(script)).stdout.strip()
    assert "cancelled" in service.cli("cancel", job).stdout
    broken = script.with_name("broken.py")
    broken.write_text("def f(:\n")
    for arguments, said in [
        (["submit", str(broken)], "line 1"),
        (["submit", str(script.with_name("nowhere.py"))], "nowhere.py"),
        (["submit", str(script), "--target", "abacus"], "abacus"),
        (["submit", str(script), "--env", "NAME"], "NAME=VALUE"),
        (["submit", str(script), "--env", "OPENAI_API_KEY=x"], "OPENAI_API_KEY"),
        (["status", "job_0"], "job_0"),
        (["cancel", "job_0"], "job_0"),
        (["download", "job_0"], "job_0"),
        (["logs", "job_0"], "job_0"),
    ]:
        done = service.cli(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (arguments, done.stderr)
        assert said in done.stderr


def test_no_server_says_how_to_start_one(tmp_path: Path, script: Path) -> None:
    import subprocess

    environment = environment_of(tmp_path, "") | {"LLM4LLM_SERVER": "http://127.0.0.1:9"}
    done = subprocess.run([*COMMAND, "submit", str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "llm4llm serve" in done.stderr


def test_a_key_from_the_environment(guarded: Service, script: Path) -> None:
    key = guarded.cli("keys", "create", "cli").stdout.strip()
    assert guarded.cli("submit", str(script)).returncode == 2
    done = guarded.cli("submit", str(script), LLM4LLM_API_KEY=key)
    assert done.returncode == 0, done.stderr


def test_brackets_in_an_error_and_in_a_name_are_shown_as_they_are(service: Service, script: Path) -> None:
    said = "[/foo] shapes [red]bad[/red] [0, 1]"
    with Client(service.url) as client:
        job = client.submit(script)["id"]
    store = service.store()
    try:
        assert store.jobs.move(
            job, (JobStatus.QUEUED,), JobStatus.FAILED, Reason(code="script_failed", text=said), iso(SystemClock().now())
        )
    finally:
        store.close()
    for options in ([], ["--server", service.url]):
        listed = service.cli("jobs", "--limit", "1", *options)
        assert listed.returncode == 0, listed.stderr
        assert said in " ".join(listed.stdout.split())
    assert service.cli("keys", "create", "[red]x[/nope]").returncode == 0
    keys = service.cli("keys", "list")
    assert keys.returncode == 0, keys.stderr
    assert "[red]x[/nope]" in keys.stdout


def test_status_finds_a_job_that_only_the_server_knows(service: Service, script: Path, tmp_path: Path) -> None:
    with Client(service.url) as client:
        job = client.submit(script)["id"]
    elsewhere = service.cli("status", job, LLM4LLM_HOME=str(tmp_path / "other"), LLM4LLM_DATABASE_URL="", LLM4LLM_SERVER=service.url)
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert job in elsewhere.stdout
