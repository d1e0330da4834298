"""Durable state: SQLAlchemy rows, repositories, blobs by sha256, the alembic driver."""
