"""One transaction at a time: repositories join the open one, or make their own for a single call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from llm4llm.store.engine import reading_engine

Guard = Callable[[Session], None]


class _Open(NamedTuple):
    session: Session
    writes: bool


class Sessions:
    """Hands out the session of the open transaction of this thread or task, else one that commits at its end.

    A guard is asked at the begin of every transaction that may write, within it; what it raises leaves nothing changed.
    """

    def __init__(self, engine: Engine, guard: Guard | None = None) -> None:
        self._engine = engine
        self._reading = reading_engine(engine)
        self._guard = guard
        self._open: ContextVar[_Open | None] = ContextVar("open_session", default=None)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Everything inside is committed together, or not at all if an exception leaves the block."""
        current = self._open.get()
        if current is None:
            with self._begun(self._engine, True) as session:
                if self._guard is not None:
                    self._guard(session)
                yield session
        elif current.writes:
            yield current.session
        else:
            raise RuntimeError("a transaction that was opened to read can't write")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One snapshot of what is committed; waits for no writer and keeps none waiting."""
        current = self._open.get()
        if current is None:
            with self._begun(self._reading, False) as session:
                yield session
        else:
            yield current.session

    @contextmanager
    def _begun(self, engine: Engine, writes: bool) -> Iterator[Session]:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            token = self._open.set(_Open(session, writes))
            try:
                yield session
            finally:
                self._open.reset(token)


def plain(text: str) -> str:
    """Text that both databases can keep in a column: no NUL, no half surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
