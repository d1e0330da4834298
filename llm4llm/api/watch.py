"""Waiting for jobs to change: one question to the database for everybody who waits, a few times per second."""

import asyncio
from dataclasses import dataclass

from anyio import to_thread

from llm4llm.errors import InfraError
from llm4llm.store import Store
from llm4llm.store.listing import Mark

_EVERY_S = 0.25
_AT_ONCE = 500  # ids in one question; databases limit parameters


@dataclass(eq=False)
class _Waiter:
    job_id: str
    mark: Mark
    woken: asyncio.Event
    found: Mark | None


class Watch:
    """Belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: set[_Waiter] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def closing(self) -> bool:
        """True once the server is about to end: streams end as well."""
        return self._closing

    def close(self) -> None:
        """Wake everybody."""
        self._closing = True
        for waiter in self._waiters:
            waiter.woken.set()

    async def changed(self, job_id: str, mark: Mark, timeout_s: float) -> Mark | None:
        """The job's mark once it differs from `mark`, or as it is after the timeout; None if the job was removed."""
        if self._closing or timeout_s <= 0:
            return mark
        waiter = _Waiter(job_id, mark, asyncio.Event(), mark)
        self._waiters.add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.woken.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)
        return waiter.found

    async def _ask(self) -> None:
        while self._waiters and not self._closing:
            ids = sorted({waiter.job_id for waiter in self._waiters})
            marks: dict[str, Mark] = {}
            try:
                for start in range(0, len(ids), _AT_ONCE):
                    marks |= await to_thread.run_sync(self._store.listing.marks, tuple(ids[start : start + _AT_ONCE]))
            except InfraError:
                # whoever waits asks the database again at its timeout, and hears of the fault then
                await asyncio.sleep(_EVERY_S)
                continue
            asked = set(ids)
            for waiter in self._waiters:
                found = marks.get(waiter.job_id)
                if waiter.job_id in asked and found != waiter.mark:
                    waiter.found = found
                    waiter.woken.set()
            await asyncio.sleep(_EVERY_S)
