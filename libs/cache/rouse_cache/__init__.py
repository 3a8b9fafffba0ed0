"""Redis: what may be lost and must be fast and shared."""

from rouse_cache.allowances import Rate
from rouse_cache.answers import Answers, Known, Name, Reservation
from rouse_cache.limits import Limits
from rouse_cache.windows import Activity, Windows

__all__ = ["Activity", "Answers", "Known", "Limits", "Name", "Rate", "Reservation", "Windows"]
