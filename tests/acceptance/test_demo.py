"""The demo over HTTP, as the README shows it: serve, curl, events, bundle, run."""

import hashlib
import json
import subprocess
from pathlib import Path

import postgresql_server
import pytest
from serving import COMMAND, REPOSITORY, Service, environment_of, serving

SCRIPT = REPOSITORY / "examples" / "mamba_generate.py"
ARGUMENTS = ["--prompt-len", "320", "--new-tokens", "4"]
STAGES = ["capture", "profile", "task", "episode", "verdict", "acceptance", "bundle"]


def curl(*arguments: str, timeout: float = 60) -> str:
    done = subprocess.run(["curl", "-sS", "--fail-with-body", *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def the_demo(service: Service, folder: Path) -> None:
    jobs = f"{service.url}/v1/jobs"
    form = ["-F", f"script=@{SCRIPT}", "-F", f"args={json.dumps(ARGUMENTS)}", "-F", "budget=8m"]
    key = ["-H", "Idempotency-Key: the-demo"]
    job = json.loads(curl(*form, *key, jobs))["id"]
    assert json.loads(curl(*form, *key, jobs))["id"] == job

    streamed = curl("-N", f"{jobs}/{job}/events", timeout=500)
    kinds = [line.removeprefix("event: ").strip() for line in streamed.splitlines() if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")]
    finished = [one["stage"] for kind, one in zip(kinds, data, strict=True) if kind == "stage_finished"]
    assert finished == STAGES, data[-1]
    view = json.loads(curl(f"{jobs}/{job}"))
    assert (view["status"], view["reason"]["code"]) == ("succeeded", "accepted"), view
    assert view["best"]["end_to_end_speedup"] > 1.2

    bundle, headers = folder / "bundle.zip", folder / "headers"
    curl("-D", str(headers), "-o", str(bundle), f"{jobs}/{job}/bundle")
    told = dict(line.lower().split(": ", 1) for line in headers.read_text().splitlines() if ": " in line)
    assert hashlib.sha256(bundle.read_bytes()).hexdigest() == told["x-checksum-sha256"]
    environment = environment_of(service.home, service.database)
    plain, patched = (
        subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
        for command in ([COMMAND[0], str(SCRIPT), *ARGUMENTS], [*COMMAND, "run", "--bundle", str(bundle), str(SCRIPT), "--", *ARGUMENTS])
    )
    assert (patched.returncode, patched.stdout) == (0, plain.stdout), patched.stderr
    assert curl(f"{jobs}/{job}/logs?stream=stdout") == plain.stdout
    assert "<html" in curl("-H", "Accept: text/html", f"{jobs}/{job}/report").lower()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_submit_follow_download_and_run(kind: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if kind == "sqlite":
        with serving(home, "", "--workers", "1") as service:
            the_demo(service, tmp_path)
            assert service.stop() == 0
        return
    with (
        postgresql_server.started() as server,
        postgresql_server.database(server) as url,
        serving(home, url, "--workers", "1") as service,
    ):
        the_demo(service, tmp_path)
        assert service.stop() == 0
