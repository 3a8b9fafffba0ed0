"""The control plane in PostgreSQL: models, repositories, migrations. The only place that speaks SQL."""

from rouse_store.database import Database, WriterLock
from rouse_store.unit import Unit

__all__ = ["Database", "Unit", "WriterLock"]
