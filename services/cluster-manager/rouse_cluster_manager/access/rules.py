"""What tenants, keys and secrets may be."""

from __future__ import annotations

import math
import re

from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound
from rouse_contracts import access
from rouse_store.models import NAME_PATTERN
from rouse_store.models_access import MAX_WEIGHT, ROLES, TENANT_PATTERN
from rouse_store.text import clean

TENANT = re.compile(TENANT_PATTERN)
SECRET = re.compile(NAME_PATTERN)
MAX_RATE = 1e9
MAX_SECRET_BYTES = 64 << 10
MAX_DESCRIPTION_CHARS = 500
MAX_LIFETIME_S = 100 * 365.25 * 86_400
# Bounds of what every gateway keeps in memory.
MAX_TENANTS = 10_000
MAX_KEYS = 20_000
MAX_SECRETS = 1_000

ROLE_NAMES: dict[int, str] = {access.Role.Value(f"ROLE_{name}"): name for name in ROLES}


def check_tenant_name(name: str) -> None:
    """Raises InvalidArgument BAD_NAME."""
    if not TENANT.fullmatch(name):
        raise InvalidArgument(
            "BAD_NAME",
            f"'{clean(name, 80)}' is not a name for a tenant; it takes 1 to 63 lower-case letters, digits and '-', and "
            "begins with a letter or digit",
        )


def check_quota(tenant: access.Tenant) -> None:
    """Raises InvalidArgument BAD_QUOTA."""
    rate = tenant.quota.requests_per_second
    if not (math.isfinite(rate) and 0 <= rate <= MAX_RATE):
        raise _bad_quota(tenant, f"requests_per_second is {rate:g}, want 0 (no limit) to {MAX_RATE:g}")
    if tenant.quota.burst and not rate:
        raise _bad_quota(tenant, "there is a burst but no requests_per_second; set both, or neither")
    if tenant.weight > MAX_WEIGHT:
        raise _bad_quota(tenant, f"weight is {tenant.weight}, want 1 to {MAX_WEIGHT}")


def _bad_quota(tenant: access.Tenant, text: str) -> InvalidArgument:
    return InvalidArgument("BAD_QUOTA", f"tenant '{tenant.name}': {text}", tenant=tenant.name)


def check_secret(name: str, value: str) -> None:
    """Raises InvalidArgument BAD_NAME | BAD_SECRET; the value is in no message."""
    if not SECRET.fullmatch(name):
        raise InvalidArgument(
            "BAD_NAME",
            f"'{clean(name, 140)}' is not a name for a secret; it takes 1 to 128 letters, digits, '.', '_' and '-' and "
            "begins with a letter or digit",
        )
    size = len(value.encode())
    if not 0 < size <= MAX_SECRET_BYTES or "\x00" in value:
        raise InvalidArgument(
            "BAD_SECRET",
            f"secret '{name}' has {size} bytes; want 1 to {MAX_SECRET_BYTES} of text without a NUL character",
            secret=name,
        )


def role_name(role: int) -> str:
    """Raises InvalidArgument BAD_ROLE."""
    name = ROLE_NAMES.get(role)
    if name is None:
        raise InvalidArgument("BAD_ROLE", f"role {role} is unknown; want one of {', '.join(ROLES)}")
    return name


def seconds(what: str, value: float) -> float:
    """A duration of a request, in seconds. Raises InvalidArgument BAD_DURATION."""
    if not 0 <= value <= MAX_LIFETIME_S:
        raise InvalidArgument("BAD_DURATION", f"{what} is {value:g} s, want 0 to {MAX_LIFETIME_S:g}")
    return value


def too_many(what: str, limit: int) -> FailedPrecondition:
    return FailedPrecondition("TOO_MANY", f"there are {limit} {what} already, which is the most; delete some first")


def no_tenant(name: str) -> NotFound:
    return NotFound(
        "TENANT_NOT_FOUND", f"there is no tenant '{clean(name, 80)}'; `rouse tenants list` lists them", tenant=name[:80]
    )


def no_key(key_id: str) -> NotFound:
    return NotFound(
        "KEY_NOT_FOUND", f"there is no key '{clean(key_id, 80)}'; `rouse keys list` lists them", key=key_id[:80]
    )
