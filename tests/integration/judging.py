"""What the judge's tests share: task folders of the corpus's modules, and a judge in this process whose candidates are real processes."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from llm4llm.harness import taskfile
from llm4llm.harness.ambient import Ambient, Randomness
from llm4llm.harness.judge import Judge
from llm4llm.harness.values import kept_by, restore, snapshot

CORPUS = Path(__file__).parent.parent / "judge_corpus"
REPOSITORY = CORPUS.parent.parent
NAME = "judge_corpus_modules"
COMPILE = """
import json, sys
from pathlib import Path
from llm4llm.harness.kernels import compile_for
wanted = json.loads(sys.stdin.read())
print(json.dumps(compile_for(Path(wanted["candidate"]), wanted["launches"], wanted["capability"])))
"""


def corpus_modules() -> Any:
    """tests/judge_corpus/modules.py under a name that candidate processes can import as well."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, CORPUS / "modules.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[NAME]


def write_task(folder: Path, module: torch.nn.Module, calls: list[tuple[Any, Any]], importable: Path) -> Path:
    """A task folder from a module and (args, kwargs) pairs; the original is run for the references."""
    records, references = [], []
    with torch.no_grad():
        ambient = Ambient.now().to_json()
        for args, kwargs in calls:
            own = copy.deepcopy(module)
            given, named, kept = snapshot((args, kwargs, kept_by(own)))
            records.append({"args": given, "kwargs": named, "kept": kept, "phase": "forward", "rng": Randomness.now(), "instance": "m"})
            args, kwargs, kept = snapshot((args, kwargs, kept))
            restore(own, kept)
            result = type(own).forward(own, *args, **kwargs)
            references.append({"result": result, "args": args, "kwargs": kwargs, "kept": kept_by(own)})
    facts = {
        "schema_version": 1, "id": folder.name, "hotspot": "h_1", "module_class": type(module).__name__, "module_path": "m", "root": "r0",
        "phase": "forward", "share": 0.5, "family": "f", "calls": len(calls), "device": "cpu", "dtypes": ["float32"], "target": "cpu",
    }  # fmt: skip
    taskfile.write_task(folder, facts, module, records, references, ambient, [str(importable)])
    return folder


def corpus_task(root: Path, kind: str, dtype: torch.dtype = torch.float32) -> Path:
    """The task of one of the corpus's modules."""
    modules = corpus_modules()
    place = root / "importable"
    place.mkdir(exist_ok=True)
    (place / f"{NAME}.py").write_text((CORPUS / "modules.py").read_text())
    which = getattr(modules, kind)
    return write_task(root / f"{kind}-{dtype}".replace("torch.", ""), modules.made(which, dtype), modules.calls_of(which, dtype), place)


class Starter:
    """Starts the processes that a judge asks for, with plain subprocesses and no limits."""

    def __init__(self) -> None:
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.purposes: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        if "spawn" in event:
            wanted = event["spawn"]
            self.purposes.append(wanted["purpose"])
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **wanted["environment"]}
            command = [sys.executable, "-m", wanted["module"]]
            self.children[wanted["socket"]] = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        elif "reap" in event:
            child = self.children.pop(event["reap"]["socket"], None)
            if child is not None:
                ended = child.poll()
                child.kill()
                child.wait()
                fate = {"kind": "died", "reason": f"the process ended with exit code {ended}", "exit_code": ended, "stderr_tail": ""}
                Path(event["reap"]["socket"]).with_suffix(".fate").write_text(json.dumps(fate))
        elif "compile" in event:
            self._compile(event["compile"])

    @staticmethod
    def _compile(wanted: dict[str, Any]) -> None:
        facts = json.dumps({key: wanted[key] for key in ("candidate", "launches", "capability")})
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRITON_INTERPRET": "0"}
        command = [sys.executable, "-c", COMPILE]
        done = subprocess.run(command, env=environment, input=facts, capture_output=True, text=True, timeout=120, check=False)
        answer = {"ok": json.loads(done.stdout)} if done.returncode == 0 else {"reason": done.stderr[-500:]}
        Path(wanted["reply"]).write_text(json.dumps(answer))


class Court:
    """A judge in this process that keeps its last task ready, as the product's does during an episode."""

    def __init__(self) -> None:
        self._starter = Starter()
        self._judge = Judge(self._starter)

    def judged(self, task: Path, candidate: Path, **options: Any) -> dict[str, Any]:
        """A verdict. Raises Refused for unusable input."""
        threads = torch.get_num_threads()
        try:
            return self._judge.judge({"task": str(task), "candidate": str(candidate), "options": {"measure": False, **options}})
        finally:
            torch.set_num_threads(threads)
            assert not self._starter.children, "every process is ended with its judgement"


def judged(task: Path, candidate: Path, **options: Any) -> dict[str, Any]:
    """A verdict by a judge in this process."""
    return Court().judged(task, candidate, **options)
