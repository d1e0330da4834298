"""What an interpreter can do, for the doctor: `python -m llm4llm.harness.probe`, which must start in any Python, torch or not."""

import importlib
import importlib.util
import platform
import sys
from typing import Any

from llm4llm.harness.channel import Channel
from llm4llm.harness.confine import confine

CROSS_COMPILED_FOR = 90  # Hopper: the compiler shipped with triton knows it without a GPU


def probe() -> dict[str, Any]:
    """Versions (None: missing), import errors, GPUs, and whether a kernel can be compiled for a GPU that is not here."""
    facts: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable, "gpus": [], "cuda": None, "errors": {}}
    for package in ("torch", "triton", "transformers"):
        facts[package], error = _version(package)
        if error:
            facts["errors"][package] = error
    if facts["torch"]:
        facts |= _devices()
    facts["cross_compile"], error = _cross_compiles() if facts["triton"] else (False, "triton is missing")
    if error:
        facts["errors"]["cross_compile"] = error
    return facts


def _version(package: str) -> tuple[str | None, str | None]:
    if importlib.util.find_spec(package) is None:
        return None, None
    try:
        return str(importlib.import_module(package).__version__), None
    except Exception as error:  # a broken installation fails in many ways
        return None, f"{type(error).__name__}: {error}"


def _devices() -> dict[str, Any]:
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            capability = f"{properties.major}.{properties.minor}"
            gpus.append({"name": properties.name, "capability": capability, "memory_bytes": int(properties.total_memory)})
    return {"gpus": gpus, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}


def _cross_compiles() -> tuple[bool, str | None]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from llm4llm.harness.probe_kernel import add_one

    try:
        source = ASTSource(fn=add_one, signature={"values": "*fp32", "count": "i32", "BLOCK": "constexpr"}, constexprs={(2,): 128})
        compiled = triton.compile(source, target=GPUTarget("cuda", CROSS_COMPILED_FOR, 32))
    except Exception as error:  # the compiler raises many kinds
        return False, f"{type(error).__name__}: {error}"
    return "cubin" in compiled.asm, None


def main() -> None:
    confine()
    channel = Channel.inherited()
    for _op, _payload in channel.requests():
        channel.ok(probe())


if __name__ == "__main__":
    main()
