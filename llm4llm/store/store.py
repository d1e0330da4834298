"""Everything that outlives a process: rows in a database, files in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from llm4llm.assets import migrations_dir
from llm4llm.store.blobs import BlobFolder
from llm4llm.store.candidates import Candidates
from llm4llm.store.engine import make_engine
from llm4llm.store.events import Events
from llm4llm.store.fence import Fence
from llm4llm.store.jobs import Jobs
from llm4llm.store.leases import DeviceLeases, JobLeases
from llm4llm.store.migrate import migrate
from llm4llm.store.session import Sessions
from llm4llm.store.stages import Stages


class Store:
    """Repositories over one database and one blob folder."""

    def __init__(self, engine: Engine, blob_root: Path, fence: Fence | None = None) -> None:
        self.engine = engine
        self._blob_root = blob_root
        self._sessions = Sessions(engine, fence.check if fence is not None else None)
        self.jobs = Jobs(self._sessions)
        self.stages = Stages(self._sessions)
        self.candidates = Candidates(self._sessions)
        self.events = Events(self._sessions)
        self.leases = JobLeases(self._sessions)
        self.devices = DeviceLeases(self._sessions)
        self.blobs = BlobFolder(blob_root)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Every repository call inside is committed together, or not at all if an exception leaves the block."""
        with self._sessions.transaction():
            yield

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


def open_store(url: str, blob_root: Path) -> Store:
    """A store whose database has the schema of this version; a `StoreUnavailable` says what is wrong with it otherwise."""
    store = Store(make_engine(url), blob_root)
    try:
        migrate(store.engine, migrations_dir())
    except BaseException:
        store.close()
        raise
    return store
