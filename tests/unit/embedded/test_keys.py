"""The keys of an embedded mesh: made once, private, told to who needs them."""

from __future__ import annotations

from pathlib import Path

from rouse_cluster_manager.access.vault import Vault
from rouse_embedded.keys import Keys


def test_keys_are_made_once_and_are_private(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys", auth=True)
    told = keys.settings("cluster-manager")
    assert Keys(tmp_path / "keys", auth=True).settings("cluster-manager") == told
    assert told["bootstrap_key"].startswith("rouse_bootstrap_")
    Vault.open(told["secrets_key_file"])
    files = list((tmp_path / "keys").iterdir())
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "keys", *files)] == [0o700, 0o600, 0o600]
    assert keys.settings("gateway") == {"auth": "true"}
    assert keys.settings("scaler") == {}


def test_without_keys_for_callers_there_is_none(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys", auth=False)
    assert keys.settings("gateway") == {"auth": "false"}
    assert list(keys.settings("cluster-manager")) == ["secrets_key_file"]
    assert keys.api_key_file is None
