"""One transaction's view of the control plane: its repositories, and what it has to tell when it commits."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from rouse_store.models import ROUTING_GENERATION, Event
from rouse_store.models_access import ACCESS_GENERATION
from rouse_store.repositories.access import Access
from rouse_store.repositories.addresses import Addresses
from rouse_store.repositories.events import Events
from rouse_store.repositories.functions import Functions
from rouse_store.repositories.instances import Instances
from rouse_store.repositories.nodes import Nodes
from rouse_store.repositories.usage import Usage


class Unit:
    """Repositories over one session.

    Attributes:
        session: the transaction.
        recorded: events of this transaction, to be published when it has committed.
        routing_changed: whether the routing table has to be built again.
        access_changed: whether the access table has to be built again.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.functions = Functions(session)
        self.addresses = Addresses(session)
        self.nodes = Nodes(session)
        self.instances = Instances(session)
        self.usage = Usage(session)
        self.access = Access(session)
        self.events = Events(session)
        self.recorded: list[Event] = []
        self.routing_changed = False
        self.access_changed = False

    @property
    def has_news(self) -> bool:
        return self.routing_changed or self.access_changed or bool(self.recorded)

    def next_generation(self) -> int:
        """A number above all that were given out before."""
        return self.session.scalars(select(ROUTING_GENERATION.next_value())).one()

    def next_access_generation(self) -> int:
        """As `next_generation`, of the access table."""
        return self.session.scalars(select(ACCESS_GENERATION.next_value())).one()

    def record(self, at: datetime, kind: str, subject: str, message: str) -> None:
        """Writes an event and remembers it for publishing."""
        self.recorded.append(self.events.add(at, kind, subject, message))
