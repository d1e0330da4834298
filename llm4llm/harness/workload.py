"""What the script made its models do: roots, driver calls and all that is needed to repeat them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from llm4llm.harness.ambient import Ambient, Randomness, dtype_name
from llm4llm.runtime.signature import configuration_hash

LOOP = "loop"
FORWARD = "forward"
MAX_WALL_SAMPLES = 256
MAX_NOTES = 200
_MAX_NOTE_TEXT = 2_000
Entry = tuple[str, str, str]


@dataclass(frozen=True)
class Reason:
    """Why something was left out: a code that programs may branch on and a sentence that says what to do."""

    code: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "text": self.text}


@dataclass(frozen=True)
class Returned:
    """Stands in a stored argument for what an earlier step of the same loop returned, at a path within that result."""

    step: int
    path: str


@dataclass
class Step:
    """One call: stored copies of its arguments and what surrounded it. Never hand `args` out: replay copies them afresh.

    In a loop, an object that several steps got is the same stored object in all of them.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ambient: Ambient
    randomness: Randomness
    returned: list[Returned] = field(default_factory=list)  # stand-ins within args and kwargs


@dataclass
class Kept:
    """What a module kept before a call: `values` as values.kept_by gives it, copied, without the entries in `uncopied`.

    An entry is (module path, "plain" or "buffers", key). Uncopied entries (locks, huge objects) stay as they are on the live module.
    `changing` is filled by the first replay: entries that must be put in place again for every repetition, because the call changes them or
    because the live module has moved on since.
    """

    module: nn.Module
    values: dict[str, dict[str, Any]]
    training: dict[str, bool] = field(default_factory=dict)  # training flag by module path
    uncopied: frozenset[Entry] = frozenset()
    changing: set[Entry] | None = None


@dataclass
class Example:
    """Everything one driver call began with: one step, or all steps of a loop."""

    steps: list[Step]
    kept: list[Kept]
    stored_bytes: tuple[int, int]  # host, GPU

    @property
    def args(self) -> tuple[Any, ...]:
        """Stored positional arguments of the first step."""
        return self.steps[0].args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Stored keyword arguments of the first step."""
        return self.steps[0].kwargs

    @property
    def ambient(self) -> Ambient:
        return self.steps[0].ambient


@dataclass(eq=False)
class RootEntry:
    """A module instance that the script entered from outside, kept alive."""

    id: str
    module: nn.Module
    module_class: str
    fingerprint: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields of schema.Root."""
        parameters = [item for item in self.module.parameters() if not isinstance(item, nn.parameter.UninitializedParameter)]
        return {
            "id": self.id,
            "module_class": self.module_class,
            "fingerprint": self.fingerprint,
            "config_sha256": configuration_hash(self.module),
            "parameters": sum(item.numel() for item in parameters),
            "parameter_bytes": sum(item.numel() * item.element_size() for item in parameters),
            "devices": sorted({str(item.device) for item in parameters}),
            "dtypes": sorted({dtype_name(item.dtype) for item in parameters}),
            "training": bool(getattr(self.module, "training", False)),  # frozen TorchScript modules have no such flag
        }


@dataclass(eq=False)
class DriverEntry:
    """Calls that share root, method and signature. `examples` holds at most two; `wall_ms` at most the first 256 durations."""

    id: str
    root: RootEntry
    method: str
    signature: str
    count: int = 0
    wall_ms: list[float] = field(default_factory=list)
    refusal: Reason | None = None
    examples: list[Example] = field(default_factory=list)

    @property
    def example(self) -> Example | None:
        """The first stored example; None where nothing could be stored (then there is a refusal)."""
        return self.examples[0] if self.examples else None

    @property
    def replayable(self) -> bool:
        return self.refusal is None and bool(self.examples)

    def to_json(self) -> dict[str, Any]:
        """The fields of schema.DriverCall."""
        return {
            "id": self.id,
            "root": self.root.id,
            "method": self.method,
            "signature": self.signature,
            "count": self.count,
            "wall_ms": list(self.wall_ms),
            "refusal": self.refusal.to_json() if self.refusal else None,
        }


@dataclass
class Workload:
    """Everything that was recorded in one run of the script, in order of first use."""

    roots: list[RootEntry] = field(default_factory=list)
    drivers: list[DriverEntry] = field(default_factory=list)
    notes: list[Reason] = field(default_factory=list)
    partial: bool = False

    def note(self, code: str, text: str) -> bool:
        """Add a note once; True if it is new. Those beyond MAX_NOTES are left out, and the last one says so."""
        reason = Reason(code, text[:_MAX_NOTE_TEXT])
        if reason in self.notes or len(self.notes) >= MAX_NOTES:
            return False
        if len(self.notes) == MAX_NOTES - 1:
            reason = Reason("many_notes", f"only the first {MAX_NOTES - 1} notes were kept")
        self.notes.append(reason)
        return True

    def replayable(self) -> list[DriverEntry]:
        """Driver calls that can be repeated, in order of first use."""
        return [driver for driver in self.drivers if driver.replayable]

    def uses_cuda(self) -> bool:
        """True if a root has parameters or buffers on a GPU."""
        held = (tensor for root in self.roots for tensor in (*root.module.parameters(), *root.module.buffers()))
        return torch.cuda.is_initialized() and any(tensor.is_cuda for tensor in held)

    def to_json(self) -> dict[str, Any]:
        """Parts of schema.Capture: roots, drivers, notes, partial."""
        return {
            "roots": [root.to_json() for root in self.roots],
            "drivers": [driver.to_json() for driver in self.drivers],
            "notes": [note.to_json() for note in self.notes],
            "partial": self.partial,
        }
