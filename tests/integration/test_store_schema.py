"""The schema: models and migrations agree, migrations are found however the package is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from rouse_common.errors import Unavailable
from rouse_store import migrate
from rouse_store.models import Base

STORE = Path(migrate.__file__).resolve().parents[1]
CATALOGUE = """
    SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
     WHERE connamespace = 'public'::regnamespace AND conrelid <> 0
    UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'column', table_name, column_name,
                     concat_ws(' ', data_type, is_nullable, column_default, is_identity)
                FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT 'sequence', sequencename, data_type::text, increment_by::text
                FROM pg_sequences WHERE schemaname = 'public'
"""


def catalogue(connection: Connection) -> set[tuple[str, ...]]:
    rows = {tuple(row) for row in connection.execute(text(CATALOGUE))}
    return {row for row in rows if row[1] != "alembic_version"}


def test_models_and_migrations_agree_to_the_last_constraint(postgres_url: str) -> None:
    migrate.upgrade(postgres_url)
    engine = create_engine(postgres_url)
    try:
        with engine.begin() as connection:
            context = MigrationContext.configure(
                connection, opts={"compare_type": True, "compare_server_default": True}
            )
            assert compare_metadata(context, Base.metadata) == []
            migrated = catalogue(connection)
            connection.execute(text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
            Base.metadata.create_all(connection)
            assert catalogue(connection) == migrated
    finally:
        engine.dispose()


def test_upgrading_twice_and_at_once_does_it_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(migrate.upgrade, postgres_url) for _ in range(3)]:
            done.result(60)
    migrate.upgrade(postgres_url)


def test_downgrading_leaves_nothing(postgres_url: str) -> None:
    from alembic import command

    migrate.upgrade(postgres_url)
    engine = create_engine(postgres_url)
    try:
        with engine.begin() as connection:
            command.downgrade(migrate.alembic_config(connection), "base")
            assert catalogue(connection) == set()
    finally:
        engine.dispose()


def test_no_database_is_a_typed_error() -> None:
    with pytest.raises(Unavailable) as caught:
        migrate.upgrade("postgresql://rouse:hidden@127.0.0.1:9/rouse")
    assert caught.value.reason == "DATABASE_DOWN"
    assert "hidden" not in caught.value.message


def test_a_wheel_carries_the_migrations_where_the_package_looks(tmp_path: Path) -> None:
    build = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=STORE, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(tmp_path / built.stdout.split()[-1]) as wheel:
        wheel.extractall(tmp_path / "site")
    found = subprocess.run(
        [sys.executable, "-c", "from rouse_store import migrate; print(migrate.__file__, migrate.locate())"],
        env={"PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
        text=True,
    )
    package, folder = found.stdout.split()
    assert Path(package).is_relative_to(tmp_path)
    assert Path(folder) == tmp_path / "site" / "rouse_store" / "migrations"
    assert {p.name for p in (Path(folder) / "versions").glob("*.py")} == {
        p.name for p in (STORE.parents[1] / "migrations" / "versions").glob("*.py")
    }
