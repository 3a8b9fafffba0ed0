"""Alembic's entry: migrates over the connection that rouse_store.migrate hands in."""

from alembic import context

from rouse_store.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations with `python -m rouse_store.migrate`, which takes the lock they need")
context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
with context.begin_transaction():
    context.run_migrations()
