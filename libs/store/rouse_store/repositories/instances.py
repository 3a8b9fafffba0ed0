"""Instances of versions on nodes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, or_, select, true
from sqlalchemy.orm import Session, contains_eager

from rouse_store.models import ENDED_STATES, LIVE_STATES, Artefact, Function, Instance, Version
from rouse_store.repositories import delete_rows

LIVE = Instance.state.in_(LIVE_STATES)
NEWEST = (Instance.created_at.desc(), Instance.instance_id.desc())


class Instances:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, instance: Instance) -> None:
        self._session.add(instance)
        self._session.flush()

    def get(self, instance_id: str, *, lock: bool = False) -> Instance | None:
        """An instance with its version and function."""
        found = self._select(Instance.instance_id == instance_id, lock=lock)
        return found[0] if found else None

    def live_of_version(self, version_id: str) -> int:
        """How many instances of a version serve or will.

        One that is being stopped takes no place: a request that comes meanwhile must find a new one.
        """
        serving = LIVE & (Instance.state != "STOPPING")
        query = select(func.count()).select_from(Instance).where(Instance.version_id == version_id, serving)
        return self._session.scalar(query) or 0

    def live_by_node(self) -> dict[str, dict[str, int]]:
        """Live instances: how many, by node and version."""
        query = select(Instance.node_id, Instance.version_id, func.count()).where(LIVE)
        counts: dict[str, dict[str, int]] = {}
        for node_id, version_id, count in self._session.execute(query.group_by(Instance.node_id, Instance.version_id)):
            counts.setdefault(node_id, {})[version_id] = count
        return counts

    def weights_on_their_way(self) -> dict[str, dict[str, int]]:
        """Weights that instances which are PENDING or STARTING bring: bytes, by node and artefact."""
        query = (
            select(Instance.node_id, Artefact.digest, Artefact.weights_bytes)
            .distinct()
            .join(Instance.version)
            .join(Version.artefact)
            .where(Instance.state.in_(("PENDING", "STARTING")))
        )
        found: dict[str, dict[str, int]] = {}
        for node_id, digest, weights_bytes in self._session.execute(query):
            found.setdefault(node_id, {})[digest] = weights_bytes
        return found

    def failed_starts(self, version_id: str, since: datetime) -> dict[str, int]:
        """Starts of a version that failed since a time: how many, by node."""
        query = (
            select(Instance.node_id, func.count().label("starts"))
            .where(Instance.version_id == version_id, Instance.state == "FAILED", Instance.ready_at.is_(None))
            .where(Instance.since >= since)
            .group_by(Instance.node_id)
        )
        return {row.node_id: row.starts for row in self._session.execute(query)}

    def of_function(self, function_id: str, *, live: bool = False, lock: bool = False) -> list[Instance]:
        condition = Version.function_id == function_id
        return self._select(condition & LIVE if live else condition, lock=lock)

    def listed(self, function: str, include_ended: bool) -> list[Instance]:
        """Instances, oldest first; of all functions where `function` is empty."""
        condition = true() if include_ended else LIVE
        return self._select(condition & (Function.name == function) if function else condition)

    def of_node(self, node_id: str, *, lock: bool = False) -> list[Instance]:
        """Live instances of a node."""
        return self._select((Instance.node_id == node_id) & LIVE, lock=lock)

    def named(self, instance_ids: Collection[str]) -> list[Instance]:
        return self._select(Instance.instance_id.in_(instance_ids))

    def stuck(self, state: str, before: datetime) -> list[Instance]:
        """Instances that are in a state since before a time, locked."""
        return self._select((Instance.state == state) & (Instance.since < before), lock=True)

    def live_and_latest(self) -> list[Instance]:
        """Every live instance and the last one of each version: what states of functions are told from."""
        rank = func.row_number().over(partition_by=Instance.version_id, order_by=NEWEST)
        ranked = select(Instance.instance_id, rank.label("rank")).subquery()
        latest = select(ranked.c.instance_id).where(ranked.c.rank == 1)
        return self._select(or_(LIVE, Instance.instance_id.in_(latest)))

    def prune(self, keep: int) -> int:
        """Forgets all but the `keep` newest ended instances of each version."""
        rank = func.row_number().over(partition_by=Instance.version_id, order_by=NEWEST)
        ended = select(Instance.instance_id, rank.label("rank")).where(Instance.state.in_(ENDED_STATES)).subquery()
        old = select(ended.c.instance_id).where(ended.c.rank > keep)
        return delete_rows(
            self._session, delete(Instance).where(Instance.instance_id.in_(old), Instance.state.in_(ENDED_STATES))
        )

    def _select(self, condition: ColumnElement[bool], *, lock: bool = False) -> list[Instance]:
        query = (
            select(Instance)
            .join(Instance.version)
            .join(Version.function)
            .where(condition)
            .order_by(Instance.created_at, Instance.instance_id)
            .options(contains_eager(Instance.version).contains_eager(Version.function))
        )
        if lock:
            query = query.with_for_update(of=Instance).execution_options(populate_existing=True)
        return list(self._session.scalars(query))
