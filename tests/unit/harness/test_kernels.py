"""Launches are recorded while kernels run interpreted, and compiled for GPUs that are not here."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from llm4llm.harness import channel
from llm4llm.harness.kernels import SHARED_LIMITS, compile_for
from llm4llm.harness.launches import argument, constant, record_launches

pytest.importorskip("triton")
REPOSITORY = Path(__file__).resolve().parents[3]

CANDIDATE = '''
"""Kernels of several kinds."""
import torch
import triton
import triton.language as tl


@triton.jit
def _doubled(x, KIND: tl.constexpr):
    return (x * 2).to(KIND)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def _rows(x_ptr, out_ptr, n, eps, one, bias_ptr, BLOCK: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr, APPLY: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0).to(tl.float32) + eps * one
    if bias_ptr is not None:
        x += tl.load(bias_ptr + place, mask=place < n)
    tl.store(out_ptr + place, APPLY(x, KIND), mask=place < n)


@triton.jit
def _product(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.dot(x, x).to(tl.float16))


@triton.jit
def _mismatched(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(x_ptr + tl.arange(0, BLOCK), x + tl.arange(0, BLOCK * 2))


def forward(module, state, x):
    out = torch.empty_like(x)
    grid = lambda args: (triton.cdiv(x.numel(), args["BLOCK"]),)
    _rows[grid](x, out, x.numel(), 1e-5, 1, None, BLOCK=64, KIND=tl.float32, APPLY=_doubled, num_warps=2)
    square = torch.ones(32, 32, dtype=torch.float16)
    _product[(1,)](square, torch.empty_like(square), SIZE=32)
    try:
        _mismatched[(1,)](x, BLOCK=64)
    except Exception:
        return out
'''

RECORD = """
import json, sys
import torch
from llm4llm.harness.launches import record_launches
from llm4llm.runtime.candidate import load_candidate
candidate = load_candidate(sys.argv[1])
with record_launches() as launches:
    for size in (100, 100, 128):
        candidate.forward(None, None, torch.ones(size))
candidate.forward(None, None, torch.ones(4))
print(json.dumps(launches))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    path = tmp_path_factory.mktemp("candidate") / "candidate.py"
    path.write_text(CANDIDATE)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RECORD, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
    return path, json.loads(done.stdout)


def test_equal_launches_are_one_entry_with_types_options_and_grid(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    path, launches = recorded
    assert [(one["kernel"], one["count"]) for one in launches] == [("_rows", 2), ("_product", 3), ("_mismatched", 3), ("_rows", 1)]
    first, second = launches[0], launches[3]
    assert first["file"] == str(path)
    assert first["grid"] == [2, 1, 1]
    assert first["options"] == {"num_warps": 2}
    arguments = {one["name"]: {key: item for key, item in one.items() if key != "name"} for one in first["arguments"]}
    assert arguments["x_ptr"] == {"type": "*fp32", "special": "D"}
    assert arguments["n"] == {"type": "i32", "special": ""}
    assert arguments["one"] == {"type": "i32", "special": "1"}
    assert arguments["bias_ptr"] == {"type": "none"}
    assert arguments["EVEN"] == {"type": "constexpr", "value": False}
    assert arguments["APPLY"] == {"type": "constexpr", "function": "_doubled"}
    assert {"name": "EVEN", "type": "constexpr", "value": True} in second["arguments"]
    assert "Error" in launches[2]["error"]
    assert launches[0]["error"] is None


@pytest.mark.parametrize("capability", [80, 90])
def test_recorded_launches_compile_for_a_gpu_that_is_not_here(recorded: tuple[Path, list[dict[str, Any]]], capability: int) -> None:
    path, launches = recorded
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        answer = compile_for(path, launches, capability)
    facts = {one["kernel"]: one for one in answer["kernels"]}
    assert facts.keys() == {"_rows", "_product"}
    assert facts["_product"]["tensor_cores"]
    assert not facts["_rows"]["tensor_cores"]
    assert facts["_rows"]["target"] == f"sm_{capability}"
    assert facts["_rows"]["registers"] > 0
    assert facts["_rows"]["spill_bytes"] == 0
    assert facts["_product"]["shared_bytes"] > 0
    [error] = answer["errors"]
    assert error["kernel"] == "_mismatched"
    line = CANDIDATE.splitlines().index("    tl.store(x_ptr + tl.arange(0, BLOCK), x + tl.arange(0, BLOCK * 2))") + 1
    assert error["line"] == line
    assert error["text"].startswith(f"line {line}: `tl.store(")
    assert answer["skipped"] == []


def test_launches_that_no_gpu_would_take_are_errors_and_foreign_kernels_are_left_out(
    recorded: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, launches = recorded
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    product = launches[1]
    monkeypatch.setitem(SHARED_LIMITS, 89, 1024)
    unknown = {**product, "options": {"warps": 3}}
    nested = {**product, "kernel": "_inner"}
    foreign = {**product, "file": "/elsewhere/library.py"}
    opaque = {**product, "arguments": [{"name": "x_ptr", "type": "other", "text": "TensorDescriptor"}, *product["arguments"][1:]]}
    answer = compile_for(path, [product, unknown, nested, foreign, opaque], 89)
    assert [(one["code"], one["kernel"]) for one in answer["errors"]] == [("shared_memory", "_product"), ("compile", "_product")]
    assert "warps" in answer["errors"][1]["text"]
    assert [one["kernel"] for one in answer["skipped"]] == ["_inner", "_product"]
    assert compile_for(path, [foreign], 90) == {"kernels": [], "errors": [], "skipped": []}


def test_a_process_that_interprets_kernels_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="without TRITON_INTERPRET"):
        compile_for(tmp_path / "candidate.py", [], 90)


def test_the_child_answers_over_its_channel(recorded: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, launches = recorded
    broken = tmp_path / "candidate.py"
    broken.write_text("def forward(module, state):\n    return 1\nraise ValueError('broken')\n")
    mine, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), channel.FD_VARIABLE: str(theirs.fileno()), channel.NONCE_VARIABLE: "n"}
    environment.pop("TRITON_INTERPRET", None)
    requests = [
        ("compile", {"candidate": str(path), "launches": launches[:1], "capability": 90}),
        ("compile", {"candidate": str(broken), "launches": launches[:1], "capability": 90}),
        ("bake", {}),
    ]
    with subprocess.Popen([sys.executable, "-m", "llm4llm.harness.kernels"], env=environment, pass_fds=[theirs.fileno()]) as child:
        theirs.close()
        mine.settimeout(200)
        with mine, mine.makefile("rw") as stream:
            answers = []
            for number, (operation, payload) in enumerate(requests):
                stream.write(json.dumps({"id": number, "op": operation, "payload": payload}) + "\n")
                stream.flush()
                answers.append(json.loads(stream.readline()))
        mine.close()
        assert child.wait(timeout=30) == 0
    assert [one["kernel"] for one in answers[0]["ok"]["kernels"]] == ["_rows"]
    assert answers[1]["error"] == {"kind": "compile", "reason": "ValueError: broken"}
    assert answers[2]["error"]["kind"] == "unknown_operation"
    assert {one["nonce"] for one in answers} == {"n"}


def test_arguments_are_described_as_the_compiler_specialises_them() -> None:
    aligned = torch.zeros(64)
    assert argument(aligned[1:]) == {"type": "*fp32", "special": ""}
    assert argument(torch.zeros(4, dtype=torch.bfloat16))["type"] == "*bf16"
    assert argument(True) == {"type": "u1"}
    assert argument(32) == {"type": "i32", "special": "D"}
    assert argument(2**40 + 1) == {"type": "i64", "special": ""}
    assert argument(0.5) == {"type": "fp32"}
    assert argument((1, 2))["type"] == "tuple"
    assert argument(object())["type"] == "other"
    assert constant(torch.float16) == {"type": "constexpr", "torch_dtype": "float16"}
    assert constant([1, "a"]) == {"type": "constexpr", "items": [{"type": "constexpr", "value": 1}, {"type": "constexpr", "value": "a"}]}
    assert constant(object())["type"] == "other"


def test_recording_puts_the_launcher_back() -> None:
    from triton.runtime.jit import JITFunction

    before = JITFunction.__dict__["run"]
    with pytest.raises(ValueError), record_launches() as launches:
        raise ValueError
    assert JITFunction.__dict__["run"] is before
    assert launches == []
