"""A script in the live host behaves as it does alone: output, exit code, streams, folder, children, traceback."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from live_host_client import Capture, LiveHost, Plain, plain

pytestmark = pytest.mark.timeout(240)

MODEL = """
import sys, os
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    def forward(self, x):
        return self.inner(x)
net = Net().eval()
x = torch.randn(2, 4)
"""

Run = Callable[..., tuple[Plain, Capture]]


@pytest.fixture
def both(tmp_path: Path) -> Run:
    """The same script alone and in a host."""

    def run(text: str, *arguments: str, stdin: str = "", name: str = "script.py", **extra: str) -> tuple[Plain, Capture]:
        script = tmp_path / "user" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(textwrap.dedent(text))
        alone = plain(script, *arguments, stdin=stdin, **extra)
        with LiveHost(script, *arguments, stdin=stdin, folder=tmp_path / "host", **extra) as host:
            captured = host.capture()
        assert host.exit_code == 0
        assert (tmp_path / "host" / "host.log").read_text() == ""
        return alone, captured

    return run


def same(alone: Plain, captured: Capture) -> None:
    assert captured.stdout == alone.stdout
    assert captured.stderr == alone.stderr
    assert captured.end["exit_code"] == alone.exit_code


@pytest.mark.parametrize(
    ("last", "kind", "drivers"),
    [
        ("print(net(x).sum().item())", "returned", 1),
        ("net(x); sys.exit(3)", "exit", 1),
        ("net(x); sys.exit('that is all')", "exit", 1),
        ("net(x); sys.exit()", "exit", 1),
        ("sys.exit(2)", "exit", 0),
        ("print('so far'); raise ValueError('before')", "raised", 0),
        ("net(x); raise ValueError('after')", "raised", 1),
    ],
)
def test_exit_codes(both: Run, last: str, kind: str, drivers: int) -> None:
    alone, captured = both(MODEL + last)
    same(alone, captured)
    assert captured.end["kind"] == kind
    assert len(captured.drivers()) == drivers


def test_tracebacks_are_those_of_the_script(both: Run) -> None:
    alone, captured = both(
        MODEL
        + """
import traceback
class Failing(Net):
    def forward(self, x):
        try:
            return self.inner(x[:, :3])
        except RuntimeError as error:
            raise LookupError("wrapped") from error
    def predict(self, x):
        return self(x)
try:
    Failing().predict(x)
except LookupError:
    print(traceback.format_exc())
Failing().predict(x)
"""
    )
    same(alone, captured)
    assert "wrapped" in captured.stdout
    assert captured.end["error"] == "LookupError: wrapped"


def test_a_script_that_is_no_python(both: Run) -> None:
    alone, captured = both("print('a'\nx = (1,\n")
    same(alone, captured)
    assert captured.result["drivers"] == []


def test_a_script_without_torch(both: Run) -> None:
    alone, captured = both("import sys\nprint('torch' in sys.modules, __name__, sorted(globals()))")
    same(alone, captured)
    assert captured.stdout.startswith("False __main__")
    assert captured.result["roots"] == []


def test_streams_arguments_and_folder(both: Run) -> None:
    alone, captured = both(
        MODEL
        + """
import subprocess, pathlib
import neighbour
print(sys.argv[1:], os.getcwd() == os.path.dirname(os.path.abspath(__file__)), sys.path[0] == os.getcwd())
print(input(), sys.stdin.read().split(), neighbour.name)
pathlib.Path("written.txt").open("w").write("kept")
print(pathlib.Path("neighbour.py").read_text())
sys.stdout.flush()
subprocess.run(["sh", "-c", "echo from a child; echo and an error >&2"])
os.write(1, b"from the descriptor\\n")
net(x)
""",
        "--flag",
        "two words",
        stdin="first\nsecond third\n",
    )
    same(alone, captured)


@pytest.fixture(autouse=True)
def _neighbour(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "neighbour.py").write_text("name = 'next door'\n")


def test_main_can_be_pickled_inspected_and_left_open(both: Run, tmp_path: Path) -> None:
    alone, captured = both(
        MODEL
        + """
import pickle, inspect, io
print(inspect.getsource(Net).splitlines()[0], pickle.loads(pickle.dumps(Net)) is Net, sys.modules["__main__"].net is net)
buffer = io.BytesIO(); torch.save(net, buffer); buffer.seek(0)
print(torch.equal(torch.load(buffer, weights_only=False).eval()(x), net(x)))
late = open("late.txt", "w"); late.write("not closed")
"""
    )
    same(alone, captured)
    assert (tmp_path / "user" / "late.txt").read_text() == "not closed"
    assert captured.drivers() == [("forward", 1, None), ("forward", 1, None)]


def test_what_happens_at_exit(both: Run) -> None:
    alone, captured = both(
        MODEL
        + """
import atexit, threading, time
atexit.register(print, "first registered")
atexit.register(lambda: print("last registered", net(x).shape))
threading.Thread(target=lambda: (time.sleep(0.3), print("a thread"))).start()
print("end of script")
"""
    )
    same(alone, captured)
    assert captured.stdout.splitlines()[-1] == "first registered"


def test_variables_set_before_torch_count_and_ours_are_gone(both: Run) -> None:
    alone, captured = both(
        """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
print([name for name in os.environ if name.startswith("LLM4LLM")], os.environ.get("PYTHONPATH"), os.environ.get("PYTHONSAFEPATH"))
print([path for path in sys.path if "llm4llm" in path])
assert "torch" not in sys.modules
import torch
print(torch.get_num_threads())
"""
    )
    same(alone, captured)


def test_processes_of_the_script(both: Run) -> None:
    alone, captured = both(
        """
import multiprocessing, os, sys
def square(n):
    import torch
    from torch import nn
    return float(nn.Identity()(torch.tensor(float(n))) ** 2), sorted(v for v in os.environ if v.startswith("LLM4LLM"))
if __name__ == "__main__":
    import torch
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1, -2]))
    sys.stdout.flush()
    child = os.fork()
    if child:
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        torch.nn.Identity()(torch.ones(1))
        print("in the child")
        sys.exit(5)
"""
    )
    same(alone, captured)
    assert "child ended with 5" in captured.stdout
    assert captured.result["drivers"] == []


def test_time_is_up(tmp_path: Path) -> None:
    script = tmp_path / "user" / "loop.py"
    script.write_text(
        MODEL
        + """
import time
while True:
    try:
        net(x)
        print("again", flush=True)
        time.sleep(0.01)
    except Exception:
        print("never")
    finally:
        pass
"""
    )
    with LiveHost(script, folder=tmp_path / "host", time_limit_s=8.0) as host:
        captured = host.capture()
        assert captured.end == {"kind": "time_up", "exit_code": None, "error": "the script's time limit was reached"}
        assert captured.result["partial"]
        assert captured.drivers() == [("forward", captured.stdout.count("again"), None)] or captured.notes() == {"call_not_finished"}
        assert "never" not in captured.stdout
        message, _ = host.request("environment")
        assert message["ok"]["python"]


def test_time_is_up_before_anything_happened(tmp_path: Path) -> None:
    script = tmp_path / "user" / "wait.py"
    script.write_text("import time\ntime.sleep(100)\n")
    with LiveHost(script, folder=tmp_path / "host", time_limit_s=0.5) as host:
        captured = host.capture()
    assert captured.end["kind"] == "time_up"
    assert captured.result["wall_ms"] < 20_000


def test_a_host_dies_with_its_script(tmp_path: Path) -> None:
    script = tmp_path / "user" / "gone.py"
    script.write_text("import os\nos._exit(9)\n")
    with LiveHost(script, folder=tmp_path / "host") as host:
        with pytest.raises(AssertionError, match="died"):
            host.capture()
    assert host.exit_code == 9


def test_output_after_the_script_goes_to_the_log(tmp_path: Path) -> None:
    script = tmp_path / "user" / "talking.py"
    script.write_text(MODEL.replace("return self.inner(x)", "print('forward'); return self.inner(x)") + "with torch.no_grad(): net(x)\n")
    with LiveHost(script, folder=tmp_path / "host") as host:
        captured = host.capture()
        host.request("profile", {"repeats": 1, "time_limit_s": 20})
    assert captured.stdout == "forward\n"
    assert (tmp_path / "host" / "stdout").read_text() == "forward\n"
    assert "forward" in host.log.read_text()
    assert not os.path.exists(tmp_path / "user" / "replay.log")
