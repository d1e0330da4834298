"""One transaction at a time: repositories join the open one, or make their own for a single call."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session


class Sessions:
    """Hands out the session of the open transaction of this thread or task, else one that commits at its end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: ContextVar[Session | None] = ContextVar("open_session", default=None)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Everything inside is committed together, or not at all if an exception leaves the block."""
        current = self._open.get()
        if current is not None:
            yield current
            return
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
            token = self._open.set(session)
            try:
                yield session
            finally:
                self._open.reset(token)


def plain(text: str) -> str:
    """Text that both databases can keep in a column: no NUL, no half surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
