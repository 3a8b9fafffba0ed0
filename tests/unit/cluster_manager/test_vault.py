"""Secrets at rest: what is sealed, what a key file may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rouse_cluster_manager.access.vault import Vault
from rouse_common.config import ConfigError
from rouse_common.errors import FailedPrecondition

ONE, OTHER = b"1" * 32, b"2" * 32


def test_a_secret_opens_with_its_key_for_its_owner_and_under_its_name() -> None:
    vault = Vault([ONE])
    sealed = vault.seal("acme", "token", "välue")
    assert b"lue" not in sealed
    assert vault.unseal("acme", "token", sealed) == "välue"
    assert Vault([OTHER, ONE]).unseal("acme", "token", sealed) == "välue"
    assert vault.seal("acme", "token", "välue") != sealed
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for opener, tenant, name, text in (
        (Vault([OTHER]), "acme", "token", sealed),
        (vault, "other", "token", sealed),
        (vault, "acme", "other", sealed),
        (vault, "acme", "token", damaged),
        (vault, "acme", "token", b""),
        (Vault([]), "acme", "token", sealed),
    ):
        with pytest.raises(FailedPrecondition) as caught:
            opener.unseal(tenant, name, text)
        assert caught.value.reason == "NO_SECRET_KEY"


def test_a_key_file_is_private_and_holds_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(f"{ONE.hex()}\n{OTHER.hex()}\n")
    assert Vault.open(str(path)).unseal("t", "n", Vault([OTHER]).seal("t", "n", "v")) == "v"
    for content in ("", "zz" * 32, ONE.hex()[:-2], "clear-words"):
        path.write_text(content)
        with pytest.raises(ConfigError, match="64 hex digits") as caught:
            Vault.open(str(path))
        assert not content or content not in str(caught.value)
    path.write_text(ONE.hex())
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Vault.open(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        Vault.open(str(tmp_path / "nothing"))
