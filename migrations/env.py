"""Run by llm4llm.store.migrate with an open transaction; never by the alembic command line."""

from alembic import context

from llm4llm.store.rows import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("llm4llm migrates its database by itself when it opens it")
context.configure(connection=connection, target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
