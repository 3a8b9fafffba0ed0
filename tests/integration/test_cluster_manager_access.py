"""Tenants, keys and secrets through cluster-manager's RPCs, on a real database and a real NATS."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import create_engine, text

from rouse_bus import Bus, subjects
from rouse_common.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, RouseError
from rouse_common.rpc import Channels, call
from rouse_contracts import access, cluster, functions
from rouse_testkit.control_plane import MIB, ControlPlane, control_plane, digest_of

BOOTSTRAP = "bootstrap-" + "x" * 32
INVOKE, DEPLOY, ADMIN = access.ROLE_INVOKE, access.ROLE_DEPLOY, access.ROLE_ADMIN


class Desk:
    """Calls AccessService."""

    def __init__(self, plane: ControlPlane, channels: Channels) -> None:
        self.plane, self._channels = plane, channels

    async def __call__(self, method: str, request: Any) -> Any:
        stub = access.AccessServiceStub(self._channels.get(self.plane.address))
        return await call(getattr(stub, method), request, timeout_s=20)

    async def tenant(self, name: str, **quota: Any) -> access.Tenant:
        tenant = access.Tenant(name=name, quota=access.Quota(**quota))
        answer: access.Tenant = (await self("PutTenant", access.PutTenantRequest(tenant=tenant))).tenant
        return answer

    async def key(self, tenant: str, role: access.Role, **more: Any) -> access.CreateKeyResponse:
        request = access.CreateKeyRequest(tenant=tenant, role=role, **more)
        answer: access.CreateKeyResponse = await self("CreateKey", request)
        return answer

    async def table(self) -> access.AccessTable:
        table: access.AccessTable = (await self("GetAccessTable", access.GetAccessTableRequest())).table
        return table

    async def holder(self, key_text: str) -> access.KeyDigest | None:
        """What the table says of a key's text."""
        digest = hashlib.sha256(key_text.encode()).digest()
        return next((row for row in (await self.table()).keys if row.sha256 == digest), None)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.key"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32) + "\n")
    return path


@pytest.fixture
async def desk(postgres_url: str, nats_url: str, key_file: Path) -> AsyncIterator[Desk]:
    channels = Channels(MIB)
    settings = {"secrets_key_file": str(key_file), "bootstrap_key": BOOTSTRAP, "node_lost_ms": 60_000}
    async with control_plane(postgres_url, nats_url, **settings) as plane:
        yield Desk(plane, channels)
    await channels.close()


async def refused(action: Any, kind: type[RouseError], reason: str) -> RouseError:
    with pytest.raises(kind) as caught:
        await action
    assert caught.value.reason == reason
    return caught.value


async def test_tenants_have_quotas_and_go_only_without_functions(desk: Desk) -> None:
    made = await desk.tenant("acme", requests_per_second=5, burst=10, max_concurrent_requests=3)
    assert (made.weight, made.quota.burst) == (1, 10)
    changed = await desk.tenant("acme", max_concurrent_requests=7)
    assert changed.quota == access.Quota(max_concurrent_requests=7)
    assert changed.created_at == made.created_at
    listed = await desk("ListTenants", access.ListTenantsRequest())
    assert [tenant.name for tenant in listed.tenants] == ["acme", "default"]
    for name in ("", "Acme", "a" * 64, "a\nb", "é"):
        await refused(desk.tenant(name), InvalidArgument, "BAD_NAME")
    await refused(desk.tenant("x", requests_per_second=float("nan")), InvalidArgument, "BAD_QUOTA")
    await refused(desk.tenant("x", burst=3), InvalidArgument, "BAD_QUOTA")
    heavy = access.PutTenantRequest(tenant=access.Tenant(name="x", weight=1001))
    await refused(desk("PutTenant", heavy), InvalidArgument, "BAD_QUOTA")

    await deploy(desk, "f", "acme")
    delete = access.DeleteTenantRequest(name="acme")
    error = await refused(desk("DeleteTenant", delete), FailedPrecondition, "TENANT_IN_USE")
    assert "f" in error.message
    await desk.plane.delete("f")
    text_ = (await desk.key("acme", INVOKE)).text
    await desk("DeleteTenant", delete)
    assert await desk.holder(text_) is None
    await refused(desk("DeleteTenant", delete), NotFound, "TENANT_NOT_FOUND")
    default = access.DeleteTenantRequest(name="default")
    await refused(desk("DeleteTenant", default), FailedPrecondition, "TENANT_IN_USE")


async def test_keys_are_made_rotated_and_revoked(desk: Desk) -> None:
    await desk.tenant("acme")
    made = await desk.key("acme", DEPLOY, description="ci", lifetime=Duration(seconds=3600))
    assert made.text.startswith(f"rouse_{made.key.key_id}_")
    row = await desk.holder(made.text)
    assert row is not None
    assert (row.key_id, row.tenant, row.role) == (made.key.key_id, "acme", DEPLOY)
    assert row.valid_until == made.key.expires_at

    rotate = access.RotateKeyRequest(key_id=made.key.key_id, grace=Duration(seconds=600))
    second = await desk("RotateKey", rotate)
    assert second.text != made.text
    old, new = await desk.holder(made.text), await desk.holder(second.text)
    assert old is not None
    assert new is not None
    left = old.valid_until.ToDatetime(UTC) - datetime.now(UTC)
    assert 500 < left.total_seconds() <= 600
    third = await desk("RotateKey", access.RotateKeyRequest(key_id=made.key.key_id))
    assert await desk.holder(made.text) is None
    assert await desk.holder(second.text) is None
    assert await desk.holder(third.text) is not None

    await desk("RevokeKey", access.RevokeKeyRequest(key_id=made.key.key_id))
    assert await desk.holder(third.text) is None
    (listed,) = (await desk("ListKeys", access.ListKeysRequest(tenant="acme"))).keys
    assert listed.HasField("revoked_at")
    assert listed.description == "ci"
    await refused(desk("RotateKey", rotate), FailedPrecondition, "KEY_REVOKED")
    unknown = access.RevokeKeyRequest(key_id="nobody")
    await refused(desk("RevokeKey", unknown), NotFound, "KEY_NOT_FOUND")
    await refused(desk.key("nobody", INVOKE), NotFound, "TENANT_NOT_FOUND")
    await refused(desk.key("acme", access.ROLE_UNSPECIFIED), InvalidArgument, "BAD_ROLE")
    backwards = Duration(seconds=-1)
    await refused(desk.key("acme", INVOKE, lifetime=backwards), InvalidArgument, "BAD_DURATION")


async def test_the_bootstrap_key_is_an_administrators_and_can_be_revoked_for_good(desk: Desk) -> None:
    row = await desk.holder(BOOTSTRAP)
    assert row is not None
    assert (row.tenant, row.role) == ("default", ADMIN)
    await desk("RevokeKey", access.RevokeKeyRequest(key_id="bootstrap"))
    await desk.plane.stop()
    await desk.plane.start()
    await desk.plane.serving()
    assert await desk.holder(BOOTSTRAP) is None
    await desk.plane.stop()
    desk.plane.settings["bootstrap_key"] = "another-" + "y" * 32
    await desk.plane.start()
    await desk.plane.serving()
    assert await desk.holder("another-" + "y" * 32) is not None


async def test_changes_are_announced_and_the_generation_rises(desk: Desk, nats_url: str) -> None:
    heard: list[access.AccessTable] = []
    bus = Bus.open(nats_url, "test")

    async def receive(data: bytes) -> None:
        heard.append(access.AccessTable.FromString(data))

    await bus.subscribe(subjects.ACCESS, receive, max_pending=16)
    before = (await desk.table()).generation
    made = await desk.key("default", INVOKE)

    async def known() -> bool:
        return any(row.key_id == made.key.key_id for table in heard for row in table.keys)

    await desk.plane.becomes(known, bool)
    assert heard[-1].generation > before
    events = await desk.plane.call("ListEvents", cluster.ListEventsRequest(subject="tenant/default"))
    assert [event.kind for event in events.events] == ["key.created", "key.created"]
    await bus.close()


async def deploy(desk: Desk, name: str, tenant: str = "", **spec: Any) -> functions.FunctionVersion:
    desk.plane.repository.hold(name)
    request = cluster.CreateVersionRequest(
        spec=functions.FunctionSpec(name=name, **spec), artefact_digest=digest_of(name), tenant=tenant
    )
    version: functions.FunctionVersion = (await desk.plane.call("CreateVersion", request)).version
    return version


async def test_functions_belong_to_who_deployed_them_first(desk: Desk) -> None:
    await desk.tenant("acme")
    await deploy(desk, "f", "acme")
    await deploy(desk, "g")
    error = await refused(deploy(desk, "f", "default"), AlreadyExists, "NAME_TAKEN")
    assert "acme" not in error.message
    assert (await deploy(desk, "f", "acme")).version == 2
    await refused(deploy(desk, "h", "nobody"), NotFound, "TENANT_NOT_FOUND")
    owners = {route.name: route.tenant for route in (await desk.plane.table()).functions}
    assert owners == {"f": "acme", "g": "default"}
    assert (await desk.plane.function("f")).function.tenant == "acme"


async def put_secret(desk: Desk, tenant: str, name: str, value: str) -> None:
    await desk("PutSecret", access.PutSecretRequest(tenant=tenant, name=name, value=value))


async def test_secrets_reach_instances_and_nothing_else(desk: Desk, postgres_url: str) -> None:
    await desk.tenant("acme")
    references = [functions.SecretReference(variable="TOKEN", secret="api-token")]
    await refused(deploy(desk, "f", "acme", secrets=references), FailedPrecondition, "SECRET_NOT_FOUND")
    await put_secret(desk, "acme", "api-token", "first-value")
    await put_secret(desk, "acme", "api-token", "the-value-itself")
    await put_secret(desk, "default", "api-token", "somebody-elses")
    version = await deploy(desk, "f", "acme", secrets=references)
    node = await desk.plane.node("n0")
    await desk.plane.register(node)
    await desk.plane.beat(node)
    placed = await desk.plane.place(version)
    assert dict(placed.secrets) == {"TOKEN": "the-value-itself"}

    listed = await desk("ListSecrets", access.ListSecretsRequest(tenant="acme"))
    assert [secret.name for secret in listed.secrets] == ["api-token"]
    delete = access.DeleteSecretRequest(tenant="acme", name="api-token")
    await refused(desk("DeleteSecret", delete), FailedPrecondition, "SECRET_IN_USE")
    described = str(await desk.plane.function("f")) + str(await desk.plane.table())
    assert "the-value-itself" not in described + dump(postgres_url)
    await desk.plane.delete("f")
    await desk("DeleteSecret", delete)
    await refused(desk("DeleteSecret", delete), NotFound, "SECRET_NOT_FOUND")
    for name, value, reason in (("a/b", "x", "BAD_NAME"), ("a", "", "BAD_SECRET"), ("a", "x" * 65537, "BAD_SECRET")):
        error = await refused(put_secret(desk, "acme", name, value), InvalidArgument, reason)
        assert "xxxx" not in error.message


async def test_no_text_of_a_key_is_in_the_database(desk: Desk, postgres_url: str) -> None:
    made = await desk.key("default", ADMIN)
    secret = made.text.rpartition("_")[2]
    dumped = dump(postgres_url)
    assert secret not in dumped
    assert BOOTSTRAP not in dumped
    assert hashlib.sha256(made.text.encode()).hexdigest() in dumped


def dump(url: str) -> str:
    """Everything in the database, as text."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
            rows = [connection.execute(text(f'SELECT t::text FROM "{name}" t')).scalars().all() for name in tables]
    finally:
        engine.dispose()
    return "\n".join(str(row) for table in rows for row in table)


async def test_without_a_key_file_there_are_no_secrets(desk: Desk, key_file: Path) -> None:
    await put_secret(desk, "default", "kept", "value")
    version = await deploy(desk, "f", secrets=[functions.SecretReference(variable="V", secret="kept")])
    node = await desk.plane.node("n0")
    await desk.plane.register(node)
    await desk.plane.beat(node)

    async def with_file(content: str | None) -> None:
        await desk.plane.stop()
        if content is not None:
            key_file.write_text(content)  # noqa: ASYNC240 - a line
        desk.plane.settings["secrets_key_file"] = "" if content is None else str(key_file)
        await desk.plane.start()
        await desk.plane.serving()

    own = key_file.read_text()  # noqa: ASYNC240 - a line
    await with_file(None)
    await refused(put_secret(desk, "default", "more", "value"), FailedPrecondition, "NO_SECRET_KEY")
    await refused(desk.plane.place(version), FailedPrecondition, "NO_SECRET_KEY")
    other = secrets.token_hex(32)
    await with_file(other)
    await refused(desk.plane.place(version), FailedPrecondition, "NO_SECRET_KEY")
    await with_file(f"{other}\n{own}")
    assert dict((await desk.plane.place(version)).secrets) == {"V": "value"}
