"""A candidate process: runs generated code on inputs that the judge sends, and sends back what came of it.

`python -m llm4llm.harness.candidate` with LLM4LLM_CANDIDATE_SOCKET and LLM4LLM_CANDIDATE_NONCE in its environment. It holds a copy of the
task folder without references. Standard output goes nowhere, standard error into a file beside the socket, whose end a verdict may quote.
"""

import contextlib
import copy
import importlib
import io
import os
import random
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from llm4llm.harness import contract, pickling, taskfile, timing
from llm4llm.harness.ambient import Ambient
from llm4llm.harness.channel import FD_VARIABLE, NONCE_VARIABLE
from llm4llm.harness.confine import confine
from llm4llm.harness.fences import Fences
from llm4llm.harness.launches import LaunchRecord, record_launches
from llm4llm.harness.oracle import outcome
from llm4llm.harness.portrait import as_bytes, leaf, portrait, same_bits
from llm4llm.harness.serving import Pool, Server, dirtied, poisoned, scaled
from llm4llm.harness.values import restore
from llm4llm.harness.watchtower import Spy, Watchtower
from llm4llm.harness.wire import Wire, WireClosed
from llm4llm.runtime.candidate import load_candidate

SOCKET_VARIABLE, SECRET_VARIABLE = "LLM4LLM_CANDIDATE_SOCKET", "LLM4LLM_CANDIDATE_NONCE"
EARLY_VARIABLE = "LLM4LLM_CANDIDATE_EARLY"  # a module to import while the judge is still busy: the one that defines the task's class
_HEAVY = ("mm", "conv", "scaled_dot_product", "linear", "matmul", "einsum", "fft")
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")
Answer = tuple[dict[str, Any], list[bytes]]


class Declined(Exception):
    """The candidate does not accept a call that had to be timed."""


class Session:
    """State between requests; one per process."""

    def __init__(self, scratch: Path) -> None:
        self._tower = Watchtower(scratch)
        self._pool: Pool = {}
        self._file = scratch
        self._module: nn.Module
        self._ambient: Ambient
        self._candidate: ModuleType
        self._spy: Spy
        self._server: Server
        self._poison = True
        self._first: dict[str, list[torch.Tensor]] = {}
        self._observes = False
        self._recorder = contextlib.ExitStack()
        self._launches: dict[str, LaunchRecord] = {}  # by configuration: what was launched while it was the prepared one

    def open(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Load the task's module and its captured calls, named c0, c1, …"""
        task = taskfile.read_task(Path(payload["folder"]), payload.get("device"))
        self._module, self._ambient = task.module, surroundings_of(task.ambient)
        self._poison, self._observes = bool(payload["poison"]), bool(payload["observe"])
        if payload["threads"] is not None:
            torch.set_num_threads(payload["threads"])
        for index, record in enumerate(task.calls):
            self._pool[f"c{index}"] = {**record, "args": tuple(record["args"]), "kwargs": dict(record["kwargs"])}
        for index, free in enumerate(payload["scale"]):
            self._pool[f"c{index}"]["scale"] = tuple(free)
        return {"python": sys.version.split()[0], "torch": torch.__version__}, []

    def load(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """More calls, by name; names that are no longer needed are forgotten."""
        for name in payload.get("forget", []):
            self._pool.pop(name, None)
        self._pool.update(pickling.load(io.BytesIO(blobs[0]), None, self._module, payload.get("device")))
        return {}, []

    def bring(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Import the candidate's file."""
        self._file = Path(payload["candidate"]).resolve()
        self._tower.watch_classes(self._module)
        self._spy = Spy(self._module) if self._poison else _silent(self._module)
        self._tower.arm(self._file)
        self._candidate = load_candidate(self._file)
        entries = contract.check_loaded(self._candidate)
        problems = [{"rule": one.rule, "detail": one.text} for one in entries.violations]
        return {"configs": entries.configs, "violations": problems, "has_accepts": entries.accepts is not None}, []

    def prepare(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """A new copy of the module, prepared with one configuration. From here on launches are recorded: a candidate may keep a compiled
        kernel and launch that from its second call on, where nobody sees it.
        """
        self._recorder.close()
        if self._observes and "triton" in sys.modules:
            self._recorder.enter_context(record_launches(self._launches.setdefault(repr(payload["config"]), LaunchRecord())))
        self._server = Server(self._candidate, copy.deepcopy(self._module), payload["config"], self._ambient)
        self._spy.exempt |= {id(part) for part in self._server.module.modules() if part is not self._server.module}
        self._first = {}
        seen = self._server.prepare()
        return {"violations": [one.facts() for one in seen]}, []

    def reweight(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Other weights in place, then `prepare` again."""
        return {"violations": [one.facts() for one in self._server.reweight(payload["factor"])]}, []

    def call(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """One call, fully observed."""
        dirtied(self._pool[payload["name"]])
        with poisoned(self._poison and payload.get("poison", True)):
            fences = Fences() if self._observes and payload.get("poison", True) else None
            return self._server.call(self._pool[payload["name"]], self._spy, refill=payload.get("refill", False), fences=fences)

    def run(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Many calls in a row in the process's ordinary state: whether each was accepted, and the names of those whose result is not bit
        for bit the first one's.
        """
        taken, differing = [], []
        for name in payload["names"]:
            accepted, found = self._server.quick(self._pool[name])
            taken.append(accepted)
            first = self._first.setdefault(name, [tensor.detach().clone() for tensor in found])
            alike = len(first) == len(found) and all(map(_alike, first, found))
            if not alike:
                differing.append(name)
        return {"taken": taken, "differing": differing}, []

    def language(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Triton kernels that calls launched under the prepared configuration, and heavy torch functions in the named calls."""
        if "triton" not in sys.modules:
            return {"heavy": 0, "launches": []}, []
        counter = _Counter()
        with counter:
            for name in payload["names"]:
                self._server.quick(self._pool[name])
        launches = self._launches.get(repr(payload["config"]), LaunchRecord()).facts
        return {"heavy": counter.heavy, "launches": launches}, []

    def weights(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Whether calls changed the module's weights."""
        return {"violations": [one.facts() for one in self._server.weight_changes()]}, []

    def warm(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Milliseconds of the first patched call of each name (compilation included) and of a warm one of each side."""
        names = payload["names"]
        sides = self._sides(names)
        first: list[float] = []
        baseline: list[float] = []
        patched: list[float] = []
        with self._ambient.applied():
            for position in range(len(names)):
                given = sides[1].ready(position, 1.0)
                spent, _ = timing.timed(sides[1].run, given, self._on_device())
                first.append(spent)
            for _ in range(2):
                baseline, patched = [], []
                for position in range(len(names)):
                    one, two, _ = timing.turn(sides, position, 1.0, False, self._on_device())
                    baseline.append(one)
                    patched.append(two)
        return {"first_ms": first, "baseline_ms": baseline, "patched_ms": patched}, []

    def pairs(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """ABBA pairs over the named calls, with the answers of some patched calls for the judge to check."""
        names, wanted = payload["names"], {tuple(place) for place in payload["keep"]}
        kept: list[tuple[int, int, Any]] = []

        def keep(turn: int, position: int, held: Any) -> None:
            if (turn, position) in wanted:
                kept.append((turn, position, held))

        with self._ambient.applied():
            baseline, patched = timing.paired(self._sides(names), len(names), payload["turns"], payload["seed"], self._on_device(), keep)
        answers: list[dict[str, Any]] = []
        blobs_out: list[bytes] = []
        for turn, position, (result, given) in kept:
            tree, found = portrait(outcome(result, given[0], given[1], {}))
            listed = [leaf(path, tensor) for path, tensor in found]
            facts = []
            for one in listed:
                facts.append({**one.facts(), "blob": None if one.values is None else len(blobs_out)})
                if one.values is not None:
                    blobs_out.append(as_bytes(one.values))
            answers.append({"turn": turn, "call": position, "tree": tree, "leaves": facts})
        return {"baseline_ms": baseline, "patched_ms": patched, "answers": answers}, blobs_out

    def stock(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Make ready the inputs for `window`."""
        side = self._sides(payload["names"])[payload["side"]]
        source = random.Random(payload["seed"])  # noqa: S311
        with self._ambient.applied():
            ready = [side.ready(index % len(payload["names"]), 1.0 + 0.05 * source.random()) for index in range(payload["count"])]
        self._stocked = (side, ready)
        return {}, []

    def window(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """Run everything that `stock` made ready, back to back; the judge holds the clock."""
        side, ready = self._stocked
        with self._ambient.applied():
            for given in ready:
                side.run(given)
            if self._on_device():
                torch.cuda.synchronize()
        return {}, []

    def _sides(self, names: list[str]) -> tuple[timing.Side, timing.Side]:
        calls = [self._pool[name] for name in names]
        baseline, server = self._module, self._server
        original = self._spy.original

        def ready(module: nn.Module, position: int, factor: float) -> tuple[Any, Any]:
            args, kwargs, kept = scaled(calls[position], factor)
            restore(module, kept)
            return args, kwargs

        def patched(given: tuple[Any, Any]) -> Any:
            if not server.accepted(*given):
                raise Declined
            return server.forward(*given)

        return (
            timing.Side(
                lambda position, factor: ready(baseline, position, factor), lambda given: original(baseline, *given[0], **given[1])
            ),
            timing.Side(lambda position, factor: ready(server.module, position, factor), patched),
        )

    def _on_device(self) -> bool:
        return any(weight.is_cuda for weight in self._module.parameters()) or any(
            isinstance(item, torch.Tensor) and item.is_cuda for call in self._pool.values() for item in _flat(call)
        )

    def answer(self, op: str, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """The facts of one request; what the candidate raises or does besides is part of them."""
        if op not in (
            "open",
            "load",
            "bring",
            "prepare",
            "reweight",
            "call",
            "run",
            "language",
            "weights",
            "warm",
            "pairs",
            "stock",
            "window",
        ):
            raise ValueError(f"unknown request {op!r}")
        try:
            facts, out = getattr(self, op)(payload, blobs)
        except Declined:
            facts, out = {"declined": True}, []
        except BaseException as error:
            if op in ("open", "load"):
                raise
            facts, out = {"error": self._said(error)}, []
        if op not in ("open", "load"):
            facts["violations"] = [*facts.get("violations", []), *(one.facts() for one in self._tower.drain())]
        return facts, out

    def _said(self, error: BaseException) -> dict[str, Any]:
        names = {kind.__name__ for kind in type(error).__mro__}
        text = str(error).strip() or type(error).__name__
        kind = "runtime"
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(word in text for word in _OUT_OF_MEMORY):
            kind = "oom"
        elif names & {"CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError"}:
            kind = "compile"
        elif "OutOfResources" in names:
            kind = "resources"
        elif isinstance(error, SystemExit):
            kind, text = "exit", f"SystemExit({error.code!r})"
        steps = [step for step in traceback.extract_tb(error.__traceback__) if step.filename == str(self._file)]
        line = f"line {steps[-1].lineno}: {steps[-1].line}" if steps else None
        if isinstance(error, SyntaxError):
            line = f"line {error.lineno}: {(error.text or '').strip()}"
        # the first line names the fault; Triton puts the source line and the cause behind it
        lines = [part for part in text.splitlines() if part.strip()][:8]
        return {"kind": kind, "type": type(error).__name__, "text": lines, "line": line}


def surroundings_of(facts: dict[str, Any]) -> Ambient:
    """The task's ambient state, except the switch that poisons memory here."""
    ambient = Ambient.from_json(facts)
    return replace(ambient, matmul={name: value for name, value in ambient.matmul.items() if name != "deterministic_algorithms"})


def _alike(first: torch.Tensor, now: torch.Tensor) -> bool:
    return first.shape == now.shape and first.dtype == now.dtype and same_bits(first, now)


def _flat(call: dict[str, Any]) -> Iterator[Any]:
    yield from call["args"]
    yield from call["kwargs"].values()


def _silent(module: nn.Module) -> Spy:
    """The original's forward, without counting: for timing."""
    kind = type(module)
    original = kind.forward
    spy = Spy(module)
    kind.forward = original
    return spy


class _Counter(TorchFunctionMode):
    """Counts calls of torch functions that do the work of a layer by themselves."""

    # a dispatch mode would see more, and imports the compiler, which takes a second
    def __init__(self) -> None:
        super().__init__()
        self.heavy = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.heavy += any(part in name for part in _HEAVY)
        return func(*args, **(kwargs or {}))


def _import_early() -> None:
    """The library that defines the task's module takes seconds to import. Where it can't be, opening the task says why."""
    name = os.environ.pop(EARLY_VARIABLE, "")
    if name:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _connect() -> tuple[Wire, Path]:
    path, nonce = Path(os.environ.pop(SOCKET_VARIABLE)), os.environ.pop(SECRET_VARIABLE)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(path))
    wire = Wire(sock, nonce)
    wire.send({"pid": os.getpid()})
    return wire, path


def _redirect(errors: Path) -> None:
    """Nothing that generated code prints reaches anybody, except the end of what it writes to standard error."""
    sys.stdout.flush()
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)


def _drop_channel() -> None:
    """Close the parent's channel: this process answers the judge alone."""
    os.environ.pop(NONCE_VARIABLE, None)
    fd = os.environ.pop(FD_VARIABLE, None)
    if fd is not None:
        with contextlib.suppress(OSError):
            os.close(int(fd))


def main() -> None:
    confine()
    _drop_channel()
    wire, path = _connect()
    _redirect(path.with_suffix(".stderr"))
    _import_early()
    session = Session(path.parent)
    with contextlib.suppress(WireClosed):
        while True:
            message, blobs = wire.receive()
            try:
                facts, out = session.answer(message["op"], message["payload"], blobs)
            except Exception as error:  # ours, not the candidate's: the judge says so
                facts, out = {"fault": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}, []
            wire.send(facts, out)
    os._exit(0)  # whatever a candidate left behind must not keep this process alive


if __name__ == "__main__":
    main()
