"""API keys. Their texts are random and shown once; what is kept is sha256 of them, which needs no salt and no
slow hash: there is nothing to guess in 256 random bits."""

from __future__ import annotations

import hashlib
import logging
import secrets
from datetime import datetime, timedelta

from rouse_cluster_manager.access import rules
from rouse_cluster_manager.access.tenants import subject
from rouse_cluster_manager.adapters import access_rows
from rouse_cluster_manager.state import at
from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition
from rouse_contracts import access
from rouse_store import Database, Unit
from rouse_store.models import DEFAULT_TENANT
from rouse_store.models_access import Key
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
SECRET_BYTES = 32
BOOTSTRAP = "bootstrap"
# Revoked and expired keys are shown in lists for so long.
KEPT_S = 30 * 86_400.0


def digest(text: str) -> bytes:
    """What is kept of a key's text."""
    return hashlib.sha256(text.encode()).digest()


def new_text(key_id: str) -> str:
    return f"rouse_{key_id}_{secrets.token_hex(SECRET_BYTES)}"


class Keys:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    async def create(self, request: access.CreateKeyRequest) -> tuple[access.Key, str]:
        """A key and its text. Raises NotFound TENANT_NOT_FOUND, InvalidArgument BAD_ROLE | BAD_DURATION."""
        role = rules.role_name(request.role)
        now = at(self._clock.now())
        expires = None
        if request.HasField("lifetime"):
            expires = now + timedelta(seconds=rules.seconds("lifetime", request.lifetime.ToNanoseconds() / 1e9))
        key_id = secrets.token_hex(6)
        text = new_text(key_id)

        def work(unit: Unit) -> access.Key:
            if unit.access.hold_tenant(clean(request.tenant)) is None:
                raise rules.no_tenant(request.tenant)
            if unit.access.count_keys() >= rules.MAX_KEYS:
                raise rules.too_many("keys", rules.MAX_KEYS)
            row = Key(
                key_id=key_id, tenant=request.tenant, role=role, digest=digest(text), created_at=now,
                description=clean(request.description, rules.MAX_DESCRIPTION_CHARS), expires_at=expires,
            )  # fmt: skip
            unit.access.add(row)
            _tell(unit, now, "key.created", row, f"role {role}")
            return access_rows.key_message(row)

        return await self._database.run(work), text

    async def listed(self, tenant: str) -> list[access.Key]:
        """Keys of a tenant, or of all. Raises NotFound TENANT_NOT_FOUND."""

        def work(unit: Unit) -> list[access.Key]:
            if tenant and unit.access.tenant(clean(tenant)) is None:
                raise rules.no_tenant(tenant)
            return [access_rows.key_message(row) for row in unit.access.list_keys(clean(tenant))]

        return await self._database.run(work)

    async def rotate(self, key_id: str, grace_s: float) -> tuple[access.Key, str]:
        """A new text; the old one holds for `grace_s`. Raises NotFound KEY_NOT_FOUND, FailedPrecondition
        KEY_REVOKED, InvalidArgument BAD_DURATION."""
        rules.seconds("grace", grace_s)
        now, text = at(self._clock.now()), new_text(clean(key_id, 80))

        def work(unit: Unit) -> access.Key:
            row = unit.access.key(clean(key_id), lock=True)
            if row is None:
                raise rules.no_key(key_id)
            if row.revoked_at is not None:
                raise FailedPrecondition("KEY_REVOKED", f"key {key_id} was revoked; make a new one", key=key_id)
            if grace_s:
                row.previous_digest, row.previous_until = row.digest, now + timedelta(seconds=grace_s)
            else:
                row.previous_digest, row.previous_until = None, None
            row.digest = digest(text)
            _tell(unit, now, "key.rotated", row, f"the text before holds for {grace_s:g} s")
            return access_rows.key_message(row)

        return await self._database.run(work), text

    async def revoke(self, key_id: str) -> None:
        """Refused from now on. Raises NotFound KEY_NOT_FOUND."""
        now = at(self._clock.now())

        def work(unit: Unit) -> None:
            row = unit.access.key(clean(key_id), lock=True)
            if row is None:
                raise rules.no_key(key_id)
            if row.revoked_at is None:
                row.revoked_at = now
                _tell(unit, now, "key.revoked", row, f"role {row.role}")

        await self._database.run(work)

    async def bootstrap(self, text: str) -> None:
        """Makes sure that there is an administrator's key with the text that the operator set.

        A text that was revoked stays revoked; another text makes the key valid again.
        """
        if not text:
            return
        now, wanted = at(self._clock.now()), digest(text)

        def work(unit: Unit) -> bool:
            row = unit.access.key(BOOTSTRAP, lock=True)
            if row is not None and row.digest == wanted:
                return False
            if unit.access.digest_is_used(wanted, BOOTSTRAP):
                raise FailedPrecondition("KEY_EXISTS", "bootstrap_key is the text of another key; choose a new one")
            if row is None:
                row = Key(
                    key_id=BOOTSTRAP, tenant=DEFAULT_TENANT, role="ADMIN", digest=wanted, created_at=now,
                    description="set by bootstrap_key",
                )  # fmt: skip
                unit.access.add(row)
            row.digest, row.previous_digest, row.previous_until = wanted, None, None
            row.revoked_at = row.expires_at = None
            _tell(unit, now, "key.created", row, "role ADMIN, set by bootstrap_key")
            return True

        if await self._database.run(work):
            LOG.info("bootstrap key set key=%s tenant=%s", BOOTSTRAP, DEFAULT_TENANT)

    async def prune(self) -> None:
        """Forgets keys that were revoked, or expired, long ago; their texts are unknown before and after."""
        before = at(self._clock.now() - KEPT_S)

        def work(unit: Unit) -> None:
            unit.access_changed = unit.access.forget_keys(before) > 0

        await self._database.run(work)


def _tell(unit: Unit, now: datetime, kind: str, row: Key, words: str) -> None:
    unit.access_changed = True
    unit.record(now, kind, subject(row.tenant), f"key {row.key_id}: {words}")
    LOG.info("%s key=%s tenant=%s role=%s", kind, row.key_id, row.tenant, row.role)
