"""How the service answers under load: 200 clients that poll one running job, and 500 submissions, on SQLite and PostgreSQL.

    python benchmarks/service_load.py --out docs/measurements/service_load.json

Server, clients, database and the writer that stands for the running job's worker share this machine's cores; say `taskset -c 0,1` for two.
The writer stores an event every 100 ms, as a busy job does. Polls are paced (each client asks once per interval, like one that watches a
job) and then unpaced (each asks again at once), and paced once more while a worker runs examples/mamba_generate.py through the whole loop.
Latency is what the client sees, from its first byte sent to its last byte received.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # the tests know how to start a PostgreSQL

import postgresql_server  # noqa: E402

COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()", "serve", "--port", "0", "--workers"]
WRITER = """
import sys, time
from llm4llm.kit import SystemClock, iso
from llm4llm.schema.event import Event
from llm4llm.schema.job import JobStatus, StageName
from llm4llm.settings import load_settings
from llm4llm.store import open_store
settings, job, clock = load_settings(), sys.argv[1], SystemClock()
store = open_store(settings.database, settings.blobs)
store.jobs.move(job, {JobStatus.QUEUED}, JobStatus.RUNNING)
store.jobs.enter(job, StageName.EPISODE)
store.stages.start(job, StageName.EPISODE, iso(clock.now()))
print("running", flush=True)
count = 0
while True:
    time.sleep(0.1)
    count += 1
    store.events.add(Event(job=job, kind="trial", stage=StageName.EPISODE, text=f"trial {count}", facts={"budget_left_s": 100.0}), iso(clock.now()))
"""


class Connection:
    """One HTTP/1.1 connection that is kept: little enough code that the client does not use up the cores."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port

    async def __aenter__(self) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        if body:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", answer)[1])  # type: ignore[index]
        return int(answer[9:12]), await self.reader.readexactly(length)


def summed(latencies: list[float], seconds: float, errors: int) -> dict[str, Any]:
    ordered = sorted(latencies)
    at = {f"p{share}_ms": round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 2) for share in (50, 90, 99)}
    return {
        "answers": len(ordered),
        "per_second": round(len(ordered) / seconds, 1),
        **at,
        "max_ms": round(1e3 * ordered[-1], 2),
        "errors": errors,
    }


async def poll(url: str, job: str, pollers: int, seconds: float, interval: float) -> dict[str, Any]:
    latencies: list[float] = []
    errors = 0
    connected = asyncio.Barrier(pollers)

    async def one(seed: int) -> None:
        nonlocal errors
        async with Connection(url) as connection:
            await connected.wait()
            end = time.perf_counter() + seconds
            await asyncio.sleep(random.Random(seed).random() * interval)
            due = time.perf_counter()
            while due < end:
                began = time.perf_counter()
                status, _ = await connection.ask("GET", f"/v1/jobs/{job}")
                latencies.append(time.perf_counter() - began)
                errors += status != 200
                due = max(due + interval, time.perf_counter()) if interval else time.perf_counter()
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    began = time.perf_counter()
    await asyncio.gather(*(one(seed) for seed in range(pollers)))
    return {"pollers": pollers, "interval_s": interval, **summed(latencies, time.perf_counter() - began, errors)}


async def submit(url: str, jobs: int, at_once: int) -> dict[str, Any]:
    latencies: list[float] = []
    errors = 0
    numbers = iter(range(jobs))

    async def one() -> None:
        nonlocal errors
        async with Connection(url) as connection:
            for number in numbers:
                body = json.dumps({"script": f"import torch\nprint(torch.ones({number + 1}))\n"}).encode()
                began = time.perf_counter()
                status, _ = await connection.ask("POST", "/v1/jobs", body, "application/json")
                latencies.append(time.perf_counter() - began)
                errors += status != 201

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return {"at_once": at_once, **summed(latencies, time.perf_counter() - began, errors)}


@contextlib.contextmanager
def served(environment: dict[str, str], workers: int = 0) -> Iterator[str]:
    with subprocess.Popen([*COMMAND, str(workers)], env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "listening on" in line:
                    yield line.split()[-1]
                    return
            raise SystemExit("the server did not start")
        finally:
            process.terminate()
            process.wait(30)


def measured(database: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        environment = environment_of(home, database)
        with served(environment) as url:
            submissions = asyncio.run(submit(url, options.jobs, options.at_once))

            async def first() -> str:
                async with Connection(url) as connection:
                    body = b'{"script": "print(1)"}'
                    return str(json.loads((await connection.ask("POST", "/v1/jobs", body, "application/json"))[1])["id"])

            job = asyncio.run(first())
            with subprocess.Popen([sys.executable, "-c", WRITER, job], env=environment, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                assert writer.stdout.readline().strip() == "running"
                paced = asyncio.run(poll(url, job, options.pollers, options.seconds, options.interval))
                unpaced = asyncio.run(poll(url, job, options.pollers, options.seconds, 0.0))
                writer.kill()
    return {"submissions": submissions, "paced_polls": paced, "unpaced_polls": unpaced}


def at_work(database: str, options: argparse.Namespace) -> dict[str, Any]:
    """The same polls while a worker is busy, on an empty database."""
    with tempfile.TemporaryDirectory() as home, served(environment_of(home, database), workers=1) as url:
        return {"polls_during_a_job": asyncio.run(during_a_job(url, options))}


def environment_of(home: str, database: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLM4LLM_")}
    return kept | {"LLM4LLM_HOME": home, "LLM4LLM_DATABASE_URL": database, "PYTHONPATH": str(ROOT)}


async def during_a_job(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Paced polls of a job that a worker is at; the share of them that found it running is stored too."""
    async with Connection(url) as connection:
        body = json.dumps({"script": (ROOT / "examples" / "mamba_generate.py").read_text(), "budget": "10m"}).encode()
        job = str(json.loads((await connection.ask("POST", "/v1/jobs", body, "application/json"))[1])["id"])

        async def status() -> str:
            return str(json.loads((await connection.ask("GET", f"/v1/jobs/{job}"))[1])["status"])

        while await status() == "queued":
            await asyncio.sleep(0.2)
        result = await poll(url, job, options.pollers, options.seconds, options.interval)
        result["job_afterwards"] = await status()
        await connection.ask("POST", f"/v1/jobs/{job}/cancel")
        while await status() == "running":
            await asyncio.sleep(0.2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the service under load.")
    parser.add_argument("--pollers", type=int, default=200)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two polls of one client")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.only != "postgresql":
        results["sqlite"] = measured("", options) | at_work("", options)
        show("sqlite", results["sqlite"])
    if options.only != "sqlite":
        with postgresql_server.started() as server, postgresql_server.database(server) as database:
            results["postgresql"] = measured(database, options)
            with postgresql_server.database(server) as empty:
                results["postgresql"] |= at_work(empty, options)
            show("postgresql", results["postgresql"])
    conditions = {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "shared_by": "server, clients, database, and the writer of events or the worker",
    }
    if options.out:
        options.out.write_text(json.dumps({"conditions": conditions, "results": results}, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(table(conditions, results, options))


def table(conditions: dict[str, Any], results: dict[str, Any], options: argparse.Namespace) -> str:
    words = {
        "submissions": f"{options.jobs} submissions of different scripts, {options.at_once} at once",
        "paced_polls": f"{options.pollers} clients poll a running job, each every {options.interval:g} s",
        "unpaced_polls": f"{options.pollers} clients poll a running job, each again at once (saturated)",
        "polls_during_a_job": f"{options.pollers} clients poll a job that a worker is at, each every {options.interval:g} s",
    }
    lines = [
        "# The service under load",
        "",
        "Generated by `benchmarks/service_load.py` together with the data file beside it; do not edit by hand.",
        "",
        f"{conditions['cores']} cores ({conditions['machine']}, Python {conditions['python']}), shared by {conditions['shared_by']}.",
        "Latency as the client sees it. A submission includes the syntax check, in a process of its own, of a script not met before.",
        "",
        "| database | load | per second | p50 | p90 | p99 | largest | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for database, result in results.items():
        for name, figures in result.items():
            times = " | ".join(f"{figures[key]:.1f} ms" for key in ("p50_ms", "p90_ms", "p99_ms", "max_ms"))
            lines.append(
                f"| {database} | {words[name]} | {figures['per_second']:.1f} | {times} | {figures['errors']} of {figures['answers']} |"
            )
    return "\n".join(lines) + "\n"


def show(database: str, result: dict[str, Any]) -> None:
    for name, figures in result.items():
        print(
            f"{database:<11}{name:<15}{figures['per_second']:>8.1f}/s  p50 {figures['p50_ms']:>8.2f} ms  p99 {figures['p99_ms']:>8.2f} ms"
            f"  max {figures['max_ms']:>8.2f} ms  {figures['answers']} answers, {figures['errors']} errors",
            flush=True,
        )


if __name__ == "__main__":
    main()
