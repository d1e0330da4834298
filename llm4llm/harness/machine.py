"""Facts about this machine and this interpreter's packages that a measurement depends on."""

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

_QUERY_TIMEOUT_S = 10.0


def environment() -> dict[str, Any]:
    """The fields of schema.Environment except `target`. Packages that are not installed, and everything of CUDA without a GPU, are None."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cpu_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "cuda": torch.version.cuda,
        "gpu": None,
        "gpu_capability": None,
        "gpu_memory_bytes": None,
        "driver": None,
    }
    if torch.cuda.is_available():
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
        properties = torch.cuda.get_device_properties(device)
        facts["gpu"] = properties.name
        facts["gpu_capability"] = f"{properties.major}.{properties.minor}"
        facts["gpu_memory_bytes"] = int(properties.total_memory)
        facts["driver"] = _driver()
    return facts


def cpu_model() -> str:
    """The CPU's name as the kernel tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    # ARM kernels name no model; the implementer and part numbers still tell two machines apart.
    return named.get("model name") or " ".join(filter(None, [platform.machine(), named.get("CPU implementer"), named.get("CPU part")]))


def _version(package: str) -> str | None:
    module = sys.modules.get(package)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return getattr(module, "__version__", None)


def _driver() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        pass
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)
