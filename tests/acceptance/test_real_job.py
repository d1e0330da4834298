"""What the service is for: hand a real script in over HTTP, follow it, download the bundle, run the script with it."""

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from serving import COMMAND, REPOSITORY, Service, environment_of

from llm4llm.client import Client

MODEL = '''
import torch
from torch import nn


class RowByRow(nn.Module):
    """Scales and shifts one row after the other: right, and slow."""

    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.stack([(row * self.scale + self.shift).tanh() for row in x])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rows, self.last = nn.Linear(16, 64), RowByRow(64), nn.Linear(64, 8)

    def forward(self, x):
        return self.last(self.rows(self.first(x)))
'''
SCRIPT = """
import os, sys
import torch
from nets.model import Net

torch.manual_seed(0)
torch.set_num_threads(1)
net = Net().eval()
with torch.no_grad():
    for rows in (600, 700):
        print(rows, [round(value, 4) for value in net(torch.randn(rows, 16))[-1].tolist()])
print("arguments", sys.argv[1:], open("nets/words.txt").read().strip(), sorted(os.listdir(".")))
print("secrets", sorted(n for n in os.environ if "KEY" in n or n.startswith("LLM4LLM_")), os.environ["COLUMNS"], file=sys.stderr)
"""
SEED = '''"""All rows at once instead of one after the other."""


def forward(module, state, x):
    return (x * module.scale + module.shift).tanh()


def matches(module):
    return type(module).__name__ == "RowByRow"
'''
RUN = """
import sys
from llm4llm.settings import load_settings
from llm4llm.worker.local import run_job
job = run_job(sys.argv[1], load_settings(), lambda event: None)
print(job.status.value, job.reason.code, job.reason.text)
"""


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    """What is shipped, but with one seed, which fits the model above."""
    folder = tmp_path / "assets"
    seed = folder / "patches" / "all_rows" / "candidate.py"
    seed.parent.mkdir(parents=True)
    seed.write_text(SEED)
    for name in ("agents", "profiles", "migrations"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def run_job(service: Service, job: str, assets: Path) -> subprocess.CompletedProcess[str]:
    """Run the job in a process of its own, with a provider's key in its environment, as a worker has it."""
    more = {"OPENAI_API_KEY": "sk-made-up", "OMP_NUM_THREADS": "1", "LLM4LLM_ASSETS_DIR": str(assets)}
    environment = environment_of(service.home, service.database) | more
    return subprocess.run([sys.executable, "-c", RUN, job], env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.timeout(400)
def test_from_an_upload_over_events_to_a_bundle_that_works(service: Service, tmp_path: Path, assets: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "nets").mkdir(parents=True)
    (mine / "nets" / "model.py").write_text(MODEL)
    (mine / "nets" / "words.txt").write_text("from a file\n")
    script = mine / "infer.py"
    script.write_text(SCRIPT)
    with Client(service.url) as client:
        files = [mine / "nets" / "model.py", mine / "nets" / "words.txt"]
        job = client.submit(script, ["--size", "tiny"], files, budget="4m", environment={"COLUMNS": "77"})["id"]
        ended: list[subprocess.CompletedProcess[str]] = []
        thread = threading.Thread(target=lambda: ended.append(run_job(service, job, assets)))
        thread.start()
        events = list(client.events(job))
        thread.join()
        assert ended[0].stdout.startswith("succeeded accepted"), ended[0].stdout + ended[0].stderr
        stages = [event["data"]["stage"] for event in events if event["event"] == "stage_finished"]
        assert stages == ["capture", "profile", "task", "episode", "verdict", "acceptance", "bundle"]
        view = events[-1]["data"]
        assert (view["status"], view["progress"], view["reason"]["code"]) == ("succeeded", 1.0, "accepted")
        assert view["best"]["end_to_end_speedup"] > 1
        assert [spot["status"] for spot in client.hotspots(job) if spot["module_class"] == "RowByRow"] == ["accepted"]

        printed = client.logs(job, "stdout")
        assert printed.endswith("arguments ['--size', 'tiny'] from a file ['infer.py', 'nets']\n")
        assert client.logs(job, "stderr").strip().endswith("secrets [] 77")
        # whoever is asked for the output may be another machine than the one that ran the script
        (service.home / "jobs" / job / "script.stdout").unlink()
        assert client.logs(job, "stdout") == printed
        assert not (service.home / "jobs" / job / "work").exists()

    got = httpx.get(f"{service.url}/v1/jobs/{job}/bundle")
    assert hashlib.sha256(got.content).hexdigest() == got.headers["x-checksum-sha256"]
    bundle = tmp_path / "bundle.zip"
    bundle.write_bytes(got.content)
    patched = subprocess.run(
        [*COMMAND, "run", "--bundle", str(bundle), "infer.py", "--", "--size", "tiny"],
        env=environment_of(service.home, service.database) | {"COLUMNS": "77"}, cwd=mine, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert patched.returncode == 0, patched.stderr
    assert patched.stdout.split("arguments")[0] == printed.split("arguments")[0]
