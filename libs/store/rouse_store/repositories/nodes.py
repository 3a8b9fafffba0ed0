"""Nodes, their devices, what they hold and what they were told to give back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, selectinload

from rouse_store.models import Device, Node, NodeDrop, Placement
from rouse_store.repositories import delete_rows

READY, LOST = "READY", "LOST"


class Nodes:
    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, node_id: str, *, lock: bool = False) -> Node | None:
        """A node with its devices."""
        query = select(Node).where(Node.node_id == node_id).options(selectinload(Node.devices))
        return self._session.scalar(query.with_for_update(of=Node) if lock else query)

    def all(self) -> list[Node]:
        """Every node with its devices, in the order of ids."""
        query = select(Node).order_by(Node.node_id.collate("C")).options(selectinload(Node.devices))
        return list(self._session.scalars(query))

    def add(self, node: Node) -> None:
        self._session.add(node)
        self._session.flush()

    def set_devices(self, node: Node, devices: Sequence[Device]) -> None:
        """Replaces the devices of a node that was read with them."""
        node.devices.clear()
        self._session.flush()
        node.devices.extend(devices)
        self._session.flush()

    def remove_lost(self, before: datetime) -> list[Node]:
        """Forgets nodes that are LOST since before a time, with everything of them; returns what they were."""
        query = select(Node).where(Node.state == LOST, Node.since < before).with_for_update()
        gone = list(self._session.scalars(query))
        delete_rows(self._session, delete(Node).where(Node.node_id.in_([node.node_id for node in gone])))
        return gone

    def placements(self, *, node_id: str = "", version_ids: Collection[str] | None = None) -> list[Placement]:
        query = select(Placement).order_by(Placement.node_id, Placement.version_id, Placement.device)
        if node_id:
            query = query.where(Placement.node_id == node_id)
        if version_ids is not None:
            query = query.where(Placement.version_id.in_(version_ids))
        return list(self._session.scalars(query))

    def replace_placements(self, node_id: str, placements: Iterable[Placement]) -> None:
        """Writes what a node holds. The versions must exist (see Functions.known_versions)."""
        self._session.execute(delete(Placement).where(Placement.node_id == node_id))
        self._session.add_all(placements)
        self._session.flush()

    def order_drops(self, rows: Sequence[dict[str, object]]) -> None:
        """Writes orders, given as columns of NodeDrop; one that stands already is kept."""
        if rows:
            self._session.execute(insert(NodeDrop).on_conflict_do_nothing(), list(rows))

    def drops(self, *, version_ids: Collection[str] | None = None) -> list[NodeDrop]:
        """Orders that are not carried out yet, oldest first."""
        query = select(NodeDrop).order_by(NodeDrop.ordered_at, NodeDrop.node_id, NodeDrop.version_id)
        if version_ids is not None:
            query = query.where(NodeDrop.version_id.in_(version_ids))
        return list(self._session.scalars(query))

    def dropped(self, node_id: str, version_id: str) -> None:
        """Strikes an order out."""
        self._session.execute(delete(NodeDrop).where(NodeDrop.node_id == node_id, NodeDrop.version_id == version_id))
