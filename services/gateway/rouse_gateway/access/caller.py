"""Who a request comes from."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from rouse_cache import Rate
from rouse_contracts.access import ROLE_ADMIN, ROLE_DEPLOY, ROLE_INVOKE

DEFAULT_TENANT = "default"
# Below every role: needs no key.
OPEN = 0
INVOKE, DEPLOY, ADMIN = int(ROLE_INVOKE), int(ROLE_DEPLOY), int(ROLE_ADMIN)
ROLE_NAMES = {OPEN: "none", INVOKE: "INVOKE", DEPLOY: "DEPLOY", ADMIN: "ADMIN"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Args:
    tenant: whose functions it sees and whose quota it uses.
    role: OPEN, INVOKE, DEPLOY or ADMIN; each may do what those before it may.
    weight: its tenant's share of a contended queue.
    key_id: of its key; empty where none is needed.
    rate: requests a second that its tenant may send; None is no limit.
    max_concurrent: requests in flight that its tenant may have; 0 is no limit.
    """

    tenant: str = DEFAULT_TENANT
    role: int = ADMIN
    weight: int = 1
    key_id: str = ""
    rate: Rate | None = None
    max_concurrent: int = 0

    @property
    def sees_all(self) -> bool:
        return self.role >= ADMIN

    def owns(self, tenant: str) -> bool:
        """Whether what belongs to a tenant is its to change."""
        return self.sees_all or self.tenant == tenant


# Of the request that the running task serves.
CALLER: ContextVar[Caller] = ContextVar("caller")
# Work of the gateway itself is nobody's, and sees everything.
_ITSELF = Caller()


def current() -> Caller:
    """Whose request is being served."""
    return CALLER.get(_ITSELF)
