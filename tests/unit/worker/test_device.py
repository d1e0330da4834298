"""How a device is named without torch."""

import os
from pathlib import Path

import pytest

from llm4llm.worker import device
from llm4llm.worker.device import device_name, first_visible

TWO = """GPU 0: NVIDIA H200 (UUID: GPU-1a2b-00)
GPU 1: NVIDIA H200 (UUID: GPU-9f8e-11)
"""
PARTS = """GPU 0: NVIDIA H200 (UUID: GPU-1a2b-00)
  MIG 1g.18gb     Device  0: (UUID: MIG-5555-00)
  MIG 1g.18gb     Device  1: (UUID: MIG-6666-11)
"""


@pytest.mark.parametrize(
    ("listing", "visible", "name"),
    [
        (TWO, None, "GPU-1a2b-00"),
        (TWO, "1", "GPU-9f8e-11"),
        (TWO, "1,0", "GPU-9f8e-11"),
        (TWO, "GPU-9f8e-11", "GPU-9f8e-11"),
        (TWO, "GPU-9f", "GPU-9f8e-11"),
        (TWO, "GPU-", None),
        (TWO, "", None),
        (TWO, "-1", None),
        (TWO, "7", None),
        ("", None, None),
        ("", "0", None),
        (PARTS, None, "MIG-5555-00"),
        (PARTS, "MIG-6666-11", "MIG-6666-11"),
    ],
)
def test_the_first_visible_gpu(listing: str, visible: str | None, name: str | None) -> None:
    assert first_visible(listing, visible) == name


def test_a_job_s_own_variable_goes_before_the_worker_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && printf '{TWO}'\n".replace("\n\n'", "\\n'"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    device._listed.cache_clear()
    assert device_name({}, {}) == "GPU-1a2b-00"
    assert device_name({}, {"CUDA_VISIBLE_DEVICES": "1"}) == "GPU-9f8e-11"
    assert device_name({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}) == "GPU-1a2b-00"
    assert device_name({"CUDA_VISIBLE_DEVICES": ""}, {}).endswith("/cpu")
    device._listed.cache_clear()


def test_a_machine_without_a_gpu_is_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    device._listed.cache_clear()
    assert device_name({}, {"CUDA_VISIBLE_DEVICES": "0"}) == f"{os.uname().nodename}/cpu"
    device._listed.cache_clear()
