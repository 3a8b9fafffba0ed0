"""Checking keys and roles.

On the way of a request this is one look into a dictionary: a text that was accepted before is found with its
holder, until the access table is replaced. A text that is new is hashed, and its digest looked up: how long that
takes tells nothing of other texts, because nobody can choose a digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from rouse_common.clock import Clock
from rouse_common.errors import PermissionDenied, ResourceExhausted, RouseError, Unauthenticated, Unavailable
from rouse_gateway import metrics
from rouse_gateway.access.caller import ADMIN, CALLER, OPEN, ROLE_NAMES, Caller
from rouse_gateway.access.failures import Failures, host_of
from rouse_gateway.access.roles import ROLES
from rouse_gateway.access.table import Holder, Table

# Texts that were accepted, at most; more would be more keys in use than a mesh has.
MAX_KNOWN = 20_000
MAX_TEXT_CHARS = 512
BEARER = "bearer "
NOT_READY_RETRY_S = 1.0
HOW = "send `authorization: Bearer <key>`; the SDK and the command line take it from ROUSE_API_KEY"


class Access:
    """Args:
    required: whether a key is needed; without, everybody is an administrator of the default tenant.
    """

    def __init__(self, clock: Clock, *, required: bool) -> None:
        self.required = required
        self.loaded = asyncio.Event()
        self._clock = clock
        self._table = Table()
        self._known: dict[str, Holder] = {}
        self._failures = Failures(clock)

    @property
    def generation(self) -> int:
        return self._table.generation

    def apply(self, table: Table, *, restored: bool = False) -> bool:
        """Takes a table with a higher generation into use and says whether it did; with `restored` any one."""
        if table.generation <= self._table.generation and not restored:
            return False
        self._table = table
        self._known.clear()
        metrics.ACCESS_GENERATION.set(table.generation)
        self.loaded.set()
        return True

    def admit(self, method: str, metadata: Mapping[str, str], peer: str) -> None:
        """Makes the caller of a gRPC method known to what serves it; `method` as /package.Service/Method.

        Raises Unauthenticated NO_KEY | BAD_KEY | KEY_EXPIRED, PermissionDenied ROLE_MISSING, ResourceExhausted
        TOO_MANY_FAILURES, Unavailable NOT_READY.
        """
        text = metadata.get("authorization") or metadata.get("x-api-key")
        self.authorise(method, ROLES.get(method, ADMIN), text, peer)

    def authorise(self, what: str, role: int, text: str | None, peer: str) -> None:
        """As `admit`, with the role that is needed and the text of the header, which may be a bearer token."""
        if not self.required:
            CALLER.set(self._table.nobody)
            return
        if role == OPEN and not text:
            CALLER.set(_STRANGER)
            return
        holder = self._known.get(text) if text else None
        if holder is None:
            holder = self._look_up(what, text or "", peer)
        if holder.valid_until <= self._clock.now():
            raise self._refused(
                Unauthenticated("KEY_EXPIRED", "this API key is out of date; ask an administrator for a new one"), peer
            )
        if holder.caller.role < role:
            metrics.REFUSED_CALLERS.labels("ROLE_MISSING").inc()
            raise PermissionDenied(
                "ROLE_MISSING",
                f"{what} needs the role {ROLE_NAMES[role]}; key {holder.caller.key_id} of tenant "
                f"'{holder.caller.tenant}' has {ROLE_NAMES[holder.caller.role]}",
                key=holder.caller.key_id, tenant=holder.caller.tenant, role=ROLE_NAMES[role],
            )  # fmt: skip
        CALLER.set(holder.caller)

    def _look_up(self, what: str, text: str, peer: str) -> Holder:
        if not self.loaded.is_set():
            raise Unavailable(
                "NOT_READY", "the gateway does not know any keys yet; it waits for cluster-manager",
                retry_after_s=NOT_READY_RETRY_S,
            )  # fmt: skip
        key = text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else text.strip()
        if not key:
            metrics.REFUSED_CALLERS.labels("NO_KEY").inc()
            raise Unauthenticated("NO_KEY", f"{what} needs an API key: {HOW}")
        holder = None
        if len(key) <= MAX_TEXT_CHARS:
            holder = self._table.holders.get(hashlib.sha256(key.encode(errors="replace")).digest())
        if holder is None:
            # Without the text, which may be a key with a letter missing.
            raise self._refused(Unauthenticated("BAD_KEY", f"this API key is unknown or was revoked: {HOW}"), peer)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[text] = holder
        return holder

    def _refused(self, error: Unauthenticated, peer: str) -> RouseError:
        metrics.REFUSED_CALLERS.labels(error.reason).inc()
        wait_s = self._failures.count(host_of(peer))
        if not wait_s:
            return error
        return ResourceExhausted(
            "TOO_MANY_FAILURES", f"too many wrong API keys came from {host_of(peer)}; the last: {error.message}",
            retry_after_s=wait_s,
        )  # fmt: skip


# Who needs no key sees what is shared, and nothing else.
_STRANGER = Caller(tenant="", role=OPEN)
