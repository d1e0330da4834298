"""Engines for the two databases we run on, set up alike: real transactions, foreign keys, our own errors."""

import json
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from llm4llm.errors import BadSettings, StoreUnavailable
from llm4llm.store.faults import fault_of

_BUSY_MS = 30_000  # longer than any transaction of ours; a reader never waits in WAL mode
_IDLE_MS = 60_000
_READS = "llm4llm_reads"
_SETUP = (
    "PRAGMA journal_mode=WAL",  # readers and the worker don't block each other; survives kill -9
    "PRAGMA synchronous=NORMAL",  # with WAL: no corruption, a power cut may lose the last commits only
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={_BUSY_MS}",
)


def make_engine(url: str) -> Engine:
    """An engine for a sqlite or postgresql URL; BadSettings for any other."""
    parsed = _parsed(url)
    place = place_of(parsed)
    try:
        engine = create_engine(parsed, json_serializer=_dumps, pool_pre_ping=parsed.get_backend_name() == "postgresql")
    except ModuleNotFoundError as error:
        raise BadSettings(f"jobs can't be kept in PostgreSQL without {error.name}", "pip install 'llm4llm[postgresql]'") from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite(place))
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _set_up_postgresql)

    def translate(context: ExceptionContext) -> None:
        fault = fault_of(context.original_exception, place)
        if fault is not None:
            raise fault from context.original_exception

    event.listen(engine, "handle_error", translate)
    return engine


def reading_engine(engine: Engine) -> Engine:
    """The same engine and pool for transactions that only read: no lock is taken, and the database refuses to write.

    Each is one snapshot: on PostgreSQL that takes a level above its default.
    """
    if engine.dialect.name == "sqlite":
        return engine.execution_options(**{_READS: True})
    return engine.execution_options(postgresql_readonly=True, isolation_level="REPEATABLE READ")


def place_of(url: URL) -> str:
    """How messages name the database: the file, or the URL without its password."""
    return str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise BadSettings(f"{url!r} is not a database URL", "use sqlite:///FILE or postgresql://USER@HOST/NAME") from error
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise BadSettings("jobs can't be kept in memory", "use sqlite:///FILE")
        _make_file(Path(parsed.database))
        return parsed
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise BadSettings(f"jobs can't be kept in {backend}", "use sqlite:///FILE or postgresql://USER@HOST/NAME")


def _make_file(file: Path) -> None:
    """The database's file, readable by its owner alone: requests hold the variables that scripts were given."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch(mode=0o600)
    except OSError as error:
        raise StoreUnavailable(f"{file} can't be made ({error.strerror})", "set LLM4LLM_HOME to a folder that can be written") from error


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    # a process that is suspended within a transaction must not keep a job's row locked for ever
    connection.execute(f"set idle_in_transaction_session_timeout = {_IDLE_MS}")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    # a writer takes its lock at once: a lock that is asked for after a first read fails as soon as anybody else has written
    reads = bool(connection.get_execution_options().get(_READS))
    connection.exec_driver_sql(f"PRAGMA query_only={int(reads)}")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _set_up_sqlite(place: str) -> Any:
    def set_up(connection: Any, _record: Any) -> None:
        # the driver's own implicit BEGIN would start transactions too late for compare-and-set; ours come from the "begin" event
        connection.isolation_level = None
        try:
            for pragma in _SETUP:
                connection.execute(pragma).close()
        except Exception as error:
            raise (fault_of(error, place) or error) from error

    return set_up


def _dumps(value: Any) -> str:
    # ASCII with escapes: text that a script printed may hold NUL or half a surrogate pair, which PostgreSQL takes only escaped
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
