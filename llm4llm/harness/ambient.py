"""What surrounds a call and changes what it computes: torch's modes and flags, and the random generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

AUTOCAST_DEVICES = ("cpu", "cuda")


def dtype_name(dtype: torch.dtype) -> str:
    """The name without the package: "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """torch.bfloat16 for "bfloat16". Raises ValueError for anything else than a dtype's name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} names no torch dtype")  # noqa: TRY004
    return found


@dataclass(frozen=True)
class Ambient:
    """Modes and flags in force around a call. `matmul` holds the flags that this torch can tell, by name."""

    grad_enabled: bool = False
    inference_mode: bool = False
    autocast: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(AUTOCAST_DEVICES))
    default_dtype: str = "float32"
    default_device: str = "cpu"
    matmul: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def now(cls) -> "Ambient":
        """The state of the calling thread."""
        autocast: dict[str, str | None] = dict.fromkeys(AUTOCAST_DEVICES)
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                autocast[device] = dtype_name(torch.get_autocast_dtype(device))
        return cls(
            grad_enabled=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            autocast=autocast,
            default_dtype=dtype_name(torch.get_default_dtype()),
            default_device=str(torch.get_default_device()),
            matmul=_flags_now(),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "grad_enabled": self.grad_enabled,
            "inference_mode": self.inference_mode,
            "autocast": dict(self.autocast),
            "default_dtype": self.default_dtype,
            "default_device": self.default_device,
            "matmul": dict(self.matmul),
        }

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "Ambient":
        return cls(**{name: facts[name] for name in cls.__dataclass_fields__ if name in facts})

    def label(self) -> str:
        """What differs from plain no_grad inference in float32, for signatures; "" if nothing does."""
        parts = ["grad"] if self.grad_enabled else []
        parts += [f"autocast {device} {dtype}" for device, dtype in sorted(self.autocast.items()) if dtype is not None]
        parts += [] if self.default_dtype == "float32" else [f"default {self.default_dtype}"]
        return ", ".join(parts)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put this state in force for the calling thread, and back what was there afterwards."""
        flags, dtype = _flags_now(), torch.get_default_dtype()
        with ExitStack() as stack:
            stack.callback(_set_flags, flags)
            _set_flags(self.matmul)
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(dtype_named(self.default_dtype))
            if str(torch.get_default_device()) != self.default_device:
                stack.enter_context(torch.device(self.default_device))
            stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for device in AUTOCAST_DEVICES:
                wanted = self.autocast.get(device)
                if wanted is not None:
                    stack.enter_context(torch.autocast(device, dtype=dtype_named(wanted)))
                elif torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield


_FLAGS: dict[str, tuple[Any, str]] = {
    "cuda_matmul_tf32": (torch.backends.cuda.matmul, "allow_tf32"),
    "cuda_matmul_fp16_reduced": (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "cuda_matmul_bf16_reduced": (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "cudnn_tf32": (torch.backends.cudnn, "allow_tf32"),
    "cudnn_benchmark": (torch.backends.cudnn, "benchmark"),
    "cudnn_deterministic": (torch.backends.cudnn, "deterministic"),
}


def _flags_now() -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for name, (owner, attribute) in _FLAGS.items():
        # torch refuses to tell the old flags once a script has used the newer per-operator precision settings.
        with suppress(RuntimeError, AttributeError):
            flags[name] = getattr(owner, attribute)
    with suppress(RuntimeError):
        flags["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    flags["deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
    return flags


def _set_flags(wanted: dict[str, Any]) -> None:
    now = _flags_now()
    changed = {name: value for name, value in wanted.items() if name in now and now[name] != value}
    if "float32_matmul_precision" in changed:
        torch.set_float32_matmul_precision(changed["float32_matmul_precision"])
        changed |= {name: value for name, value in wanted.items() if name in _FLAGS and name in now}
    if "deterministic_algorithms" in changed:
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(changed["deterministic_algorithms"], warn_only=warn_only)
    for name, (owner, attribute) in _FLAGS.items():
        if name in changed:
            with suppress(RuntimeError, AttributeError):
                setattr(owner, attribute, changed[name])


@dataclass(frozen=True)
class Randomness:
    """States of the process-wide generators: torch on the CPU and every CUDA device in use, `random`, numpy where imported."""

    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any | None

    @classmethod
    def now(cls, previous: "Randomness | None" = None) -> "Randomness":
        """The present states; those equal to `previous` are shared with it, so that a loop stores them once."""
        cpu, python = torch.get_rng_state(), random.getstate()
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
        numpy_random = sys.modules.get("numpy.random")
        numpy = numpy_random.get_state() if numpy_random is not None else None
        if previous is not None:
            cpu = previous.torch_cpu if torch.equal(cpu, previous.torch_cpu) else cpu
            python = previous.python if python == previous.python else python
            numpy = previous.numpy if _same_numpy(numpy, previous.numpy) else numpy
            cuda = previous.torch_cuda if _same_tensors(cuda, previous.torch_cuda) else cuda
            old = (previous.torch_cpu, previous.torch_cuda, previous.python, previous.numpy)
            if all(now is then for now, then in zip((cpu, cuda, python, numpy), old, strict=True)):
                return previous
        return cls(cpu, cuda, python, numpy)

    def restore(self) -> None:
        """Put every generator back to this state."""
        torch.set_rng_state(self.torch_cpu)
        for index, state in enumerate(self.torch_cuda):
            torch.cuda.set_rng_state(state, index)
        random.setstate(self.python)
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None and self.numpy is not None:
            numpy_random.set_state(self.numpy)


def _same_tensors(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def _same_numpy(left: Any, right: Any) -> bool:
    return left is not None and right is not None and bool((left[1] == right[1]).all()) and tuple(left[2:]) == tuple(right[2:])
