"""Redis: what may be lost and must be fast and shared."""

from rouse_cache.windows import Activity, Windows

__all__ = ["Activity", "Windows"]
