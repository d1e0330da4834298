"""Progress of a job while it runs: redrawn in place on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llm4llm.cli.say import is_live
from llm4llm.kit import format_duration, printable
from llm4llm.schema.event import Event
from llm4llm.schema.job import StageName

Line = tuple[str, str]  # style, text
_MARKS = {"waiting": ("dim", "·"), "running": ("bold", "▶"), "finished": ("green", "✓"), "failed": ("red", "✗")}
_LINES_KEPT = 6
_REDRAWS_PER_S = 1  # while we draw, children measure times on the same cores


class Watched:
    """What is known of a running job from its events; `__call__` makes it the pipeline's Progress."""

    def __init__(self, script: str, budget_s: float) -> None:
        self.script = script
        self.job: str | None = None
        self.states = dict.fromkeys(StageName, "waiting")
        self.lines: list[Line] = []
        self.trials = 0
        self.best: float | None = None  # module alone, as the judge measured it
        self.gain: float | None = None  # end to end, on the live model
        self._budget_s = budget_s
        self._left: tuple[float, float] | None = None  # budget left in s, and when that was
        self._born = time.monotonic()
        self._begun: dict[StageName, float] = {}
        self._took: dict[StageName, float] = {}

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        self.job = event.job
        left = event.facts.get("budget_left_s")
        if isinstance(left, int | float):
            self._left = (float(left), now)
        if event.kind == "stage_started" and event.stage is not None:
            self.states[event.stage] = "running"
            self._begun[event.stage] = now
        elif event.kind == "stage_finished" and event.stage is not None:
            self.states[event.stage] = "failed" if " failed" in event.text else "finished"
            self._took[event.stage] = now - self._begun.get(event.stage, now)
        if event.kind == "trial":
            self._trial(event)
        if event.kind not in ("stage_started", "stage_finished"):
            self.lines = [*self.lines, (_style(event), event.text)][-_LINES_KEPT:]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._born

    @property
    def budget_left_s(self) -> float:
        if self._left is None:
            return self._budget_s
        left, at = self._left
        return max(0.0, left - (time.monotonic() - at))

    def took_s(self, stage: StageName) -> float | None:
        """Seconds that a stage took, or takes so far; None before it began."""
        if stage in self._took:
            return self._took[stage]
        return time.monotonic() - self._begun[stage] if stage in self._begun else None

    def best_text(self) -> str:
        if self.gain is not None:
            return f"{self.gain:.2f}x end to end"
        return f"{self.best:.2f}x on its module" if self.best is not None else "none yet"

    def _trial(self, event: Event) -> None:
        self.trials += 1
        best, speedup = event.facts.get("best"), event.facts.get("speedup")
        if isinstance(best, int | float):
            self.best = max(self.best or 0.0, float(best))
        if isinstance(speedup, int | float) and event.facts.get("decision") == "keep":
            self.gain = max(self.gain or 0.0, float(speedup))


@contextmanager
def watching(script: str, budget_s: float, quiet: bool = False) -> Iterator[Watched]:
    """Show a job's progress on stderr while inside; nothing if `quiet`."""
    if quiet:
        yield Watched(script, budget_s)
    elif is_live():
        watched = Watched(script, budget_s)
        with Live(get_renderable=lambda: picture(watched), console=Console(stderr=True), refresh_per_second=_REDRAWS_PER_S, transient=True):
            yield watched
    else:
        yield _PlainLines(script, budget_s)


class _PlainLines(Watched):
    """One line per event, for logs."""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        head = f"[{format_duration(self.elapsed_s):>6}] {event.stage.value if event.stage else 'job'}: "
        text = event.text
        if event.kind == "stage_started":
            text = f"started, {format_duration(self.budget_left_s)} of the budget left"
        elif event.kind == "stage_finished" and event.stage is not None:
            took = f" after {format_duration(self.took_s(event.stage) or 0.0)}"
            text = text.removeprefix(f"{event.stage.value} ") + took
        sys.stderr.write(head + printable(" ".join(text.split())) + "\n")
        sys.stderr.flush()


def picture(watched: Watched) -> RenderableType:
    """The redrawn block: a head line, the stages, and what happened last."""
    left = format_duration(watched.budget_left_s)
    head = Text.assemble(
        ("llm4llm ", "bold"),
        f"{watched.script}  {watched.job or ''}  ",
        (f"{format_duration(watched.elapsed_s)} passed, {left} of the budget left", "dim"),
    )
    best = Text(f"trials {watched.trials}, best so far {watched.best_text()}")
    lines = [
        Text(f"  {printable(' '.join(text.split()))}", style=style, overflow="ellipsis", no_wrap=True) for style, text in watched.lines
    ]
    return Group(head, _stages(watched), best, *lines)


def _stages(watched: Watched) -> Table:
    grid = Table.grid(padding=(0, 2))
    for _stage in StageName:
        grid.add_column()
    cells: list[RenderableType] = []
    for stage, state in watched.states.items():
        took = watched.took_s(stage)
        name = stage.value if took is None else f"{stage.value} {format_duration(took)}"
        style, mark = _MARKS[state]
        cells.append(Text(f"{mark} {name}", style=style))
    grid.add_row(*cells)
    return grid


def _style(event: Event) -> str:
    if event.kind == "decision":
        return "bold"
    good = event.facts.get("outcome") == "passed" or event.facts.get("decision") == "keep"
    return "green" if event.kind == "trial" and good else ""
