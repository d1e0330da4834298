"""Reading how jobs are, for many who ask at once."""

import asyncio

from anyio import to_thread

from llm4llm.store import Store
from llm4llm.store.listing import Mark

_AT_ONCE = 500  # ids in one question; databases limit parameters


class Marks:
    """Whoever asks while a question is under way shares the next one: nobody gets an answer that is older than the request.

    Belongs to one event loop.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, asyncio.Future[Mark | None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def of(self, job_id: str) -> Mark | None:
        """The job's mark; None if there is no such job. StoreUnavailable."""
        future = self._waiting.get(job_id)
        if future is None:
            future = self._waiting[job_id] = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        # somebody who goes away must not take the answer from the others
        return await asyncio.shield(future)

    async def _ask(self) -> None:
        while self._waiting:
            ids = tuple(self._waiting)[:_AT_ONCE]
            asked = {job_id: self._waiting.pop(job_id) for job_id in ids}
            try:
                marks = await to_thread.run_sync(self._store.listing.marks, ids)
            except BaseException as error:
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # seen, even if everybody who asked has gone
                if not isinstance(error, Exception):
                    raise
                continue
            for job_id, future in asked.items():
                future.set_result(marks.get(job_id))
