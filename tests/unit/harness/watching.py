"""Watch a piece of code as the live host watches a script; models for it."""

from typing import Any

import torch
from torch import nn

from llm4llm.harness.intercept import Interception
from llm4llm.harness.recording import Recorder
from llm4llm.harness.workload import Workload


class Watched:
    """`with Watched() as seen: …`, then `seen.workload`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._recorder = Recorder(self.events.append)
        self._interception = Interception(self._recorder)
        self.workload = Workload()

    def __enter__(self) -> "Watched":
        self._interception.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self._interception.remove()
        self.workload = self._recorder.close()

    def drivers(self) -> list[tuple[str, int, str | None]]:
        return [(item.method, item.count, item.refusal.code if item.refusal else None) for item in self.workload.drivers]

    def notes(self) -> set[str]:
        return {note.code for note in self.workload.notes}


class Drawer:
    """A cache that is no tensor: what earlier calls put in, later ones find."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.seen = 0


class Echo(nn.Module):
    """Adds up what a Drawer, or tensors handed along in a tuple, hold; counts its own calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, drawer: Drawer | None = None, past: tuple[torch.Tensor, ...] | None = None) -> Any:
        self.calls += 1
        y = self.mix(x)
        if drawer is not None:
            drawer.kept.append(y)
            drawer.seen += 1
            return torch.stack(drawer.kept).sum(0)
        if past is not None:
            return y + past[-1], (*past, y)
        return y

    def generate(self, x: torch.Tensor, steps: int = 3) -> torch.Tensor:
        for _ in range(steps):
            x = self(x) + torch.rand(())
        return x

    def note_down(self, text: str) -> str:
        return text.upper()


def echo() -> Echo:
    torch.manual_seed(3)
    return Echo().eval()
