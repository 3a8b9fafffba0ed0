"""Tenants, keys and secrets."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from rouse_store.models import Function, Version
from rouse_store.models_access import Key, Secret, Tenant
from rouse_store.repositories import delete_rows


class Access:
    def __init__(self, session: Session) -> None:
        self._session = session

    # ---- Tenants --------------------------------------------------------------------------------------

    def tenant(self, name: str, *, lock: bool = False) -> Tenant | None:
        """A tenant; locked against changes where it is to be changed or deleted."""
        query = select(Tenant).where(Tenant.name == name)
        return self._session.scalar(query.with_for_update() if lock else query)

    def hold_tenant(self, name: str) -> Tenant | None:
        """A tenant that cannot be deleted before this transaction ends."""
        return self._session.scalar(
            select(Tenant).where(Tenant.name == name).with_for_update(read=True, key_share=True)
        )

    def tenants(self) -> list[Tenant]:
        """All of them in the order of names."""
        return list(self._session.scalars(select(Tenant).order_by(Tenant.name.collate("C"))))

    def count_tenants(self) -> int:
        return self._session.scalars(select(func.count()).select_from(Tenant)).one()

    def add(self, row: Tenant | Key) -> None:
        self._session.add(row)
        self._session.flush()

    def delete_tenant(self, name: str) -> None:
        """Deletes a tenant that has no functions, with its keys and secrets."""
        self._session.execute(delete(Tenant).where(Tenant.name == name))

    def functions_of(self, tenant: str) -> list[str]:
        """Names of a tenant's functions, those in deletion included."""
        return list(
            self._session.scalars(select(Function.name).where(Function.tenant == tenant).order_by(Function.name))
        )

    # ---- Keys -----------------------------------------------------------------------------------------

    def key(self, key_id: str, *, lock: bool = False) -> Key | None:
        query = select(Key).where(Key.key_id == key_id)
        return self._session.scalar(query.with_for_update() if lock else query)

    def list_keys(self, tenant: str = "") -> list[Key]:
        """Keys of a tenant, or of all, oldest first."""
        query = select(Key).order_by(Key.created_at, Key.key_id)
        return list(self._session.scalars(query.where(Key.tenant == tenant) if tenant else query))

    def count_keys(self) -> int:
        return self._session.scalars(select(func.count()).select_from(Key)).one()

    def digest_is_used(self, digest: bytes, besides: str) -> bool:
        """Whether a key other than `besides` has that digest."""
        query = select(Key.key_id).where(
            or_(Key.digest == digest, Key.previous_digest == digest), Key.key_id != besides
        )
        return self._session.scalar(query.limit(1)) is not None

    def forget_keys(self, before: datetime) -> int:
        """Deletes keys that were revoked, or expired, before a time; returns how many."""
        return delete_rows(self._session, delete(Key).where(or_(Key.revoked_at < before, Key.expires_at < before)))

    # ---- Secrets --------------------------------------------------------------------------------------

    def put_secret(self, tenant: str, name: str, ciphertext: bytes, now: datetime) -> None:
        values = {"ciphertext": ciphertext, "changed_at": now}
        statement = insert(Secret).values(tenant=tenant, name=name, **values)
        self._session.execute(statement.on_conflict_do_update(index_elements=[Secret.tenant, Secret.name], set_=values))

    def secrets(self, tenant: str, names: Collection[str] | None = None) -> list[Secret]:
        """A tenant's secrets in the order of names; with `names` these, where they are there, kept from being
        deleted before this transaction ends."""
        query = select(Secret).where(Secret.tenant == tenant).order_by(Secret.name.collate("C"))
        if names is not None:
            query = query.where(Secret.name.in_(names)).with_for_update(read=True, key_share=True)
        return list(self._session.scalars(query))

    def count_secrets(self, tenant: str) -> int:
        return self._session.scalars(select(func.count()).select_from(Secret).where(Secret.tenant == tenant)).one()

    def lock_secret(self, tenant: str, name: str) -> bool:
        """Locks a secret and says whether there is one."""
        query = select(Secret.name).where(Secret.tenant == tenant, Secret.name == name).with_for_update()
        return self._session.scalar(query) is not None

    def delete_secret(self, tenant: str, name: str) -> None:
        self._session.execute(delete(Secret).where(Secret.tenant == tenant, Secret.name == name))

    def users_of_secret(self, tenant: str, name: str) -> list[str]:
        """Names of a tenant's functions with a version that refers to a secret."""
        query = (
            select(Function.name)
            .join(Version, Version.function_id == Function.function_id)
            .where(Function.tenant == tenant, Version.spec["secrets"].contains([{"secret": name}]))
            .distinct()
            .order_by(Function.name)
        )
        return list(self._session.scalars(query))
