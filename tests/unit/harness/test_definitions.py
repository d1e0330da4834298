"""Classes of a script are rebuilt in another process without running the script."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

WRITE = """
from __future__ import annotations

def write(module, args, folder, result=None):
    import sys
    from pathlib import Path
    import torch
    from llm4llm.harness import taskfile, values
    from llm4llm.harness.ambient import Ambient, Randomness
    from llm4llm.harness.pickling import NotCarried
    kept = values.snapshot(values.kept_by(module))
    inputs = values.snapshot(args)
    call = {"args": inputs, "kwargs": {}, "kept": kept, "phase": "forward", "rng": Randomness.now(), "instance": ""}
    with torch.no_grad():
        result = type(module).forward(module, *args)
    after = {"result": result, "args": args, "kwargs": {}, "kept": values.snapshot(values.kept_by(module))}
    try:
        taskfile.write_task(Path(folder), {"id": "t_1"}, module, [call], [after], Ambient.now().to_json(), sys.path)
    except NotCarried as error:
        print("REFUSED", error)
"""

READ = """
import inspect, sys
from pathlib import Path
import torch
from llm4llm.harness import taskfile, values
from llm4llm.harness.nested import equal
task = taskfile.read_task(Path(sys.argv[1]))
references = taskfile.read_references(Path(sys.argv[1]), task.module)
call = values.snapshot(task.calls[0])
with torch.no_grad():
    result = type(task.module).forward(task.module, *call["args"])
print("SAME", equal(result, references[0]["result"]), equal(call["args"], references[0]["args"]))
"""


def run(folder: Path, code: str, *arguments: str, name: str = "script.py") -> str:
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(textwrap.dedent(code))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def carried(tmp_path: Path, script: str, read: str = "") -> str:
    """Run a script that writes a task, throw the script's own folder away, read the task elsewhere; what was printed there."""
    own, elsewhere, task = tmp_path / "own", tmp_path / "elsewhere", tmp_path / "task"
    own.mkdir(exist_ok=True)
    said = run(own, WRITE + textwrap.dedent(script).replace("TASK", repr(str(task))))
    if "REFUSED" in said:
        return said
    for path in own.rglob("*.py"):
        path.unlink()  # the folder must be enough
    elsewhere.mkdir(exist_ok=True)
    return run(elsewhere, READ + textwrap.dedent(read), str(task), name="read.py")


MODEL = """
import enum
import functools
import math
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

DTYPE = torch.float32
SCALE = math.sqrt(2.0)
TABLE = torch.arange(4.0)
Point = namedtuple("Point", "x y")
act = lambda x: torch.tanh(x) * SCALE
LOG = open("log.txt", "w")
VERBOSE = len(sys.argv) > 5
BIG = nn.Linear(4, 4)


class Mode(enum.Enum):
    FAST = 1


@dataclass
class Config:
    width: int = 4
    origin: Point = field(default_factory=lambda: Point(1, 2))


DEFAULT = Config(4)


def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner


if torch.cuda.is_available() or True:
    class Base(nn.Module):
        mode = Mode.FAST
else:
    class Base:
        pass

try:
    import package_that_nobody_has as extra
except ImportError:
    extra = None


class Cache:
    def __init__(self):
        self.rows = []

    def append(self, row):
        self.rows.append(row)
        return torch.stack(self.rows).sum(0)


class Block(Base):
    fallback: Config = DEFAULT

    def __init__(self, config=DEFAULT):
        super().__init__()
        self.proj = nn.Linear(config.width, config.width, dtype=DTYPE)
        self.config = config
        self.register_buffer("steps", torch.ones(4))

    @logged
    def forward(self, x, cache):
        if VERBOSE:
            print(x, file=LOG)
        y = act(self.proj(x)) * TABLE + self.config.origin.x + self.fallback.width
        if self.mode is Mode.FAST and extra is None:
            y = y * 3
        return cache.append(y)

    def note(self):
        LOG.write("x")


def main():
    torch.manual_seed(0)
    block = Block()
    block.register_forward_pre_hook(lambda module, args: None)
    BIG(torch.ones(4))
    cache = Cache()
    cache.append(torch.ones(2, 4))
    write(block, (torch.randn(2, 4), cache), TASK)


print("the script runs")
main()
sys.exit(0)
"""


def test_classes_constants_and_values_of_main_come_back(tmp_path: Path) -> None:
    read = """
    block = task.module
    print("HOOKS", len(block._forward_pre_hooks), block.training)
    print("NAMES", type(block).__module__, type(block).__qualname__, type(call["args"][1]).__name__)
    print(inspect.getsource(type(block)).splitlines()[0], inspect.getsourcelines(type(block))[1])
    try:
        block.note()
    except NameError as error:
        print("NAMED", error)
    import pickle
    print("AGAIN", pickle.loads(pickle.dumps(block.config)) == block.config, block.config is block.fallback)
    """
    said = carried(tmp_path, MODEL, read)
    assert "SAME True True" in said
    assert "the script runs" not in said
    assert "HOOKS 0 True" in said
    assert "NAMES __main__ Block Cache" in said
    line = (WRITE + MODEL).splitlines().index("class Block(Base):") + 1
    assert f"class Block(Base): {line}" in said
    assert "NAMED 'LOG' of the script is not part of this task" in said
    assert "AGAIN True" in said
    index = json.loads((tmp_path / "task" / "definitions.json").read_text())["modules"]["__main__"]
    assert "main" not in index["definitions"]  # only what the module needs travels
    assert "BIG" not in {*index["values"], *index["missing"]}
    assert set(index["missing"]) == {"LOG"}
    assert {"act", "Point"} == set(index["assigned"])


def test_modules_beside_the_script_travel_with_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "parts").mkdir(parents=True)
    (own / "settings.py").write_text("import torch\nWIDTH = 4\nLIVE = {'gain': 1.0}\nprint('settings run')\n")
    (own / "parts" / "__init__.py").write_text("from .norm import Norm\nprint('parts run')\n")
    (own / "parts" / "norm.py").write_text(
        "import torch\nfrom torch import nn\nimport settings\nfrom .tools import gain\n\n"
        "class Norm(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.rand(settings.WIDTH))\n"
        "    def forward(self, x):\n        return x * self.weight * gain(x)\n"
    )
    (own / "parts" / "tools.py").write_text("def gain(x):\n    import settings\n    return settings.LIVE['gain'] + x.shape[-1]\n")
    script = """
    import torch
    import parts, settings
    settings.LIVE["gain"] = 2.5
    model = parts.Norm()
    write(model, (torch.ones(2, 4),), TASK)
    """
    said = carried(tmp_path, script, 'print("HOME", type(task.module).__module__, inspect.getsource(type(task.module)).split()[1])')
    assert "SAME True True" in said
    assert "run" not in said
    assert "HOME parts.norm Norm(nn.Module):" in said


REFUSED = {
    "local": "class make.<locals>.Local of __main__ is defined inside a function",
    "lambda": "a lambda at",
    "rebound": "__main__.Rebound names something else by now",
    "generator": "generator",
    "scripted": "TorchScript",
}


def test_what_can_not_be_carried_is_refused_by_name(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        import torch
        from torch import nn
        from llm4llm.harness import pickling
        from llm4llm.harness.definitions import Carried

        class Block(nn.Module):
            def __init__(self, extra=None):
                super().__init__()
                self.extra = extra

        class Rebound(nn.Module):
            pass

        def make():
            class Local(nn.Module):
                pass
            return Local()

        rebound = Rebound()
        Rebound = None
        cases = {
            "local": make(),
            "lambda": Block([lambda x: x]),
            "rebound": rebound,
            "generator": Block(row for row in range(3)),
            "scripted": Block(torch.jit.script(nn.Linear(2, 2))),
        }
        for name, module in cases.items():
            try:
                pickling.save(module, name + ".pkl", Carried())
                print(name, "was saved")
            except pickling.NotCarried as error:
                print(name, error)
        """,
    )
    found = dict(line.split(" ", 1) for line in said.splitlines())
    assert found.keys() == REFUSED.keys()
    assert [name for name, words in REFUSED.items() if words not in found[name]] == []


def test_forwards_that_the_script_put_on_submodules_travel(tmp_path: Path) -> None:
    script = """
    import types, torch
    from torch import nn

    def other(self, x):
        return x * self.factor

    class Inner(nn.Module):
        factor = 3
        def forward(self, x):
            return x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.inner.forward = types.MethodType(other, self.inner)
        def forward(self, x):
            return self.inner(x)

    write(Outer(), (torch.ones(3),), TASK)
    """
    said = carried(tmp_path, script, 'print("OWNER", task.module.inner.forward.__self__ is task.module.inner, result)')
    assert "SAME True True" in said
    assert "OWNER True tensor([3., 3., 3.])" in said


def test_a_definition_that_fails_to_run_again_is_an_absent_name_with_a_reason(tmp_path: Path) -> None:
    script = """
    import sys, torch
    from torch import nn
    STREAM = sys.stderr

    def registered(function):
        STREAM.flush()
        return function

    @registered
    def helper(x):
        return x

    class Block(nn.Module):
        def forward(self, x):
            return x + 1
        def other(self, x):
            return helper(x)

    write(Block(), (torch.ones(3),), TASK)
    """
    read = """
    try:
        task.module.other(1)
    except NameError as error:
        print("NAMED", error)
    """
    said = carried(tmp_path, script, read)
    assert "SAME True True" in said
    assert "NAMED 'helper' of the script is not part of this task" in said
