"""What happened: an append-only ledger of bounded length."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from rouse_store.models import Event
from rouse_store.repositories import delete_rows
from rouse_store.text import clean

MAX_NAME_CHARS = 200


class Events:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, at: datetime, kind: str, subject: str, message: str) -> Event:
        event = Event(at=at, kind=kind, subject=clean(subject, MAX_NAME_CHARS), message=clean(message))
        self._session.add(event)
        return event

    def newest(self, subject: str, limit: int) -> list[Event]:
        """Up to `limit` events, newest first; of all subjects where `subject` is empty."""
        query = select(Event).order_by(Event.event_id.desc()).limit(limit)
        if subject:
            query = query.where(Event.subject == clean(subject, MAX_NAME_CHARS))
        return list(self._session.scalars(query))

    def prune(self, keep: int) -> int:
        """Forgets all but about the `keep` newest, those of deleted functions too; returns how many."""
        newest = self._session.scalar(select(func.max(Event.event_id)))
        if newest is None:
            return 0
        return delete_rows(self._session, delete(Event).where(Event.event_id <= newest - keep))
