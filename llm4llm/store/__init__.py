"""SQLAlchemy rows, repositories, transactions, blobs by sha256 and the alembic driver."""

from llm4llm.store.faults import BlobDamaged, DatabaseCorrupt, DatabaseForeign, DatabaseTooNew
from llm4llm.store.fence import Fence
from llm4llm.store.jobs import Queue
from llm4llm.store.leases import Hold
from llm4llm.store.store import Store, open_store

__all__ = ["BlobDamaged", "DatabaseCorrupt", "DatabaseForeign", "DatabaseTooNew", "Fence", "Hold", "Queue", "Store", "open_store"]
