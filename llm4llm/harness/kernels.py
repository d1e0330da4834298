"""Compile a candidate's Triton kernels for a GPU that need not be present: `python -m llm4llm.harness.kernels`.

Launches recorded while the kernels ran interpreted (or on another GPU) say how each kernel is specialised; the same specialisation is
compiled here for the target. This process must not interpret kernels: it is started without TRITON_INTERPRET.
"""

import inspect
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from llm4llm.harness.channel import Channel
from llm4llm.harness.confine import confine
from llm4llm.harness.launches import LaunchFact, record_launches
from llm4llm.runtime.candidate import load_candidate

__all__ = ["compile_for", "record_launches"]

MAX_VARIANTS = 24  # specialisations compiled for one candidate; about one second each
# Shared memory that one thread block may use, in bytes, by compute capability. CUDA C++ Programming Guide, technical specifications:
# maximum amount of shared memory per thread block.
SHARED_LIMITS = {75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 103: 232448, 120: 101376, 121: 101376}
TENSOR_CORE = re.compile(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma|wmma\.mma)")
USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class Unresolved(Exception):
    """An argument that can't be described to the compiler without the live value."""


def compile_for(candidate_path: Path, launches: list[LaunchFact], capability: int) -> dict[str, list[dict[str, Any]]]:
    """What the compiler says of each recorded launch for sm_<capability>:

    {"kernels": [schema.KernelFacts], "errors": [{"kernel", "target", "code", "text", "line"}], "skipped": [{"kernel", "reason"}]}

    `registers` and `spill_bytes` are per thread, None where the assembler's report is not available. `line` is a line of the candidate.
    """
    target = f"sm_{capability}"
    out: dict[str, list[dict[str, Any]]] = {"kernels": [], "errors": [], "skipped": []}
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise RuntimeError("kernels can't be compiled in a process that interprets them; start it without TRITON_INTERPRET")
    own = [launch for launch in launches if _belongs(launch, candidate_path)]
    if not own:
        return out
    candidate = load_candidate(candidate_path)
    variants = {repr((one["kernel"], one["arguments"], one["options"])): one for one in own}
    for index, launch in enumerate(variants.values()):
        name = launch["kernel"]
        kernel = _kernel(candidate, name)
        if index >= MAX_VARIANTS:
            out["skipped"].append({"kernel": name, "reason": f"only the first {MAX_VARIANTS} specialisations are compiled"})
        elif kernel is None:
            out["skipped"].append({"kernel": name, "reason": "it is not defined at the top level of the file"})
        else:
            _compile_one(kernel, launch, capability, target, out)
    out["kernels"] = list({repr(one): one for one in out["kernels"]}.values())
    return out


def _compile_one(kernel: Any, launch: LaunchFact, capability: int, target: str, out: dict[str, list[dict[str, Any]]]) -> None:
    """Adds to `out` what became of one specialisation."""
    name = launch["kernel"]
    try:
        compiled = _compiled(kernel, launch, capability)
    except Unresolved as error:
        out["skipped"].append({"kernel": name, "reason": str(error)})
        return
    except Exception as error:  # the compiler raises many kinds, its own and Python's
        line, text = first_error(error, kernel)
        out["errors"].append({"kernel": name, "target": target, "code": "compile", "text": text, "line": line})
        return
    ptx = compiled.asm.get("ptx", "")
    registers, spills = assembled(ptx)
    shared = int(compiled.metadata.shared)
    tensor_cores = TENSOR_CORE.search(ptx) is not None
    facts = {"kernel": name, "target": target, "registers": registers, "shared_bytes": shared, "spill_bytes": spills}
    out["kernels"].append({**facts, "tensor_cores": tensor_cores})
    limit = SHARED_LIMITS.get(capability)
    if limit is not None and shared > limit:
        text = f"{name} needs {shared} bytes of shared memory and {target} has {limit} for a block; use smaller blocks or fewer stages"
        out["errors"].append({"kernel": name, "target": target, "code": "shared_memory", "text": text, "line": _line(kernel)})


def _belongs(launch: LaunchFact, candidate_path: Path) -> bool:
    """Kernels of libraries are not the candidate's; a copy of the candidate in another folder is."""
    return Path(launch["file"]).name == candidate_path.name or Path(launch["file"]).resolve() == candidate_path.resolve()


def _kernel(candidate: Any, name: str) -> Any:
    """The JITFunction called `name`, below heuristics and other wrappers; None if the file has none at its top level."""
    from triton.runtime.jit import JITFunction

    for value in vars(candidate).values():
        while value is not None and not isinstance(value, JITFunction) and hasattr(value, "fn"):
            value = value.fn
        if isinstance(value, JITFunction) and value.fn.__name__ == name:
            return value
    return None


def _compiled(kernel: Any, launch: LaunchFact, capability: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", capability, 32)
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    arguments = {one["name"]: one for one in launch["arguments"]}
    for index, parameter in enumerate(kernel.params):
        if parameter.name not in arguments:
            raise TypeError(f"{launch['kernel']} is launched without its argument {parameter.name}")
        one = _specialised(arguments[parameter.name], parameter)
        if "items" in one and one["type"] == "tuple":
            raise Unresolved(f"its argument {parameter.name} is a tuple, which is only compiled on the GPU itself")
        signature[parameter.name] = one["type"]
        if one["type"] == "constexpr":
            constants[(index,)] = _constant(one, parameter.name, kernel)
        elif one.get("special") == "D":
            attributes[(index,)] = [["tt.divisibility", 16]]
    options = launch["options"]
    known = make_backend(target).parse_options({}).__dict__
    for name in options:
        if name not in known:
            raise TypeError(f"{launch['kernel']} is launched with {name}=..., which is neither a parameter of it nor an option of Triton")
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=options)


def _specialised(argument: dict[str, Any], parameter: Any) -> dict[str, Any]:
    """The argument as Triton compiles it: what equals one or is None becomes a constant, unless the kernel says otherwise."""
    if argument["type"] == "none":
        return {"type": "constexpr", "value": None}
    if argument["type"] == "other":
        raise Unresolved(f"its argument {parameter.name} is a {argument['text']}, which is only compiled on the GPU itself")
    special = "" if parameter.do_not_specialize else argument.get("special", "")
    annotated = getattr(parameter, "annotation_type", None)
    if special == "1":
        return {"type": "constexpr", "value": 1}
    if special == "D" and parameter.do_not_specialize_on_alignment:
        special = ""
    if annotated and not str(argument["type"]).startswith(("*", "constexpr")):
        return {**argument, "type": annotated, "special": "" if annotated.startswith(("u1", "fp", "bf")) else special}
    return {**argument, "special": special}


def _constant(one: dict[str, Any], name: str, kernel: Any) -> Any:
    import triton.language as tl

    if "torch_dtype" in one:
        return getattr(torch, one["torch_dtype"])
    if "triton_dtype" in one:
        return tl.dtype(one["triton_dtype"])
    if "items" in one:
        return tuple(_constant(item, name, kernel) for item in one["items"])
    if "function" in one:
        found = kernel.fn.__globals__.get(one["function"])
        if found is None:
            raise Unresolved(f"its argument {name} is a function that is not at the top level of the file")
        return found
    if one.get("type") == "other":
        raise Unresolved(f"its argument {name} is a {one['text']}, which is only compiled on the GPU itself")
    return one["value"]


def first_error(error: BaseException, kernel: Any) -> tuple[int | None, str]:
    """(line of the candidate, one sentence with that line's source) for what the compiler raised; the innermost function counts."""
    chain = [error]
    while (chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 20:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)  # type: ignore[arg-type]
    located = [one for one in chain if hasattr(getattr(one, "node", None), "lineno") and getattr(one, "src", None)]
    message = _message(chain[-1])
    if not located:
        return _line(kernel), f"{kernel.fn.__name__}: {message}"
    inner: Any = located[-1]
    source = str(inner.src)
    relative = int(inner.node.lineno)
    lines = source.splitlines()
    text = lines[relative - 1].strip() if 0 < relative <= len(lines) else ""
    line = _file_line(kernel, source, relative)
    where = f"line {line}" if line is not None else kernel.fn.__name__
    return line, f"{where}: `{text}`: {_message(inner) or message}"


def _message(error: BaseException) -> str:
    said = getattr(error, "error_message", None) or (str(error) if not hasattr(error, "node") else "")
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__


def _line(kernel: Any) -> int:
    return int(kernel.fn.__code__.co_firstlineno)


def _file_line(kernel: Any, source: str, relative: int) -> int | None:
    """Line in the file of a line in a kernel's (or device function's) source; Triton counts from `def`."""
    for value in kernel.fn.__globals__.values():
        function = getattr(value, "fn", None)
        if getattr(value, "src", None) == source and function is not None:
            raw, start = inspect.getsourcelines(function)
            before = next((index for index, line in enumerate(raw) if line.lstrip().startswith("def ")), 0)
            return start + before + relative - 1
    return None


def assembled(ptx: str) -> tuple[int | None, int | None]:
    """(registers per thread, bytes spilled) as the assembler that comes with triton reports them; (None, None) if it can't."""
    import triton

    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for name in ("ptxas", "ptxas-blackwell"):  # each knows the PTX versions up to its own, and triton uses either
        binary = folder / name
        report = _assembler_report(binary, ptx, target[1]) if target is not None and binary.is_file() else None
        if report is not None:
            used, spilled = USED.search(report), SPILLED.search(report)
            return (int(used[1]) if used else None), (max(int(spilled[1]), int(spilled[2])) if spilled else None)
    return None, None


def _assembler_report(binary: Path, ptx: str, target: str) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        command = [str(binary), "-v", f"--gpu-name={target}", str(source), "-o", str(Path(folder) / "kernel.cubin")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
    return done.stderr + done.stdout if done.returncode == 0 else None


def main() -> None:
    """Answer `compile` requests until the parent closes the channel."""
    confine()
    channel = Channel.inherited()
    for operation, payload in channel.requests():
        if operation != "compile":
            channel.error("unknown_operation", f"{operation!r} is no operation of this process; it knows compile")
            continue
        try:
            channel.ok(compile_for(Path(payload["candidate"]), payload["launches"], int(payload["capability"])))
        except Exception as error:  # loading runs the candidate's own code
            channel.error("compile", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
