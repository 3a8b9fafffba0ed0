"""Paths of an artefact's files, and its digest."""

from __future__ import annotations

import hashlib
import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument, ResourceExhausted
from rouse_contracts.functions import ArtefactFile
from rouse_model_repository.inspection.paths import (
    MAX_FILES,
    Limits,
    check_digest,
    check_files,
    check_limits,
    check_path,
    manifest_digest,
)

DIGEST = hashlib.sha256(b"x").hexdigest()


def file(path: str, size: int = 1, digest: str = DIGEST) -> ArtefactFile:
    return ArtefactFile(path=path, digest=digest, size_bytes=size)


@pytest.mark.parametrize("path", ["a", "config.json", "a/b/c.py", "Case.Py", "ünï/ço∂é", "..hidden", "a..b", " ", "-x"])
def test_good_paths(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "/a", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/", "a\\b", "a\0b", "a\nb", "a\x7f",
     "x" * 256, "/".join(["x" * 200] * 6)],
)  # fmt: skip
def test_bad_paths(path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_path(path)
    assert caught.value.reason == "BAD_PATH"
    assert caught.value.message.isprintable()


@given(st.text(st.sampled_from("a./\\\0 ~é"), max_size=12))
def test_an_accepted_path_stays_inside(path: str) -> None:
    try:
        check_path(path)
    except InvalidArgument:
        return
    assert posixpath.normpath(f"/root/{path}") == f"/root/{path}"


@given(st.text(max_size=80))
def test_a_digest_is_a_digest(text: str) -> None:
    with pytest.raises(InvalidArgument):
        check_digest(text)


def test_lists_of_files() -> None:
    check_files([file("a"), file("A"), file("b/a"), file("b/c")])
    for files, reason in (
        ([], "BAD_ARTEFACT"),
        ([file(f"f{n}") for n in range(MAX_FILES + 1)], "BAD_ARTEFACT"),
        ([file("a"), file("b"), file("a")], "BAD_PATH"),
        ([file("a/b"), file("a")], "BAD_PATH"),
        ([file("a/b/c/d"), file("a/b")], "BAD_PATH"),
        ([file("a", digest="A" * 64)], "BAD_DIGEST"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            check_files(files)
        assert caught.value.reason == reason


def test_the_digest_of_a_manifest_is_what_the_page_says() -> None:
    files = [file("b", 2), file("a/é", 3), file("Z", 4)]
    text = f'[["Z","{DIGEST}",4],["a/é","{DIGEST}",3],["b","{DIGEST}",2]]'
    assert manifest_digest(files) == hashlib.sha256(text.encode()).hexdigest()
    assert manifest_digest(files[::-1]) == manifest_digest(files)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, unique_by=lambda row: row[0]))
def test_another_manifest_has_another_digest(rows: list[tuple[str, int]]) -> None:
    files = [file(path, size) for path, size in rows]
    changed = [file(path, size + 1) for path, size in rows[:1]] + files[1:]
    renamed = [file(rows[0][0] + "x", rows[0][1]), *files[1:]]
    assert len({manifest_digest(files), manifest_digest(changed), manifest_digest(renamed)}) == 3


def test_an_artefact_is_bounded_as_a_whole() -> None:
    limits = Limits(artefact_bytes=100, files=2)
    check_limits([file("a", 50), file("b", 50)], limits)
    for files, what in (([file("a", 50), file("b", 51)], "101 bytes"), ([file(name, 0) for name in "abc"], "3 files")):
        with pytest.raises(ResourceExhausted, match=what) as caught:
            check_limits(files, limits)
        assert caught.value.reason == "UPLOAD_TOO_LARGE"
