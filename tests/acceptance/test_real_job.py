"""What the service is for: hand a real script in over HTTP, follow it, download the bundle, run the script with it."""

import hashlib
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
from serving import COMMAND, Service, environment_of

from llm4llm.client import Client

# A model whose hotspot has an obvious faster form lies in a file of its own, as uploaded files do.
MODEL = """
import torch

class RMSNorm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([RMSNorm(64) for _ in range(4)])

    def forward(self, x):
        for norm in self.norms:
            x = norm(x)
        return x
"""
SCRIPT = """
import os, sys
import torch
from nets.model import Net

torch.manual_seed(0)
net = Net().eval()
with torch.no_grad():
    for _ in range(3):
        out = net(torch.ones(4, 64))
print("arguments", sys.argv[1:], open("nets/words.txt").read().strip(), round(float(out.sum()), 3))
print("secrets", sorted(n for n in os.environ if "KEY" in n or n.startswith("LLM4LLM")), os.environ.get("OMP_NUM_THREADS"), file=sys.stderr)
print("here", sorted(os.listdir(".")))
"""
RUN = """
import sys
from llm4llm.settings import load_settings
from llm4llm.worker.local import run_job
job = run_job(sys.argv[1], load_settings(), lambda event: None)
print(job.status.value, job.reason.code, job.reason.text)
"""


def run_job(service: Service, job: str) -> str:
    """Run the job in a process of its own, as a worker does."""
    environment = environment_of(service.home, service.database) | {"OPENAI_API_KEY": "sk-made-up", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RUN, job], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_uploaded_script_runs_in_a_folder_of_its_own(service: Service, tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "model.py").write_text(MODEL)
    (tmp_path / "nets" / "words.txt").write_text("from a file\n")
    script = tmp_path / "infer.py"
    script.write_text(SCRIPT)
    with Client(service.url) as client:
        files = [tmp_path / "nets" / "model.py", tmp_path / "nets" / "words.txt"]
        job = client.submit(script, ["--size", "tiny"], files, budget=60, environment={"OMP_NUM_THREADS": "2"})["id"]
        ended: list[str] = []
        thread = threading.Thread(target=lambda: ended.append(run_job(service, job)))
        thread.start()
        events = list(client.events(job))
        thread.join()
        stages = [event["data"]["stage"] for event in events if event["event"] == "stage_finished"]
        assert stages[:2] == ["capture", "profile"]
        view = events[-1]["data"]
        assert (view["status"], view["progress"]) == ("succeeded", 1.0), ended
        assert client.logs(job, "stdout").startswith("arguments ['--size', 'tiny'] from a file ")
        assert "here ['infer.py', 'nets']" in client.logs(job, "stdout")
        assert client.logs(job, "stderr").strip().endswith("secrets [] 2")
        assert client.hotspots(job)
        assert client.report(job)["job"]["script_name"] == "infer.py"
        # whoever is asked for the output may be another machine than the one that ran the script
        (service.home / "jobs" / job / "script.stdout").unlink()
        assert client.logs(job, "stdout").startswith("arguments ")
        assert not (service.home / "jobs" / job / "work").exists()


def test_a_bundle_over_http_makes_the_script_run_patched(service: Service, tmp_path: Path) -> None:
    """The whole way for a script that is certain to be improved: its norms waste time on purpose, and a seed fits them."""
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(SLOW))
    answer = httpx.post(
        f"{service.url}/v1/jobs", files={"script": ("slow.py", script.read_bytes())}, data={"budget": "4m", "args": '["7"]'}
    )
    job = answer.json()["id"]
    said = run_job(service, job)
    assert said.startswith("succeeded accepted"), said
    got = httpx.get(f"{service.url}/v1/jobs/{job}/bundle")
    assert got.status_code == 200
    assert hashlib.sha256(got.content).hexdigest() == got.headers["x-checksum-sha256"]
    bundle = tmp_path / "b.zip"
    bundle.write_bytes(got.content)
    patched = subprocess.run(
        [*COMMAND, "run", "--bundle", str(bundle), str(script), "--", "7"],
        env=environment_of(service.home, service.database), cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert patched.returncode == 0, patched.stderr
    assert patched.stdout == httpx.get(f"{service.url}/v1/jobs/{job}/logs", params={"stream": "stdout"}).text
    assert json.loads(httpx.get(f"{service.url}/v1/jobs/{job}/report").text)["end_to_end"]["speedup"] > 1
