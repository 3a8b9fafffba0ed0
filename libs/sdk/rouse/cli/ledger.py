"""The ledger as a file: rows of hours, tenants and functions."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from rouse.types import Usage, UsageRow

COLUMNS = ("hour", "tenant", "function", *(field.name for field in fields(Usage)))


def _csv(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> None:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _jsonl(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")


WRITERS: Mapping[str, Callable[[TextIO, Iterable[Mapping[str, Any]]], None]] = {".csv": _csv, ".jsonl": _jsonl}


def write(path: Path, rows: Sequence[UsageRow]) -> None:
    """Writes all rows or nothing; numbers with all their digits, so that sums are those of the mesh."""
    flat = (
        {"hour": row.hour.isoformat() if row.hour else "", "tenant": row.tenant, "function": row.function}
        | asdict(row.usage)
        for row in rows
    )
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            WRITERS[path.suffix](file, flat)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
