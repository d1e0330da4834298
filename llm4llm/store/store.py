"""Everything that outlives a process: rows in a database, files in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from llm4llm.assets import migrations_dir
from llm4llm.store.apikeys import ApiKeys
from llm4llm.store.blobs import open_blobs
from llm4llm.store.candidates import Candidates
from llm4llm.store.engine import make_engine
from llm4llm.store.events import Events
from llm4llm.store.fence import Fence
from llm4llm.store.jobs import Jobs
from llm4llm.store.leases import DeviceLeases, JobLeases
from llm4llm.store.listing import Listing
from llm4llm.store.migrate import migrate
from llm4llm.store.session import Sessions
from llm4llm.store.stages import Stages
from llm4llm.store.submissions import Submissions


class Store:
    """Repositories over one database and one place for blobs: a folder, or a bucket by its URL."""

    def __init__(self, engine: Engine, blob_root: Path | str, fence: Fence | None = None) -> None:
        self.engine = engine
        self._blob_root = blob_root
        self._sessions = Sessions(engine, fence.check if fence is not None else None)
        self.jobs = Jobs(self._sessions)
        self.stages = Stages(self._sessions)
        self.candidates = Candidates(self._sessions)
        self.events = Events(self._sessions)
        self.leases = JobLeases(self._sessions)
        self.devices = DeviceLeases(self._sessions)
        self.listing = Listing(self._sessions)
        self.submissions = Submissions(self._sessions)
        self.api_keys = ApiKeys(self._sessions)
        self.blobs = open_blobs(blob_root)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Every repository call inside is committed together, or not at all if an exception leaves the block."""
        with self._sessions.transaction():
            yield

    def ping(self) -> None:
        """One round trip to the database; StoreUnavailable if it does not answer."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql("select 1")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Every repository call inside sees the same snapshot, and none may write."""
        with self._sessions.reading():
            yield

    def fenced(self, fence: Fence) -> "Store":
        """The same store for a process that runs a job: it stores nothing once the job or the device is no longer that process's."""
        return Store(self.engine, self._blob_root, fence)

    def close(self) -> None:
        self.engine.dispose()


def open_store(url: str, blob_root: Path | str) -> Store:
    """A store whose database has the schema of this version; a `StoreUnavailable` says what is wrong with it otherwise."""
    store = Store(make_engine(url), blob_root)
    try:
        migrate(store.engine, migrations_dir())
    except BaseException:
        store.close()
        raise
    return store
