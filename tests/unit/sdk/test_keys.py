"""Which API key a client shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rouse
from rouse.keys import find_key

HERE = "127.0.0.1:8001"


def mesh(folder: Path, **fields: str) -> dict[str, str]:
    (folder / "admin.key").write_text("rouse_bootstrap_00\n")
    state = {"gateway_address": HERE, "api_key_file": str(folder / "admin.key")} | fields
    (folder / "mesh.json").write_text(json.dumps(state))
    return {"ROUSE_DATA_DIR": str(folder)}


def test_the_argument_beats_the_environment_and_that_the_mesh(tmp_path: Path) -> None:
    environ = mesh(tmp_path)
    assert find_key(None, HERE, environ) == "rouse_bootstrap_00"
    assert find_key(None, "localhost:8001", environ) == "rouse_bootstrap_00"
    assert find_key(None, HERE, {**environ, "ROUSE_API_KEY": " from-there "}) == "from-there"
    assert find_key("given", HERE, {**environ, "ROUSE_API_KEY": "from-there"}) == "given"


def test_the_mesh_s_key_goes_to_nobody_else(tmp_path: Path) -> None:
    assert find_key(None, "10.1.2.3:8001", mesh(tmp_path)) is None
    assert find_key(None, HERE, mesh(tmp_path, api_key_file="")) is None
    assert find_key(None, HERE, mesh(tmp_path, api_key_file=str(tmp_path / "nothing"))) is None
    (tmp_path / "mesh.json").write_text("broken")
    assert find_key(None, HERE, {"ROUSE_DATA_DIR": str(tmp_path)}) is None
    assert find_key(None, HERE, {"ROUSE_DATA_DIR": str(tmp_path / "none")}) is None


def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    for text in ("two words", "line\nbreak", "schlüssel", "x" * 600):
        with pytest.raises(rouse.InvalidArgument) as caught:
            find_key(text, HERE, {"ROUSE_DATA_DIR": str(tmp_path)})
        assert caught.value.reason == "BAD_API_KEY"
        assert text not in f"{caught.value.message} {caught.value.hint}"
