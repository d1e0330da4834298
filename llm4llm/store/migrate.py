"""Brings a database to the schema of this version, one process at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect, text

from llm4llm.errors import StoreUnavailable
from llm4llm.store.engine import place_of
from llm4llm.store.faults import DatabaseForeign, DatabaseTooNew

_ADVISORY_KEY = 0x6C346C6C6D  # "l4llm": any number that nothing else in the same database uses


def migrate(engine: Engine, migrations: Path) -> None:
    """Apply the revisions in `migrations` that the database lacks.

    DatabaseTooNew if it has one that we don't know; DatabaseForeign if it holds somebody else's tables.
    """
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    with _alone(engine) as connection:
        place = place_of(engine.url)
        known = {revision.revision for revision in script.walk_revisions()}
        current = MigrationContext.configure(connection).get_current_heads()
        for revision in current:
            if revision not in known:
                raise DatabaseTooNew(place, revision)
        if current == tuple(script.get_heads()):
            return
        tables = tuple(name for name in inspect(connection).get_table_names() if name != "alembic_version")
        if tables and not current:
            raise DatabaseForeign(place, tables)
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StoreUnavailable(f"the database {place} can't be migrated ({error})", "reinstall llm4llm") from error


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A transaction that no other migrating process runs beside."""
    if engine.dialect.name == "sqlite":
        lock = Path(f"{engine.url.database}.lock")
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with engine.begin() as connection:
                yield connection
    else:
        with engine.begin() as connection:
            # held until this transaction ends, so that the loser sees the winner's tables
            connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_KEY})
            yield connection
