"""What the static gate lets pass and what it names."""

import textwrap
import types

import pytest

from llm4llm.harness.contract import check_loaded, check_source

HONEST = '''
"""Notes: no os.system, no exec(), no open() and no time.perf_counter here; sys.exit is not called."""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

CONFIGS = [{"block": 256, "num_warps": 4}, {"block": 1024, "num_warps": 8}]
LOG2_E = math.log2(math.e)
LIMITS = {name: torch.finfo(getattr(torch, name)).max for name in ("float16", "bfloat16")}
SIZES = tuple(2**power for power in range(4, 8))
FP8 = getattr(torch, "float8_e4m3fn", None)
WIDE: tl.constexpr = tl.constexpr(64)

if torch.cuda.is_available():
    KIND = "cuda"
else:
    KIND = "cpu"

try:
    from triton.language.extra import libdevice
except ImportError:
    libdevice = None


class Plan(NamedTuple):
    rows: int = 1


@dataclass(frozen=True)
class Packed:
    """open(): a word in a docstring."""

    weight: torch.Tensor
    events: int = 0

    @property
    def size(self) -> int:
        return self.weight.numel()


DEFAULT = Plan(rows=4)


@functools.lru_cache(maxsize=None)
def _block(width: int) -> int:
    return triton.next_power_of_2(width)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def _kernel(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offset, tl.load(x_ptr + offset, mask=offset < n), mask=offset < n)


def prepare(module, block, num_warps):
    return {"block": block, "num_warps": num_warps, "eps": getattr(module, "eps", 1e-6), "seen": "forward" in vars(module)}


def accepts(module, state, *args, **kwargs):
    return not torch.is_grad_enabled() and module.__class__.__name__ == "Norm"


@torch.no_grad()
def forward(module, state, x, *rest, time=None, **kwargs):
    frame = x.float()  # exec(frame)
    events = frame.square()
    open, compile = events.mean(-1, keepdim=True), time
    with torch.autocast("cpu", enabled=False):
        globals_ = F.silu(frame * open.rsqrt())
    kwargs["cache"].state = globals_
    self_time = [time for time in (1, 2)]
    return globals_.to(x.dtype), self_time, compile


def matches(module):
    return any(kind.__name__ == "Norm" for kind in type(module).__mro__)


if __name__ == "__main__":
    raise SystemExit(0)
'''


def rules(text: str) -> set[str]:
    return {violation.rule for violation in check_source(textwrap.dedent(text))}


def test_a_rich_honest_file_has_no_violations() -> None:
    # the guard's body names SystemExit, which is refused wherever it stands
    assert check_source(HONEST.replace("raise SystemExit(0)", "forward(None, None, torch.ones(3))")) == []


FORWARD = "\ndef forward(module, state, x):\n    return x\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def forward(module, state:\n", "syntax_error"),
        ("forward = 1 +\0", "syntax_error"),
        ("def run(module, state, x):\n    return x\n", "missing_forward"),
        ("if __name__ == '__main__':\n    def forward(module, state, x):\n        return x\n", "missing_forward"),
        ("def forward(module):\n    return module\n", "bad_signature"),
        ("async def forward(module, state, x):\n    return x\n", "bad_signature"),
        ("def forward(module, state, x):\n    yield x\n", "bad_signature"),
        ("class forward:\n    pass\n", "bad_signature"),
        (FORWARD + "def prepare():\n    return 1\n", "bad_signature"),
        (FORWARD + "def prepare(module, block):\n    return block\n", "bad_signature"),
        (FORWARD + "CONFIGS = [{'block': 1}]\ndef prepare(module, rows=1):\n    return rows\n", "bad_signature"),
        (FORWARD + "CONFIGS = [{'block': 1}, {}]\ndef prepare(module, *, block):\n    return block\n", "bad_signature"),
        (FORWARD + "def accepts(module):\n    return True\n", "bad_signature"),
        (FORWARD + "def matches(module, state):\n    return True\n", "bad_signature"),
        (FORWARD + "CONFIGS = [{'block': b} for b in (1, 2)]\ndef prepare(module, block):\n    return 1\n", "bad_configs"),
        (FORWARD + "CONFIGS = []\n", "bad_configs"),
        (FORWARD + "CONFIGS = {'block': 1}\n", "bad_configs"),
        (FORWARD + "CONFIGS = [{'block': 1}]\n", "bad_configs"),
        ("import os" + FORWARD, "import_not_allowed"),
        ("import numpy as np" + FORWARD, "import_not_allowed"),
        ("from torch import multiprocessing" + FORWARD, "import_not_allowed"),
        ("import torch.utils.cpp_extension" + FORWARD, "import_not_allowed"),
        ("from functools import sys" + FORWARD, "import_not_allowed"),
        ("from torch import *" + FORWARD, "import_not_allowed"),
        ("from . import other" + FORWARD, "import_not_allowed"),
        ("from triton.testing import do_bench" + FORWARD, "import_not_allowed"),
        ("def forward(module, state, x):\n    import subprocess\n    return x\n", "import_not_allowed"),
        ("import torch\nTABLE = torch.arange(4)" + FORWARD, "import_time_code"),
        (FORWARD + "forward(None, None, 1)\n", "import_time_code"),
        (FORWARD + "for _ in range(3):\n    pass\n", "import_time_code"),
        (FORWARD + "def work():\n    return 1\nVALUE = work()\n", "import_time_code"),
        (FORWARD + "def work(x):\n    return x\nVALUE = sorted([2, 1], key=work)\n", "import_time_code"),
        (FORWARD + "def work(x=print(1)):\n    return x\n", "import_time_code"),
        (FORWARD + "def mine(f):\n    return f\n@mine\ndef other():\n    pass\n", "import_time_code"),
        (FORWARD + "class Table:\n    rows = [open('x')]\n", "import_time_code"),
        (FORWARD + "class Base:\n    def __init_subclass__(cls):\n        pass\n", "import_time_code"),
        (FORWARD + "while False:\n    pass\n", "import_time_code"),
        ("def forward(module, state, x):\n    return eval('x')\n", "forbidden_call"),
        ("def forward(module, state, x):\n    run = exec\n    return run('x')\n", "forbidden_call"),
        ("def forward(module, state, x):\n    print(x)\n    return x\n", "forbidden_call"),
        ("def forward(module, state, x):\n    raise SystemExit\n", "forbidden_call"),
        ("def forward(module, state, x):\n    return globals()['y']\n", "forbidden_call"),
        ("def forward(module, state, x):\n    return vars()['x']\n", "forbidden_call"),
        ("import torch\ndef forward(module, state, x):\n    torch.manual_seed(0)\n    return x\n", "forbidden_call"),
        ("import torch\ndef forward(module, state, x):\n    return torch.cuda.Event.elapsed_time(x, x)\n", "forbidden_call"),
        ("def forward(module, state, x):\n    module.register_forward_hook(x)\n    return x\n", "forbidden_call"),
        ("import torch\ndef prepare(module):\n    torch.allclose = min\n" + FORWARD, "monkeypatch"),
        ("import torch\ndef prepare(module):\n    t = torch\n    t.backends.cudnn.benchmark = True\n" + FORWARD, "monkeypatch"),
        ("import torch\ndef prepare(module):\n    setattr(torch, 'allclose', min)\n" + FORWARD, "monkeypatch"),
        ("def prepare(module):\n    module.forward = min\n" + FORWARD, "forbidden_attribute"),
        ("def prepare(module):\n    setattr(module, 'forward', min)\n" + FORWARD, "forbidden_attribute"),
        ("def forward(module, state, x):\n    return forward.__globals__\n", "forbidden_attribute"),
        ("def forward(module, state, x):\n    return getattr(x, '__glo' + 'bals__')\n", "forbidden_attribute"),
        ("def forward(module, state, x):\n    error = ValueError(x)\n    return error.__traceback__\n", "forbidden_attribute"),
        ("import torch\ndef forward(module, state, x):\n    return torch.os.environ\n", "forbidden_attribute"),
        ("import functools\ndef forward(module, state, x):\n    return functools._thread\n", "forbidden_attribute"),
        ("import torch\ndef forward(module, state, x):\n    return torch.utils.cpp_extension.load\n", "forbidden_attribute"),
        ("import triton\n@triton.autotune([], key=[])\n@triton.jit\ndef k(x):\n    pass\n" + FORWARD, "autotuning"),
        ("x = 1\n" * 200_000 + FORWARD, "too_long"),
    ],
)
def test_each_rule_names_what_it_found(text: str, rule: str) -> None:
    assert rule in rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "forward = None\ndef forward(module, *args, **kwargs):\n    return args\n",
        "def forward(module, state, *, x):\n    return x\n",
        "def _impl(module, state, x):\n    return x\nforward = _impl\n",
        FORWARD + "CONFIGS = [{}]\n",
        FORWARD + "CONFIGS = [{'block': 1}]\ndef prepare(module, **config):\n    return config\n",
        FORWARD + "def prepare(module, block=64):\n    return block\n",
        "import torch\ndef forward(module, state, x):\n    torch = x\n    return torch\n",
        "def forward(module, state, x, operator=None):\n    x.cache.system = operator\n    return x\n",
        "import torch\ndef forward(module, state, x):\n    return torch.signal.windows.hann(8), torch.select(x, 0, 0), torch._scaled_mm\n",
        "import torch\nclass Scan(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n" + FORWARD,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor\n" + FORWARD,
    ],
)
def test_unusual_but_allowed_shapes_pass(text: str) -> None:
    assert check_source(text) == []


def test_violations_are_in_line_order_and_say_their_line() -> None:
    found = check_source("import os\nimport sys\n\ndef forward(module, state, x):\n    return exec(x)\n")
    assert [violation.line for violation in found] == [1, 2, 5]
    assert all(f"line {violation.line}" in violation.text for violation in found)


def test_a_loaded_module_shows_its_entries_and_what_is_wrong_with_them() -> None:
    good = types.ModuleType("good")
    exec("CONFIGS = [{'block': 2}]\ndef forward(module, state, x): ...\ndef prepare(module, block): ...", good.__dict__)
    entries = check_loaded(good)
    assert entries.violations == []
    assert entries.configs == [{"block": 2}]
    assert list(entries.prepare.parameters) == ["module", "block"] if entries.prepare else False
    assert entries.accepts is None
    bad = types.ModuleType("bad")
    exec("forward = 3\nCONFIGS = [1]\ndef accepts(): ...", bad.__dict__)
    assert {violation.rule for violation in check_loaded(bad).violations} == {"bad_signature", "bad_configs"}
    assert check_loaded(bad).configs == [{}]
    assert [violation.rule for violation in check_loaded(types.ModuleType("empty")).violations] == ["missing_forward"]


def test_equal_and_endless_configurations_are_named() -> None:
    body = "def prepare(module, block):\n    return block\n\n\ndef forward(module, state, x):\n    return x\n"
    assert [one.rule for one in check_source('CONFIGS = [{"block": 1}, {"block": 2}, {"block": 1}]\n' + body)] == ["bad_configs"]
    assert [one.rule for one in check_source(f"CONFIGS = {[{'block': size} for size in range(100)]}\n" + body)] == ["bad_configs"]
    assert check_source(f"CONFIGS = {[{'block': size} for size in range(40)]}\n" + body) == []


def test_a_main_guard_may_print_unless_the_name_is_set() -> None:
    body = 'def forward(module, state, x):\n    return x\n\n\nif __name__ == "__main__":\n    print(forward)\n'
    assert check_source(body) == []
    for before in ('__name__ = "__main__"\n', "import math as __name__\n", "class __name__:\n    pass\n"):
        assert "forbidden_call" in {one.rule for one in check_source(before + body)}


def test_a_field_may_be_called_like_a_builtin() -> None:
    body = "class Plan:\n    eval: int = 0\n\n\ndef forward(module, state, x):\n    return state.eval\n"
    assert check_source(body) == []
    assert [one.rule for one in check_source(body.replace("state.eval", "eval(state)"))] == ["forbidden_call"]
