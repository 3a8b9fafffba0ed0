"""Functions, their versions and the artefacts these use."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased, contains_eager, joinedload, selectinload

from rouse_store.errors import Conflict
from rouse_store.models import DEFAULT_TENANT, Artefact, Function, Version

ACTIVE, DELETING = "ACTIVE", "DELETING"
# What is read along: a version's artefact with its addresses, a function's versions with theirs.
ARTEFACT = joinedload(Version.artefact).joinedload(Artefact.addresses)
VERSIONS = selectinload(Function.versions).joinedload(Version.artefact).joinedload(Artefact.addresses)


class Functions:
    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, name: str, *, lock: bool = False) -> Function | None:
        """The function of that name with its versions and their artefacts."""
        return self._one(Function.name == name, lock)

    def get(self, function_id: str, *, lock: bool = False) -> Function | None:
        return self._one(Function.function_id == function_id, lock)

    def _one(self, condition: Any, lock: bool) -> Function | None:
        query = select(Function).where(condition).options(VERSIONS)
        return self._session.scalar(query.with_for_update(of=Function) if lock else query)

    def all(self) -> list[Function]:
        """Every function with versions and artefacts, in the order of names."""
        query = select(Function).order_by(Function.name.collate("C")).options(VERSIONS)
        return list(self._session.scalars(query))

    def deleting(self) -> list[Function]:
        """Functions whose deletion has begun and not ended."""
        return list(self._session.scalars(select(Function).where(Function.state == DELETING).order_by(Function.since)))

    def ensure(self, function_id: str, name: str, now: datetime, tenant: str = DEFAULT_TENANT) -> tuple[Function, bool]:
        """The function of that name, locked, and whether it was made just now, for the tenant: then its first
        version has to follow in the same transaction. Raises Conflict where it was deleted in this very moment."""
        columns = {"function_id": function_id, "name": name, "state": ACTIVE, "active_version": 1, "tenant": tenant}
        statement = insert(Function).values(**columns, created_at=now, since=now)
        made = self._session.scalar(
            statement.on_conflict_do_nothing(index_elements=[Function.name]).returning(Function.function_id)
        )
        function = self.find(name, lock=True)
        if function is None:
            raise Conflict("deleted meanwhile")
        return function, made is not None

    def add_version(
        self,
        function: Function,
        version_id: str,
        artefact: Artefact,
        spec: dict[str, Any],
        now: datetime,
        deployment_id: str = "",
    ) -> Version:
        """One more version; who it is active for is the caller's to say. `function` must be locked."""
        newest = self._session.scalar(
            select(func.max(Version.version)).where(Version.function_id == function.function_id)
        )
        version = Version(
            version_id=version_id,
            function_id=function.function_id,
            version=(newest or 0) + 1,
            artefact_digest=artefact.digest,
            deployment_id=deployment_id,
            spec=spec,
            created_at=now,
        )
        version.artefact = artefact
        self._session.add(version)
        self._session.flush()
        return version

    def version(self, version_id: str, *, lock: bool = False) -> Version | None:
        """A version with its artefact and function; `lock` locks the function's row."""
        query = (
            select(Version)
            .join(Version.function)
            .where(Version.version_id == version_id)
            .options(contains_eager(Version.function), ARTEFACT)
        )
        return self._session.scalar(query.with_for_update(of=Function) if lock else query)

    def known_versions(self, version_ids: Collection[str]) -> dict[str, str]:
        """Digests by version of those that exist; they cannot be deleted before this transaction ends."""
        if not version_ids:
            return {}
        query = (
            select(Version.version_id, Version.artefact_digest)
            .where(Version.version_id.in_(version_ids))
            .order_by(Version.version_id)
            .with_for_update(read=True, key_share=True)
        )
        return {row.version_id: row.artefact_digest for row in self._session.execute(query)}

    def store_artefact(self, columns: dict[str, Any]) -> Artefact:
        """Inserts an artefact, or finds it, and locks its row; the caller looks at `deleting`."""
        self._session.execute(insert(Artefact).values(columns).on_conflict_do_nothing(index_elements=["digest"]))
        query = select(Artefact).where(Artefact.digest == columns["digest"]).with_for_update()
        return self._session.scalars(query.execution_options(populate_existing=True)).one()

    def condemn_artefacts(self, function_id: str) -> list[str]:
        """Marks the artefacts of a function that no function outside of deletion uses; returns their digests.

        Once marked, no new version can use them (see `store_artefact`).
        """
        own = self._lock_artefacts(function_id)
        other, user = aliased(Version), aliased(Function)
        in_use = exists(
            select(1)
            .select_from(other)
            .join(user, user.function_id == other.function_id)
            .where(other.artefact_digest == Artefact.digest, user.state != DELETING)
        )
        statement = update(Artefact).where(Artefact.digest.in_(own), ~in_use).values(deleting=True)
        found = self._session.scalars(
            statement.returning(Artefact.digest), execution_options={"synchronize_session": False}
        )
        return sorted(found)

    def remove(self, function_id: str) -> None:
        """Deletes a function with its versions, instances and placements, and those of its artefacts that are
        marked and that no version refers to any more."""
        # Locked before the versions go: of two functions that share an artefact the later one sees it unused.
        digests = self._lock_artefacts(function_id)
        self._session.execute(delete(Function).where(Function.function_id == function_id))
        used = exists(select(1).where(Version.artefact_digest == Artefact.digest))
        self._session.execute(delete(Artefact).where(Artefact.digest.in_(digests), Artefact.deleting, ~used))

    def _lock_artefacts(self, function_id: str) -> list[str]:
        own = select(Version.artefact_digest).where(Version.function_id == function_id)
        query = select(Artefact.digest).where(Artefact.digest.in_(own)).order_by(Artefact.digest).with_for_update()
        return list(self._session.scalars(query))

    def usable_artefacts(self, digests: Collection[str]) -> set[str]:
        """Those of some digests that functions outside of deletion use."""
        return set(
            self._session.scalars(select(Artefact.digest).where(Artefact.digest.in_(digests), ~Artefact.deleting))
        )

    def sharing_artefact(self, digest: str) -> set[str]:
        """Ids of the versions that use an artefact."""
        return set(self._session.scalars(select(Version.version_id).where(Version.artefact_digest == digest)))
