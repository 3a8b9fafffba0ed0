"""Keys, tenants, quotas, secrets and repetitions in a whole mesh that asks for keys."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, text

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity

pytestmark = pytest.mark.timeout(400)
X = {"x": np.arange(4, dtype=np.float32)}
TENSORS = ([("x", "FP32", [-1])], [("y", "FP32", [-1])])
SECRET = "a-secret-value-that-nobody-may-see"
# Prints when it begins, and takes as many seconds as its input says.
SLOW = """
    import time

    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            print(f"it begins {inputs['x'][1]:.0f}", flush=True)
            time.sleep(float(inputs["x"][0]))
            return {"y": inputs["x"]}
"""
# Tells the digest of a secret, which is proof enough that it has it.
KEEPER = """
    import hashlib
    import os

    import numpy as np

    class Function:
        def load(self, context):
            self.digest = hashlib.sha256(os.environ["TOKEN"].encode()).digest()
            self.plain = os.environ["PLAIN"]

        def predict(self, inputs):
            return {"y": np.frombuffer(self.digest, np.uint8).astype(np.float32)}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh that asks for keys."""
    mesh = Mesh(tmp_path_factory.mktemp("mesh"), auth=True, log_level="DEBUG")
    mesh.start()
    yield mesh
    mesh.stop()


class Tenant:
    """A tenant with a key of each role below administrators."""

    def __init__(self, mesh: Mesh, name: str, **quota: float) -> None:
        self.admin = mesh.client()
        self.admin.access.set_tenant(name, **quota)  # type: ignore[arg-type]
        self.name, self.keys = name, {}
        for role in ("invoke", "deploy"):
            self.keys[role] = self.admin.access.create_key(name, role, description=f"the test's {role}").text
        self.invoker, self.deployer = mesh.client(self.keys["invoke"]), mesh.client(self.keys["deploy"])


def log_of(mesh: Mesh) -> str:
    return (mesh.info.folders.logs / "rouse.log").read_text(errors="replace")


def test_tenants_keep_to_themselves_and_roles_to_what_they_may(guarded: Mesh, tmp_path: Path) -> None:
    one, other = Tenant(guarded, "one"), Tenant(guarded, "other")
    stranger = rouse.Client(guarded.gateway_address, api_key="rouse_nobody_" + "0" * 64)
    with stranger, pytest.raises(rouse.Unauthenticated) as refused:
        stranger.functions()
    assert refused.value.reason == "BAD_KEY"
    with pytest.raises(rouse.PermissionDenied) as denied:
        one.invoker.deploy(write_identity(tmp_path / "a", "mine"))
    assert denied.value.reason == "ROLE_MISSING"
    one.deployer.deploy(write_identity(tmp_path / "a", "mine"))
    one.deployer.deploy(write_function(tmp_path / "b", "ours", SLOW, *TENSORS, settings="shared = true"), wake=False)
    assert [found.name for found in one.invoker.functions()] == ["mine", "ours"]
    assert [found.name for found in other.invoker.functions()] == ["ours"]
    assert one.invoker.infer("mine", X)["y"].tolist() == X["x"].tolist()
    for call in (lambda: other.invoker.infer("mine", X), lambda: other.deployer.delete("mine")):
        with pytest.raises(rouse.NotFound) as hidden:
            call()
        assert hidden.value.reason == "FUNCTION_NOT_FOUND"
    with pytest.raises(rouse.AlreadyExists) as taken:
        other.deployer.deploy(write_identity(tmp_path / "c", "mine"))
    assert taken.value.reason == "NAME_TAKEN"
    with pytest.raises(rouse.PermissionDenied) as foreign:
        other.deployer.delete("ours")
    assert foreign.value.reason == "NOT_OWNER"
    trace_id = one.invoker.infer("mine", X).trace_id
    other.invoker.infer("ours", {"x": np.array([0, 5], np.float32)})

    def counted(client: rouse.Client, tenant: str = "") -> dict[tuple[str, str], int]:
        return {(row.tenant, row.function): row.usage.requests for row in client.usage(tenant=tenant)}

    guarded.wait_until(lambda: counted(one.admin).get(("other", "ours")) == 1, "the usage is recorded")
    # Whose request it was, not whose function.
    assert counted(one.invoker) == {("one", "mine"): 2}
    assert counted(other.invoker) == {("other", "ours"): 1}
    assert one.deployer.trace(trace_id)
    with pytest.raises(rouse.NotFound):
        other.deployer.trace(trace_id)
    with pytest.raises(rouse.FailedPrecondition) as used:
        one.admin.access.delete_tenant("one")
    assert used.value.reason == "TENANT_IN_USE"
    # An administrator sees all of it.
    assert {"mine", "ours"} <= {found.name for found in one.admin.functions()}


def test_a_rotated_key_has_two_texts_for_a_while_and_a_revoked_one_none(guarded: Mesh) -> None:
    admin = guarded.client()
    admin.access.set_tenant("turning")
    made = admin.access.create_key("turning")
    old = guarded.client(made.text)
    assert old.functions() is not None
    second = admin.access.rotate_key(made.key.key_id, grace_s=600)
    assert old.functions() is not None
    new = guarded.client(second.text)
    assert new.functions() is not None
    third = guarded.client(admin.access.rotate_key(made.key.key_id).text)
    # At once: none of them waits for anything.
    for client in (old, new):
        with pytest.raises(rouse.Unauthenticated):
            client.functions()
    assert third.functions() is not None
    admin.access.revoke_key(made.key.key_id)
    with pytest.raises(rouse.Unauthenticated):
        third.functions()
    short = admin.access.create_key("turning", lifetime_s=0.001)
    with pytest.raises(rouse.Unauthenticated) as expired:
        guarded.client(short.text).functions()
    assert expired.value.reason == "KEY_EXPIRED"


def test_a_quota_is_refused_with_the_time_to_wait(guarded: Mesh, tmp_path: Path) -> None:
    tenant = Tenant(guarded, "metered", requests_per_second=0.01, burst=3)
    tenant.deployer.deploy(write_identity(tmp_path / "f", "metered-identity"))
    for _ in range(3):
        tenant.invoker.infer("metered-identity", X)
    with pytest.raises(rouse.ResourceExhausted) as refused:
        tenant.invoker.infer("metered-identity", X)
    assert refused.value.reason == "QUOTA_EXCEEDED"
    assert refused.value.retry_after_s
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    request = urllib.request.Request(
        f"http://{guarded.info.http_address}/v2/models/metered-identity/infer",
        json.dumps(body).encode(), {"Authorization": f"Bearer {tenant.keys['invoke']}"},
    )  # fmt: skip
    with pytest.raises(urllib.error.HTTPError) as answered:
        urllib.request.urlopen(request, timeout=30)
    with answered.value as error:
        assert error.code == 429
        assert int(error.headers["retry-after"]) >= 1
    tenant.admin.access.set_tenant("metered", requests_per_second=0)
    tenant.invoker.infer("metered-identity", X)


def test_a_killed_gateway_runs_nothing_twice_and_keeps_no_slots(guarded: Mesh, tmp_path: Path) -> None:
    tenant = Tenant(guarded, "careful")
    folder = write_function(tmp_path / "slow", "slow", SLOW, *TENSORS, extra="[limits]\nmax_concurrent_requests = 1\n")
    tenant.deployer.deploy(folder)
    failures: list[rouse.RouseError] = []

    def call() -> None:
        try:
            tenant.invoker.infer("slow", {"x": np.array([4, 77], np.float32)}, request_id="once", timeout=8)
        except rouse.RouseError as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    guarded.wait_until(lambda: "it begins 77" in log_of(guarded), "the function runs")
    with pytest.raises(rouse.ResourceExhausted) as full:
        tenant.invoker.infer("slow", {"x": np.array([0, 1], np.float32)})
    assert full.value.reason == "TOO_MANY_REQUESTS"
    guarded.kill("gateway")
    caller.join(60)
    assert failures
    guarded.wait_ready()
    with pytest.raises(rouse.FailedPrecondition) as unknown:
        _patiently(guarded, lambda: tenant.invoker.infer(
            "slow", {"x": np.array([4, 77], np.float32)}, request_id="once", timeout=60
        ))  # fmt: skip
    assert unknown.value.reason == "OUTCOME_UNKNOWN"

    def free() -> bool:
        try:
            tenant.invoker.infer("slow", {"x": np.array([0, 2], np.float32)}, request_id="twice")
        except rouse.ResourceExhausted:
            return False
        return True

    guarded.wait_until(free, "the killed gateway's slot is free")
    assert tenant.invoker.infer("slow", {"x": np.array([0, 2], np.float32)}, request_id="twice")["y"].tolist() == [0, 2]
    lines = log_of(guarded)
    assert (lines.count("it begins 77"), lines.count("it begins 2")) == (1, 1)


def test_a_killed_router_runs_nothing_twice(guarded: Mesh, tmp_path: Path) -> None:
    client = guarded.client()
    client.deploy(write_function(tmp_path / "lost", "lost", SLOW, *TENSORS))
    x = {"x": np.array([4, 88], np.float32)}
    failures: list[rouse.RouseError] = []

    def call() -> None:
        try:
            client.infer("lost", x, request_id="once", timeout=30)
        except rouse.RouseError as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    guarded.wait_until(lambda: "it begins 88" in log_of(guarded), "the function runs")
    guarded.kill("node-router@node0")
    caller.join(60)
    guarded.wait_ready()
    # Nobody knows whether it ran, so its repetition is told the same and does not run.
    with pytest.raises(rouse.Unavailable) as again:
        client.infer("lost", x, request_id="once", timeout=30)
    assert [failure.reason for failure in failures] == [again.value.reason]
    assert client.infer("lost", {"x": np.array([0, 3], np.float32)}, request_id="other")["y"].tolist() == [0, 3]
    assert log_of(guarded).count("it begins 88") == 1


def _patiently(mesh: Mesh, call: object) -> None:
    """Calls again while the gateway cannot be reached."""

    def done() -> bool:
        try:
            call()  # type: ignore[operator]
        except rouse.Unavailable:
            return False
        return True

    mesh.wait_until(done, "the gateway answers")


def test_secrets_reach_their_function_and_no_key_is_anywhere(guarded: Mesh, tmp_path: Path) -> None:
    tenant = Tenant(guarded, "keeper")
    folder = write_function(
        tmp_path / "k", "keeper", KEEPER, *TENSORS,
        extra='[secrets]\nTOKEN = "api-token"\n[environment]\nPLAIN = "words"\n',
    )  # fmt: skip
    with pytest.raises(rouse.FailedPrecondition) as missing:
        tenant.deployer.deploy(folder)
    assert missing.value.reason == "SECRET_NOT_FOUND"
    tenant.deployer.access.set_secret("api-token", SECRET)
    tenant.deployer.deploy(folder)
    told = bytes(tenant.invoker.infer("keeper", X)["y"].astype(np.uint8))
    assert told == hashlib.sha256(SECRET.encode()).digest()
    with pytest.raises(rouse.PermissionDenied):
        tenant.invoker.access.secrets()
    assert [secret.name for secret in tenant.deployer.access.secrets()] == ["api-token"]
    with pytest.raises(rouse.FailedPrecondition):
        tenant.deployer.access.delete_secret("api-token")
    described = repr(tenant.deployer.describe("keeper"))
    trace = tenant.invoker.infer("keeper", X).trace_id
    tenant.deployer.trace(trace)

    own = guarded.info.api_key_file
    assert own is not None
    texts = [SECRET, own.read_text().strip(), *tenant.keys.values()]
    texts = [text_.rpartition("_")[2] for text_ in texts]
    folders = guarded.info.folders
    files = [path for kept in (folders.logs, folders.traces) for path in kept.rglob("*") if path.is_file()]
    assert files
    contents = {str(path): path.read_text(errors="replace") for path in files}
    contents |= {"describe": described, "database": dump(guarded.info.stores.postgres.url)}
    contents["mesh.json"] = (guarded.data_dir / "mesh.json").read_text()
    for where, content in contents.items():
        for number, wanted in enumerate(texts):
            assert wanted not in content, f"text {number} is in {where}"


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


def test_the_command_line_finds_its_key_and_manages_others(guarded: Mesh) -> None:
    environ = {**os.environ, "ROUSE_DATA_DIR": str(guarded.data_dir), "ROUSE_ADDRESS": ""}
    environ.pop("ROUSE_API_KEY", None)

    def run(*words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rouse.cli.main", *words], input=stdin, env={**environ, **more}, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    assert run("tenants", "set", "shop", "--rps", "50", "--max-concurrent", "4", "--weight", "2").returncode == 0
    found = json.loads(run("tenants", "list", "--json").stdout)["tenants"]
    (shop,) = [tenant for tenant in found if tenant["name"] == "shop"]
    assert (shop["requests_per_second"], shop["max_concurrent_requests"], shop["weight"]) == (50, 4, 2)
    made = run("keys", "create", "shop", "--role", "deploy", "--lifetime", "90d", "--description", "ci")
    key = made.stdout.strip()
    assert key.startswith("rouse_")
    assert key not in made.stderr
    listed = run("keys", "list", "--tenant", "shop")
    assert "deploy" in listed.stdout
    assert key.rpartition("_")[2] not in listed.stdout
    assert run("secrets", "set", "token", stdin="from-standard-input\n", ROUSE_API_KEY=key).returncode == 0
    assert run("secrets", "set", "other", "--from-env", "MINE", ROUSE_API_KEY=key, MINE="from-there").returncode == 0
    names = json.loads(run("secrets", "list", "--json", ROUSE_API_KEY=key).stdout)["secrets"]
    assert [secret["name"] for secret in names] == ["other", "token"]
    assert run("secrets", "delete", "other", ROUSE_API_KEY=key).returncode == 0
    key_id = key.split("_")[1]
    rotated = run("keys", "rotate", key_id, "--grace", "10m").stdout.strip()
    assert run("functions", ROUSE_API_KEY=rotated).returncode == 0
    assert run("keys", "revoke", key_id).returncode == 0
    refused = run("functions", ROUSE_API_KEY=rotated)
    assert refused.returncode == 1
    assert "API key" in refused.stderr
    assert run("tenants", "delete", "shop").returncode == 0
    assert run("keys", "create", "shop", "--lifetime", "soon").returncode == 2
