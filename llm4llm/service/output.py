"""What a job's script printed, and what became of the job, as text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from llm4llm.errors import InfraError
from llm4llm.kit import Clock, iso, open_untrusted, printable
from llm4llm.schema.event import Event
from llm4llm.store import Store

Stream = Literal["events", "stdout", "stderr"]
OWN = ".own"
KEPT_BYTES = 16 << 20  # of each stream, from its end
_FACT = "script_output"


def job_folder(home: Path, job_id: str) -> Path:
    """Where the processes of a job write, on the machine that runs it. What lies there is the script's: it may be anything."""
    return home / "jobs" / job_id


def own_folder(folder: Path) -> Path:
    """Beside a job's folder, what only its worker writes: the lock, candidates, and what processes are told to do."""
    return folder.with_name(f"{folder.name}{OWN}")


def keep_output(job_id: str, folder: Path, store: Store, clock: Clock) -> None:
    """Put the ends of the script's streams among the blobs, and leave word of it: whoever is asked later may be another machine.

    May run twice.
    """
    if store.events.last_of(job_id, "output") is not None:
        return
    kept = {}
    for stream in ("stdout", "stderr"):
        content = _end_of(folder / f"script.{stream}", KEPT_BYTES)
        if content is not None:
            kept[stream] = store.blobs.put(content)
    if kept:
        event = Event(job=job_id, kind="output", text="kept what the script printed", facts={_FACT: kept})
        store.events.add(event, iso(clock.now()))


def script_output(job_id: str, stream: Literal["stdout", "stderr"], store: Store, home: Path) -> bytes:
    """The end of what the script printed; empty if nothing is known of it (yet)."""
    content = _end_of(job_folder(home, job_id) / f"script.{stream}", KEPT_BYTES)
    if content is not None:
        return content
    event = store.events.last_of(job_id, "output")
    kept = event.facts.get(_FACT) if event is not None else None
    sha256 = kept.get(stream) if isinstance(kept, dict) else None
    return store.blobs.get(sha256) if sha256 is not None else b""


def event_lines(job_id: str, store: Store) -> Iterator[str]:
    """One line per event: time, stage, text."""
    last = 0
    while found := store.events.after(job_id, last):
        for one in found:
            stage = one.event.stage.value if one.event.stage else "job"
            yield f"{one.at[:23]}Z {stage:<10} {printable(' '.join(one.event.text.split()))}\n"
        last = found[-1].id


def _end_of(file: Path, limit: int) -> bytes | None:
    """None if there is no such file."""
    try:
        with open_untrusted(file.parent, file.name) as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - limit))
            return opened.read(limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InfraError(f"{file.name} of the job can't be read ({error.strerror})", "check the rights of LLM4LLM_HOME") from error
