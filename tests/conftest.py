"""Rules for every test: no network but loopback, and an own home for whatever is stored."""

import ipaddress
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm4llm.kit import remove_untrusted


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A shell starts background jobs with interrupts ignored, and children inherit that; tests interrupt their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _nothing_too_deep_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Folders that pytest's own cleaning up would fail on at a later run."""
    yield
    base = tmp_path_factory.getbasetemp()
    deep = subprocess.run(
        ["find", ".", "-mindepth", "300", "-maxdepth", "300", "-type", "d"], cwd=base, capture_output=True, text=True, check=False
    )
    for top in {line.split("/")[1] for line in deep.stdout.splitlines()}:
        remove_untrusted(base / top)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = str(address[0])
            try:
                local = ipaddress.ip_address(host).is_loopback
            except ValueError:
                local = host == "localhost"
            if not local:
                raise AssertionError(f"a test opened a connection to {host}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LLM4LLM_HOME of this test alone."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LLM4LLM_HOME", str(folder))
    return folder


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
