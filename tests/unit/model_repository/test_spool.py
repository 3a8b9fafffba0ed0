"""A spool file on a full disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rouse_common.errors import ResourceExhausted
from rouse_model_repository.adapters.spool import Spool, SpoolFile


async def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    left = tmp_path / "x.upload"
    left.touch()
    upload = SpoolFile(left, Path("/dev/full").open("w+b"))  # noqa: ASYNC230, SIM115
    with pytest.raises(ResourceExhausted) as caught:  # noqa: PT012 - told for this part or the one before
        await upload.write(bytes(1 << 20))
        await upload.finish()
    assert caught.value.reason == "DISK_FULL"
    await upload.close()
    assert not left.exists()


async def test_what_is_written_is_hashed(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.prepare()
    async with spool.open(6) as upload:
        await upload.write(b"abc")
        await upload.write(b"def")
        assert await upload.finish() == hashlib.sha256(b"abcdef").hexdigest()
        assert upload.path.read_bytes() == b"abcdef"
    assert not upload.path.exists()


async def test_uploads_do_not_promise_the_same_room_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=(64 << 20) + 100))
    spool = Spool(tmp_path)
    async with spool.open(60):
        with pytest.raises(ResourceExhausted):
            async with spool.open(50):
                pass
    async with spool.open(50):
        pass
