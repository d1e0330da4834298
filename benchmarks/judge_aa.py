"""The judge on the original against itself: how often does it call a copy of the same code faster?

    python benchmarks/judge_aa.py [--rounds 200] [--only tiny] [--out aa.json]      about four seconds per round and size
    python benchmarks/judge_aa.py --table aa.json ...                               docs/measurements/judge_aa.{json,md} from such files

Three modules whose call takes about 5 us, 50 us and 5 ms on a CPU core. The candidate of each is its own `forward`, word for word. Every
round is a whole verdict with all gates; inputs are drawn from another seed each time. What may not happen more often than once in a hundred
rounds: a 95 % interval whose low end lies above 1.02.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from llm4llm.sandbox import Sandbox
from llm4llm.schema.verdict import Passed
from llm4llm.stages.verdict.judging import KeptJudge
from llm4llm.worker.judge import judge_options
from llm4llm.worker.selftest import Corpus, recorded_tasks

FOLDER = Path(__file__).parents[1] / "docs" / "measurements"
LIMIT = 1.02
SIZES = {"Tiny": "about 5 us", "Small": "about 50 us", "Large": "about 5 ms"}
WORKLOAD = """
import argparse
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 64))

    def forward(self, x):
        return x * self.gain + 1.0

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 256))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = x * scale * self.weight
        return torch.sigmoid(y) * torch.tanh(y) + 0.5 * y

class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(512, 2048, bias=False)
        self.down = nn.Linear(2048, 512, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tiny, self.small, self.large = Tiny(), Small(), Large()

    def forward(self, a, b, c):
        return self.tiny(a).sum() + self.small(b).sum() + self.large(c).sum()

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float32")
parser.parse_args()
torch.manual_seed(0)
net = Net().eval()
with torch.inference_mode():
    for batch in (1, 2, 3):
        net(torch.randn(batch, 64), torch.randn(8 * batch, 256), torch.randn(32 * batch, 512))
print("done")
"""
BODIES = {
    "Tiny": "    return x * module.gain + 1.0\n",
    "Small": (
        "    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n    y = x * scale * module.weight\n"
        "    return torch.sigmoid(y) * torch.tanh(y) + 0.5 * y\n"
    ),
    "Large": "    return module.down(torch.nn.functional.silu(module.up(x)))\n",
}


def corpus(folder: Path) -> Corpus:
    (folder / "candidates").mkdir(parents=True)
    (folder / "workload.py").write_text(WORKLOAD)
    labels = {name: {"target": name, "label": "honest", "kind": "same"} for name in SIZES}
    (folder / "labels.json").write_text(json.dumps(labels))
    for name, body in BODIES.items():
        (folder / "candidates" / f"{name}.py").write_text(f"import torch\n\n\ndef forward(module, state, x):\n{body}")
    return Corpus.read(folder)


def measure(rounds: int, only: set[str]) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        made = corpus(Path(scratch) / "corpus")
        tasks = {task.module_class.rpartition(".")[2]: task for task in recorded_tasks(made, "float32", sys.executable, home).tasks}
        with Sandbox(home) as sandbox:
            for name in SIZES:
                if only and name.lower() not in only:
                    continue
                with KeptJudge(sandbox, sys.executable) as judge:
                    for number in range(rounds):
                        started = time.monotonic()
                        options = {**judge_options("cpu", 60.0, seed=number), "seconds": 1.0, "gate_seconds": 0.2}
                        verdict = judge(Path(str(tasks[name].folder)), made.folder / "candidates" / f"{name}.py", options)
                        row: dict[str, Any] = {"size": name, "outcome": verdict.outcome, "kind": verdict.kind, "load": os.getloadavg()[0]}
                        if isinstance(verdict, Passed) and verdict.timing is not None:
                            row |= {"speedup": verdict.speedup, "ci95": verdict.ci95, "ms": median(verdict.timing.baseline_ms)}
                        rows.append({**row, "seconds": time.monotonic() - started, "reason": verdict.reason})
                        print(f"{name} {number + 1}/{rounds}: {verdict.outcome} {row.get('speedup')} {row.get('ci95')}", flush=True)
    conditions = {"cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version(), "platform": platform.machine()}
    return {"conditions": conditions, "rows": rows}


def table(data: dict[str, Any]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in data["conditions"].items())
    lines = [
        "# The judge on the original against itself",
        "",
        "Generated by `benchmarks/judge_aa.py` from the data file beside it; do not edit by hand.",
        "",
        f"{facts}. Each round is a whole verdict on a candidate that is the original's own code. {data.get('remark', '')}",
        "",
        "| module, time per call | rounds | passed | interval's low end above 1.02 | above 1.00 | high end below 1.00 | speedup, median | 5 to 95 % of rounds | seconds per verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in SIZES:
        rows = [row for row in data["rows"] if row["size"] == name]
        timed = [row for row in rows if row.get("ci95")]
        if not timed:
            continue
        speedups = sorted(row["speedup"] for row in timed)
        low, high = speedups[int(0.05 * len(speedups))], speedups[int(0.95 * (len(speedups) - 1))]
        above = [sum(row["ci95"][0] > limit for row in timed) for limit in (LIMIT, 1.0)]
        below = sum(row["ci95"][1] < 1.0 for row in timed)
        passed = sum(row["outcome"] == "passed" for row in rows)
        lines.append(
            f"| {name}, {median(row['ms'] for row in timed):.4f} ms | {len(rows)} | {passed} | {above[0]} | {above[1]} | {below} "
            f"| {median(speedups):.3f} | {low:.3f} to {high:.3f} | {median(row['seconds'] for row in rows):.1f} |"
        )
    others = [row for row in data["rows"] if row["outcome"] != "passed"]
    lines += ["", *(f"Not passed: {row['size']}, {row['outcome']} ({row['kind']}): {row['reason']}" for row in others)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", action="append", default=[], choices=[name.lower() for name in SIZES])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--remark", default="")
    asked = parser.parse_args()
    if asked.table:
        parts = [json.loads(file.read_text()) for file in asked.table]
        data = {"conditions": parts[0]["conditions"], "remark": asked.remark, "rows": [row for part in parts for row in part["rows"]]}
        (FOLDER / "judge_aa.json").write_text(json.dumps(data, indent=1) + "\n")
        (FOLDER / "judge_aa.md").write_text(table(data))
        return
    data = measure(asked.rounds, set(asked.only))
    if asked.out:
        asked.out.write_text(json.dumps(data) + "\n")
    print(table(data))


if __name__ == "__main__":
    main()
