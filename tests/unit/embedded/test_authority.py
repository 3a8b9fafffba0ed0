"""Certificates of an embedded mesh: made once, private, renewed in time; and what is wrong with bad ones."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rouse_common.config import ConfigError
from rouse_common.tls import MeshTls, PublicTls, files_from
from rouse_embedded.authority import Authority, services_of


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "tls", "0.0.0.0:8001")
    assert made.prepare(["gateway", "scaler"]) == ["ca", "gateway", "scaler", "supervisor"]
    return made


def test_everything_is_private_and_made_once(authority: Authority, tmp_path: Path) -> None:
    for path in (tmp_path / "tls").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    assert authority.prepare(["gateway", "scaler"]) == []
    assert authority.prepare(["gateway", "coordinator"]) == ["coordinator"]
    authority.files("gateway").check()


def test_what_ends_soon_or_names_another_host_is_made_anew(authority: Authority, tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(days=340)
    assert authority.prepare(["gateway"], soon) == ["gateway", "supervisor"]
    late = datetime.now(UTC) + timedelta(days=3640)
    assert authority.prepare(["gateway"], late)[0] == "ca"
    other = Authority(tmp_path / "tls", "mesh.example:8001")
    assert "gateway" in other.prepare(["gateway"])


def test_services_of_nodes_share_a_certificate() -> None:
    assert services_of(["gateway", "coordinator@node0", "coordinator@node1"]) == ["gateway", "coordinator"]


def test_bad_files_are_named(authority: Authority, tmp_path: Path) -> None:
    files = authority.files("gateway")
    with pytest.raises(ConfigError, match="expired at"):
        files.check(datetime.now(UTC) + timedelta(days=400))
    with pytest.raises(ConfigError, match="valid from"):
        files.check(datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(ConfigError, match=r"tls_cert=.*gone.*cannot be read"):
        replace(files, cert=tmp_path / "gone").check()
    with pytest.raises(ConfigError, match="not the private key"):
        replace(files, key=authority.files("scaler").key).check()
    with pytest.raises(ConfigError, match="holds no PEM"):
        replace(files, ca=files.key).check()
    stranger = Authority(tmp_path / "other", "0.0.0.0:1")
    stranger.prepare([])
    with pytest.raises(ConfigError, match="not signed by"):
        replace(files, ca=stranger.ca).check()
    files.key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"tls_key=.*chmod 600"):
        files.check()


def test_settings_come_all_or_none(authority: Authority) -> None:
    assert files_from("", "", "") is None
    with pytest.raises(ConfigError, match="tls_ca is not set, but tls_cert, tls_key"):
        files_from("a", "b", "")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> bytes | None:
    """One handshake in memory; the server's certificate. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = {here.do_handshake, there.do_handshake}
    for _ in range(10):
        for step in list(waiting):
            try:
                step()
            except ssl.SSLWantReadError:
                continue
            waiting.discard(step)
    assert not waiting
    return here.getpeercert(binary_form=True)


def test_both_sides_prove_themselves_and_names_are_checked(authority: Authority, tmp_path: Path) -> None:
    server = MeshTls(authority.files("gateway")).server_context()
    client = MeshTls(authority.files("scaler")).client_context()
    for host in ("localhost", "127.0.0.1", "gateway"):
        assert handshake(server, client, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "somewhere.else")
    nobody = ssl.create_default_context(cafile=authority.ca)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE"):
        handshake(server, nobody)
    stranger = Authority(tmp_path / "other", "0.0.0.0:1")
    stranger.prepare([])
    with pytest.raises(ssl.SSLError):
        handshake(server, stranger.tls().client_context())
    public = PublicTls(replace(authority.files("gateway"), ca=None)).server_context()
    assert handshake(public, nobody)


def test_a_context_reads_files_that_changed(authority: Authority, tmp_path: Path) -> None:
    files = authority.files("gateway")
    server, client = MeshTls(files).server_context(), authority.tls().client_context()
    before = handshake(server, client)
    assert handshake(server, client) == before
    files.cert.write_text("half a certifi")
    assert handshake(server, client) == before
    files.cert.unlink()
    assert handshake(server, client) == before
    authority.prepare(["gateway"])
    after = handshake(server, client)
    assert after is not None
    assert after != before
