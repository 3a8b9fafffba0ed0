"""Brings a database to the newest schema. `python -m rouse_store.migrate` does it by hand."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from rouse_store.errors import translate
from rouse_store.url import connect_args, normalised

if TYPE_CHECKING:
    from alembic.config import Config

LOG = logging.getLogger(__name__)
# Any number that nobody else takes as an advisory lock in this database: "rouse" in ASCII, and one.
UPGRADE_LOCK = 0x726F757365_01
LOCK_WAIT_S = 60
DATABASE_ENV = "ROUSE_DATABASE"


def locate() -> Path:
    """The folder of the migrations: inside the installed package, or at the top of the source tree.

    Raises FileNotFoundError where the installation is broken.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "migrations", here.parents[3] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise FileNotFoundError(f"there are no migrations beside {here.parent}; reinstall rouse-store")


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for a connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(locate()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(database_url: str) -> None:
    """Applies what is missing, in one transaction, one process at a time. Blocks.

    Raises Unavailable DATABASE_DOWN where the database cannot be reached or another process migrates it
    for longer than LOCK_WAIT_S.
    """
    from alembic import command

    engine = create_engine(
        normalised(database_url), poolclass=NullPool, connect_args=connect_args("rouse-migrations", statement_ms=0)
    )
    try:
        with translate(), engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
            command.upgrade(alembic_config(connection), "head")
    finally:
        engine.dispose()


def main() -> int:
    """Migrates the database that the environment names."""
    url = os.environ.get(DATABASE_ENV)
    if not url:
        print(f"set {DATABASE_ENV} to the database's URL", file=sys.stderr)
        return 2
    upgrade(url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
