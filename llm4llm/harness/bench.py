"""A task made ready for judging: inputs, references, oracle, and the usual error of the original."""

import copy
import dataclasses
import io
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llm4llm.harness import inputs, pickling, shapes, taskfile
from llm4llm.harness.ambient import Ambient
from llm4llm.harness.calls import Call
from llm4llm.harness.compare import USUAL_SHARE_MADE, compare, usual_errors
from llm4llm.harness.oracle import Original, OutOfRange, Truth
from llm4llm.harness.portrait import Leaf, leaf, portrait, same_bits
from llm4llm.harness.values import replaced, restore, tensors
from llm4llm.harness.wording import counted
from llm4llm.runtime import domain

# Below this size threads wait for each other longer than they work, most of all when other processes want the cores: on two busy cores one
# small softmax took 4 ms instead of 0.02 ms.
_SMALL = 4_000_000


class NotReproducible(Exception):
    """The rebuilt original does not give the recorded results; nothing can be judged by it."""


@dataclass(frozen=True)
class Options:
    """What the parent asks for. `capabilities` are GPU targets such as 90; `shared_bytes` is a block's shared memory on the target."""

    seed: int = 0
    seconds: float = 20.0  # for timing
    gate_seconds: float = 60.0  # for the gates that use fresh inputs
    call_timeout_s: float = 60.0
    capabilities: tuple[int, ...] | None = None
    shared_bytes: int | None = None
    device: str | None = None
    scratch: str | None = None
    measure: bool = True

    @classmethod
    def of(cls, payload: dict[str, Any]) -> "Options":
        """Unknown names are refused, so that a typing error never changes a verdict silently."""
        known = {one.name for one in dataclasses.fields(cls)}
        unknown = sorted(payload.keys() - known)
        if unknown:
            raise ValueError(f"unknown options: {', '.join(unknown)}")
        values = dict(payload)
        if values.get("capabilities") is not None:
            values["capabilities"] = tuple(values["capabilities"])
        return cls(**values)


def _elements(task: taskfile.LoadedTask) -> int:
    """Numbers in the module's weights and in the largest call."""
    weights = sum(weight.numel() for weight in task.module.parameters())
    return weights + max(sum(tensor.numel() for tensor in tensors([call["args"], call["kwargs"]])) for call in task.calls)


@dataclass
class Bench:
    """One task in the judge's process."""

    folder: Path
    task: taskfile.LoadedTask
    options: Options
    ambient: Ambient
    original: Original
    calls: list[Call]
    threads: int | None  # of every process; None leaves torch's own number
    usual: dict[str, float] = field(default_factory=dict)
    structures: list[shapes.Structure] = field(default_factory=list)
    dropped: int = 0
    _on_cpu: Original | None = None

    @classmethod
    def open(cls, folder: Path, options: Options) -> "Bench":
        """Raises taskfile.BadTask and NotReproducible."""
        task = taskfile.read_task(folder, options.device)
        threads = None
        if _elements(task) < _SMALL:
            threads = 1
            torch.set_num_threads(threads)
        torch.manual_seed(options.seed)
        ambient = Ambient.from_json(task.ambient)
        bench = cls(folder, task, options, ambient, Original(task.module, ambient), inputs.captured(task.calls), threads)
        references = taskfile.read_references(folder, task.module, options.device)
        if len(references) != len(bench.calls):
            raise taskfile.BadTask(
                f"{folder} has {counted(len(bench.calls), 'call')} but {counted(len(references), 'reference')}; extract the task again"
            )
        try:
            truths = [bench.original.truth(call) for call in bench.calls]
        except OutOfRange as error:
            raise NotReproducible(f"the rebuilt {type(task.module).__name__} can't run a captured call ({error})") from error
        bench.usual = usual_errors(truths)
        bench.structures = shapes.structures(bench.calls)
        for call, truth, reference in zip(bench.calls, truths, references, strict=True):
            bench._check_fidelity(call, truth, reference)
        return bench

    def _check_fidelity(self, call: Call, truth: Truth, reference: dict[str, Any]) -> None:
        inputs_by_path = dict(portrait({"args": call.args, "kwargs": call.kwargs, "kept": call.kept})[1])
        tree, found = portrait({name: reference[name] for name in ("result", "args", "kwargs", "kept")})
        listed = [self._reference_leaf(path, tensor, inputs_by_path.get(path)) for path, tensor in found]
        fault, _ = compare(tree, listed, truth, self.usual)
        if fault is not None and not truth.draws:
            raise NotReproducible(
                f"the rebuilt {type(self.task.module).__name__} disagrees with its recording in {call.origin}: {fault.reason}"
            )

    @staticmethod
    def _reference_leaf(path: str, tensor: torch.Tensor, before: torch.Tensor | None) -> Leaf:
        same = before is not None and before.shape == tensor.shape and before.dtype == tensor.dtype and same_bits(before, tensor)
        return leaf(path, tensor, values=not same)

    @property
    def device(self) -> str:
        """Where the task's tensors lie: "cpu" or "cuda"."""
        found = [tensor for call in self.calls for _, tensor in call.inputs()]
        found += list(self.task.module.parameters())
        return next((tensor.device.type for tensor in found if tensor.device.type != "cpu"), "cpu")

    def capabilities(self) -> tuple[int, ...]:
        """GPU targets to compile for: those asked for, else the GPU at hand for a task of a GPU."""
        if self.options.capabilities is not None:
            return self.options.capabilities
        if self.device != "cuda":
            return ()
        major, minor = torch.cuda.get_device_capability()
        return (10 * major + minor,)

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for one purpose: other ones for another seed, whatever was drawn before."""
        return torch.Generator().manual_seed(random.Random(f"{self.options.seed}/{purpose}").getrandbits(60))  # noqa: S311

    def usable(self, call: Call) -> bool:
        """False for made inputs on which the original itself fails or overflows; they are counted."""
        try:
            truth = self.original.truth(call)
        except OutOfRange:
            self.dropped += 1
            return False
        for one in truth.leaves:
            exact = truth.exact.get(one.path)
            if one.values is None or exact is None or not one.values.is_floating_point():
                continue
            if bool((exact.isfinite() & ~one.values.isfinite()).any()):
                self.dropped += 1
                return False
        return True

    def runs_on_cpu(self, call: Call) -> bool:
        """Whether the original takes these integers on the CPU. An index out of range there raises; on a GPU it ends the process."""
        if self.device == "cpu":
            return True
        try:
            if self._on_cpu is None:
                self._on_cpu = Original(copy.deepcopy(self.task.module).cpu(), self.ambient)
            args, kwargs, kept = replaced((call.args, call.kwargs, call.kept), lambda tensor: tensor.cpu())
            self._on_cpu.own(dataclasses.replace(call, args=args, kwargs=kwargs, kept=kept, rng=None, notes={}))
        except Exception:  # a module that runs on a GPU alone is not given such integers at all
            self.dropped += 1
            return False
        return True

    def usual_for(self, call: Call) -> dict[str, float]:
        """The usual relative error by path: of the captured calls, or of this one where other values are harder for the original too."""
        if call.regime == "captured":
            return self.usual
        if "usual" not in call.notes:
            own = usual_errors([self.original.truth(call)], USUAL_SHARE_MADE)
            call.notes["usual"] = {path: max(self.usual.get(path, 0.0), error) for path, error in own.items()}
        made: dict[str, float] = call.notes["usual"]
        return made

    def observation(self, call: Call) -> dict[str, Any]:
        """The call's facts for the proven domain."""
        if "observation" not in call.notes:
            with self.ambient.applied():
                args, kwargs, kept = call.fresh()
                restore(self.original.twin, kept)
                call.notes["observation"] = domain.observe(self.original.twin, args, kwargs)
        found: dict[str, Any] = call.notes["observation"]
        return found

    def changes_anything(self) -> bool:
        """Whether a captured call changes what it can reach."""
        truths = [self.original.truth(call) for call in self.calls]
        return any(not one.path.startswith("result") and one.path not in truth.unchanged for truth in truths for one in truth.leaves)

    def packed(self, calls: dict[str, Call]) -> bytes:
        """Made calls, by name, as a candidate process reads them."""
        stream = io.BytesIO()
        pickling.save({name: call.message() for name, call in calls.items()}, stream, None, self.task.module)
        return stream.getvalue()
