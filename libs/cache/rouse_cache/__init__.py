"""Redis: what may be lost and must be fast and shared."""

from rouse_cache.allowances import Rate
from rouse_cache.answers import Answers, Known, Name, Reservation
from rouse_cache.limits import Limits
from rouse_cache.windows import VERSION_MARK, Activity, Windows

__all__ = ["VERSION_MARK", "Activity", "Answers", "Known", "Limits", "Name", "Rate", "Reservation", "Windows"]
