"""Keys and roles: who is let in, who is refused and how, what each may see."""

from __future__ import annotations

import hashlib

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from rouse_common.errors import PermissionDenied, ResourceExhausted, RouseError, Unauthenticated, Unavailable
from rouse_contracts import access, functions, inference
from rouse_gateway.access import failures, roles
from rouse_gateway.access.caller import ADMIN, DEPLOY, INVOKE, OPEN, Caller, current
from rouse_gateway.access.failures import Failures, host_of
from rouse_gateway.access.guard import Access
from rouse_gateway.access.table import index
from rouse_gateway.access.view import Seen
from rouse_gateway.state import Route
from rouse_testkit.clock import ManualClock

INFER = roles.FUNCTIONS + "Infer"
DEPLOY_METHOD = roles.FUNCTIONS + "DeployFunction"
PEER = "ipv4:10.0.0.1:5000"


def table(generation: int, *keys: tuple[str, str, access.Role, float]) -> access.AccessTable:
    made = access.AccessTable(generation=generation)
    made.tenants.add(name="default", weight=1)
    made.tenants.add(
        name="acme", weight=7, quota=access.Quota(requests_per_second=5, burst=9, max_concurrent_requests=3)
    )
    for text, tenant, role, until in keys:
        row = made.keys.add(
            key_id=f"id-{text}", sha256=hashlib.sha256(text.encode()).digest(), tenant=tenant, role=role
        )
        if until:
            row.valid_until.CopyFrom(Timestamp(seconds=int(until)))
    return made


@pytest.fixture
def guard(manual_clock: ManualClock) -> Access:
    guard = Access(manual_clock, required=True)
    now = manual_clock.now()
    rows = [
        ("invoker", "acme", access.ROLE_INVOKE, 0.0),
        ("deployer", "acme", access.ROLE_DEPLOY, now + 100),
        ("admin", "default", access.ROLE_ADMIN, 0.0),
        ("orphan", "nobody", access.ROLE_ADMIN, 0.0),
    ]
    guard.apply(index(table(5, *rows)))
    return guard


def refusal(guard: Access, method: str, **metadata: str) -> RouseError:
    with pytest.raises(RouseError) as caught:
        guard.admit(method, {name.replace("_", "-"): text for name, text in metadata.items()}, PEER)
    return caught.value


def test_a_key_stands_for_its_tenant_in_either_header(guard: Access) -> None:
    for metadata in (
        {"authorization": "Bearer invoker"},
        {"authorization": "bearer  invoker "},
        {"authorization": "invoker"},
        {"x-api-key": "invoker"},
    ):
        for _ in range(2):  # looked up, and found again
            guard.admit(INFER, metadata, PEER)
            caller = current()
            assert (caller.tenant, caller.role, caller.weight, caller.key_id) == ("acme", INVOKE, 7, "id-invoker")
            assert caller.rate is not None
            assert (caller.rate.per_second, caller.rate.burst, caller.max_concurrent) == (5, 9, 3)


def test_who_is_refused_learns_why_and_nothing_of_the_text(guard: Access) -> None:
    error = refusal(guard, INFER)
    assert isinstance(error, Unauthenticated)
    assert error.reason == "NO_KEY"
    for text in ("Bearer wrong-secret", "wrong-secret", "Bearer orphan", "é" * 40, "x" * 5000):
        error = refusal(guard, INFER, authorization=text)
        assert error.reason == "BAD_KEY"
        assert "wrong-secret" not in f"{error.message} {error.metadata}"
    error = refusal(guard, DEPLOY_METHOD, authorization="Bearer invoker")
    assert isinstance(error, PermissionDenied)
    assert (error.reason, error.metadata["role"]) == ("ROLE_MISSING", "DEPLOY")
    for method in ("/rouse.access.v1.AccessService/ListKeys", "/some.new.Service/Method"):
        assert refusal(guard, method, authorization="Bearer deployer").reason == "ROLE_MISSING"
        guard.admit(method, {"authorization": "Bearer admin"}, PEER)


def test_keys_expire_also_those_that_were_used(guard: Access, manual_clock: ManualClock) -> None:
    guard.admit(DEPLOY_METHOD, {"authorization": "Bearer deployer"}, PEER)
    manual_clock.advance(101)
    error = refusal(guard, DEPLOY_METHOD, authorization="Bearer deployer")
    assert error.reason == "KEY_EXPIRED"


def test_a_revoked_key_is_refused_with_the_table_that_lacks_it(guard: Access) -> None:
    guard.admit(INFER, {"authorization": "Bearer invoker"}, PEER)
    assert not guard.apply(index(table(4)))
    guard.admit(INFER, {"authorization": "Bearer invoker"}, PEER)
    assert guard.apply(index(table(6)))
    assert refusal(guard, INFER, authorization="Bearer invoker").reason == "BAD_KEY"


def test_before_the_first_table_nobody_is_called_a_stranger(manual_clock: ManualClock) -> None:
    guard = Access(manual_clock, required=True)
    with pytest.raises(Unavailable) as caught:
        guard.admit(INFER, {"authorization": "Bearer invoker"}, PEER)
    assert caught.value.reason == "NOT_READY"
    guard.admit(roles.INFERENCE + "ServerLive", {}, PEER)


def test_without_authentication_everybody_is_an_administrator(manual_clock: ManualClock) -> None:
    guard = Access(manual_clock, required=False)
    guard.admit("/any/Method", {"authorization": "Bearer whatever"}, PEER)
    assert (current().tenant, current().role) == ("default", ADMIN)


def test_wrong_keys_are_counted_by_host_and_right_ones_pass(guard: Access, manual_clock: ManualClock) -> None:
    for number in range(int(failures.AT_ONCE)):
        with pytest.raises(Unauthenticated):
            guard.admit(INFER, {"authorization": "Bearer wrong"}, f"ipv4:10.0.0.1:{number}")
    with pytest.raises(ResourceExhausted) as caught:
        guard.admit(INFER, {"authorization": "Bearer wrong"}, PEER)
    assert caught.value.reason == "TOO_MANY_FAILURES"
    assert caught.value.retry_after_s
    with pytest.raises(Unauthenticated):
        guard.admit(INFER, {"authorization": "Bearer wrong"}, "ipv4:10.0.0.2:1")
    guard.admit(INFER, {"authorization": "Bearer invoker"}, PEER)
    manual_clock.advance(1)
    assert refusal(guard, INFER, authorization="Bearer wrong").reason == "BAD_KEY"


def test_the_hosts_that_are_counted_are_bounded(manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_PEERS", 3)
    counted = Failures(manual_clock)
    for number in range(10):
        counted.count(f"peer{number}")
    assert list(counted._peers) == ["peer7", "peer8", "peer9"]
    assert [host_of(peer) for peer in ("ipv6:[::1]:80", "unix:", "10.0.0.1")] == ["ipv6:[::1]", "unix:", "10.0.0.1"]


def test_every_method_has_a_role() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for contract in (inference, functions, access)
        for service in contract.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(roles.ROLES) == methods
    assert roles.role_of_path("/v2/models/{model}/infer") == INVOKE
    assert roles.role_of_path("/v2/repository/models/{model}/load") == DEPLOY
    assert roles.role_of_path("/v2/logging") == ADMIN
    assert roles.role_of_path("/v3/something") == ADMIN


def test_tenants_see_their_own_functions_and_shared_ones() -> None:
    def route(name: str, tenant: str, *, shared: bool = False) -> Route:
        return Route(name, 0, "", {}, 0, tenant=tenant, shared=shared)

    functions_ = {
        "own": route("own", "acme"),
        "other": route("other", "default"),
        "common": route("common", "default", shared=True),
    }
    seen = Seen(functions_, Caller("acme", INVOKE))
    assert list(seen) == ["own", "common"]
    assert len(seen) == 2
    assert "other" not in seen
    assert seen.get("other") is None
    assert seen["own"] is functions_["own"]
    assert list(Seen(functions_, Caller("", OPEN))) == ["common"]
    assert list(Seen(functions_, Caller("x", ADMIN))) == ["own", "other", "common"]
