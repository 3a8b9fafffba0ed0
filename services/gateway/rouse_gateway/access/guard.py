"""Checking keys and roles.

On the way of a request this is one look into a dictionary: a text that was accepted before is found with its
holder, until the access table is replaced. A text that is new is hashed, and its digest looked up: how long that
takes tells nothing of other texts, because nobody can choose a digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
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
        # Set, and replaced, with every new table.
        self._changed = asyncio.Event()
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
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return True

    def admit(self, method: str, metadata: Mapping[str, str], peer: str) -> None:
        """Makes the caller of a gRPC method known to what serves it; `method` as /package.Service/Method.

        Raises Unauthenticated NO_KEY | BAD_KEY | KEY_EXPIRED, PermissionDenied ROLE_MISSING, ResourceExhausted
        TOO_MANY_FAILURES, Unavailable NOT_READY.
        """
        self.authorise(method, ROLES.get(method, ADMIN), _text(metadata), peer)

    async def lost(self, method: str, metadata: Mapping[str, str]) -> RouseError | None:
        """Returns once a caller that was admitted would be refused: its key was revoked, ran out, or lost the role.
        None at once where no key is needed."""
        return await self.withdrawn(method, ROLES.get(method, ADMIN), _text(metadata))

    async def withdrawn(self, what: str, role: int, text: str | None) -> RouseError | None:
        """As `lost`, with the role that is needed and the text of the header."""
        if not self.required or not text:
            return None
        while True:
            changed, holder = self._changed, self._find(text)
            if holder is None:
                return Unauthenticated("KEY_REVOKED", f"this API key was revoked while {what} was under way: {HOW}")
            try:
                self._check(what, role, holder)
            except RouseError as error:
                return error
            left_s = holder.valid_until - self._clock.now()
            try:
                async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                    await changed.wait()
            except TimeoutError:
                continue

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
        try:
            self._check(what, role, holder)
        except Unauthenticated as error:
            raise self._refused(error, peer) from None
        CALLER.set(holder.caller)

    def _check(self, what: str, role: int, holder: Holder) -> None:
        """Raises Unauthenticated KEY_EXPIRED, PermissionDenied ROLE_MISSING."""
        if holder.valid_until <= self._clock.now():
            raise Unauthenticated("KEY_EXPIRED", "this API key is out of date; ask an administrator for a new one")
        if holder.caller.role < role:
            metrics.REFUSED_CALLERS.labels("ROLE_MISSING").inc()
            raise PermissionDenied(
                "ROLE_MISSING",
                f"{what} needs the role {ROLE_NAMES[role]}; key {holder.caller.key_id} of tenant "
                f"'{holder.caller.tenant}' has {ROLE_NAMES[holder.caller.role]}",
                key=holder.caller.key_id, tenant=holder.caller.tenant, role=ROLE_NAMES[role],
            )  # fmt: skip

    def _look_up(self, what: str, text: str, peer: str) -> Holder:
        if not self.loaded.is_set():
            raise Unavailable(
                "NOT_READY", "the gateway does not know any keys yet; it waits for cluster-manager",
                retry_after_s=NOT_READY_RETRY_S,
            )  # fmt: skip
        if not _key(text):
            metrics.REFUSED_CALLERS.labels("NO_KEY").inc()
            raise Unauthenticated("NO_KEY", f"{what} needs an API key: {HOW}")
        holder = self._find(text)
        if holder is None:
            # Without the text, which may be a key with a letter missing.
            raise self._refused(Unauthenticated("BAD_KEY", f"this API key is unknown or was revoked: {HOW}"), peer)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[text] = holder
        return holder

    def _find(self, text: str) -> Holder | None:
        """Who has the key of a header's text."""
        key = _key(text)
        if len(key) > MAX_TEXT_CHARS:
            return None
        return self._table.holders.get(hashlib.sha256(key.encode(errors="replace")).digest())

    def _refused(self, error: Unauthenticated, peer: str) -> RouseError:
        metrics.REFUSED_CALLERS.labels(error.reason).inc()
        wait_s = self._failures.count(host_of(peer))
        if not wait_s:
            return error
        return ResourceExhausted(
            "TOO_MANY_FAILURES", f"too many wrong API keys came from {host_of(peer)}; the last: {error.message}",
            retry_after_s=wait_s,
        )  # fmt: skip


def _text(metadata: Mapping[str, str]) -> str | None:
    return metadata.get("authorization") or metadata.get("x-api-key")


def _key(text: str) -> str:
    # Some clients leave the blank behind a header's colon in its value.
    text = text.strip()
    return text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else text


# Who needs no key sees what is shared, and nothing else.
_STRANGER = Caller(tenant="", role=OPEN)
