"""Migrations are one line: two that were written side by side show here, and not when a mesh starts."""

from __future__ import annotations

from pathlib import Path

from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def test_there_is_one_newest_migration_and_numbers_are_those_of_the_files() -> None:
    scripts = ScriptDirectory(str(MIGRATIONS))
    assert len(scripts.get_heads()) == 1
    files = sorted((MIGRATIONS / "versions").glob("*.py"))
    revisions = [script.revision for script in reversed(list(scripts.walk_revisions()))]
    assert revisions == [path.name[:4] for path in files]
