"""The README inside a bundle."""

from typing import Any

from llm4llm.kit import counted

_USE = """```python
import sys
sys.path.insert(0, "bundle.zip")  # or the unpacked folder
import llm4llm_bundle

llm4llm_bundle.apply(model)    # raises Refused, with the model untouched, where it does not fit
llm4llm_bundle.status(model)   # hits and fallbacks of every patched module
llm4llm_bundle.remove(model)   # the model is exactly as before
```

It needs torch, triton where a patch uses it, and nothing else. With llm4llm installed, `llm4llm run --bundle bundle.zip SCRIPT.py`
applies it to an unmodified script. A call outside a patch's proven domain, changed weights, or an exception inside a patch run the
model's own forward, and `status` counts each by reason. Writes to weights through `.data` can't be noticed: apply again after them."""


def readme_of(manifest: dict[str, Any]) -> str:
    """What the bundle replaces, when, how to use and undo it, and what was measured under which conditions (Markdown)."""
    parts = ["# Patch bundle", _summary(manifest), "## Use", _USE, "## Fits", _fits(manifest), "## Patches"]
    parts += [_patch(patch) for patch in manifest["patches"]]
    return "\n\n".join([*parts, "## Measured on", _conditions(manifest["environment"])]) + "\n"


def _fits(manifest: dict[str, Any]) -> str:
    environment = manifest["environment"]
    lines = [
        f"{one['module_class']}, {one['parameters']:,} parameters, fingerprint `{one['fingerprint'][:16]}`" for one in manifest["models"]
    ]
    lines.append(f"torch {_series(environment['torch'])}.x")
    if environment["triton"] and any(patch["needs_triton"] for patch in manifest["patches"]):
        lines.append(f"triton {_series(environment['triton'])}.x")
    if environment["gpu_capability"]:
        lines.append(f"a GPU of compute capability {environment['gpu_capability']}")
    return "\n".join(f"- {line}" for line in lines)


def _conditions(environment: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {environment[name] or 'absent'}" for name in ("python", "torch", "triton", "transformers"))
    machine = environment["gpu"] or environment["cpu"]
    threads = environment["cpu_threads"]
    return f"{machine}, {environment['platform']}, {packages}, {threads} CPU threads. Samples: `manifest.json` and `evidence/`."


def _series(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _summary(manifest: dict[str, Any]) -> str:
    evidence = manifest["evidence"]
    lines = [_gain("All patches together, in the live model", evidence["in_model"]), _gain("In a fresh process", evidence["fresh_process"])]
    return "\n".join(f"- {line}" for line in lines if line) or "No end-to-end measurement is stored in this bundle."


def _gain(title: str, trial: dict[str, Any] | None) -> str:
    timing = trial["timing"] if trial else None
    if not timing or timing["speedup"] is None:
        return ""
    interval = f", 95 % interval {timing['ci95'][0]:.3f} to {timing['ci95'][1]:.3f}" if timing["ci95"] else ""
    return f"{title}: {timing['speedup']:.3f}x end to end{interval} ({counted(len(timing['baseline_ms']), 'pair')})"


def _patch(patch: dict[str, Any]) -> str:
    hits = (patch["evidence"]["in_model"] or {}).get("hits", {}).get(patch["name"])
    lines = [
        f"### {patch['module_class']}, {patch['phase']} (`{patch['file']}`)",
        patch["hypothesis"],
        f"- {counted(len(patch['paths']), 'module')}: {', '.join(patch['paths'][:4])}{', …' if len(patch['paths']) > 4 else ''}",
    ]
    lines += [f"- takes calls with {guard}" for guard in patch["guards"]]
    gain = _gain("alone on top of the patches before it", patch["evidence"]["in_model"])
    lines += [f"- {gain}"] if gain else []
    lines += [f"- ran {counted(hits, 'time')} in one pass over the workload"] if hits is not None else []
    return "\n".join(lines)
