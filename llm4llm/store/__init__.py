"""SQLAlchemy rows, repositories, transactions, blobs by sha256 and the alembic driver."""

from llm4llm.store.faults import BlobDamaged, DatabaseCorrupt, DatabaseForeign, DatabaseTooNew
from llm4llm.store.store import Store, open_store

__all__ = ["BlobDamaged", "DatabaseCorrupt", "DatabaseForeign", "DatabaseTooNew", "Store", "open_store"]
