"""Which paths an artefact's files may have, and the digest of such a set of files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from rouse_common.errors import InvalidArgument, ResourceExhausted
from rouse_contracts.functions import ArtefactFile


@dataclass(frozen=True)
class Limits:
    """What an artefact may have at most: bytes of all its files, and how many of them."""

    artefact_bytes: int
    files: int


DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_FILES = 10_000
MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255
SHOWN_CHARS = 120


def check_digest(digest: str) -> str:
    """A sha256 in lower-case hex. Raises InvalidArgument BAD_DIGEST."""
    if not DIGEST.fullmatch(digest):
        raise InvalidArgument("BAD_DIGEST", f"'{digest[:SHOWN_CHARS]}' is not a sha256 in lower-case hex")
    return digest


def check_files(files: Sequence[ArtefactFile]) -> None:
    """Raises InvalidArgument BAD_PATH, BAD_DIGEST or BAD_ARTEFACT for the number of files."""
    if not 1 <= len(files) <= MAX_FILES:
        raise InvalidArgument("BAD_ARTEFACT", f"an artefact of {len(files)} files: want 1 to {MAX_FILES}")
    seen: set[str] = set()
    for file in files:
        check_path(file.path)
        check_digest(file.digest)
        if file.path in seen:
            _refuse(file.path, "it stands twice in the list")
        seen.add(file.path)
    for path in seen:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in seen:
                _refuse(path, f"'{folder}' is a file and cannot be its folder")


def check_limits(files: Sequence[ArtefactFile], limits: Limits) -> None:
    """Raises ResourceExhausted UPLOAD_TOO_LARGE."""
    if len(files) > limits.files:
        raise ResourceExhausted(
            "UPLOAD_TOO_LARGE", f"an artefact of {len(files)} files; this repository takes {limits.files} at most"
        )
    size = sum(file.size_bytes for file in files)
    if size > limits.artefact_bytes:
        raise ResourceExhausted(
            "UPLOAD_TOO_LARGE", f"an artefact of {size} bytes; this repository takes {limits.artefact_bytes} at most"
        )


def check_path(path: str) -> None:
    """A relative path with '/' between its parts, as it will stand on a node. Raises InvalidArgument BAD_PATH."""
    if not path:
        _refuse(path, "it is empty")
    if len(path.encode(errors="surrogatepass")) > MAX_PATH_BYTES:
        _refuse(path, f"it is longer than {MAX_PATH_BYTES} bytes")
    if path.startswith("/"):
        _refuse(path, "it is absolute")
    if "\\" in path:
        _refuse(path, "it holds a backslash; folders are separated by '/'")
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in path):
        _refuse(path, "it holds a control character")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            _refuse(path, f"'{part}' is not a part that a path may have")
        if len(part.encode(errors="surrogatepass")) > MAX_PART_BYTES:
            _refuse(path, f"a part of it is longer than {MAX_PART_BYTES} bytes")


def _refuse(path: str, why: str) -> NoReturn:
    shown = path[:SHOWN_CHARS].encode("unicode_escape").decode()
    raise InvalidArgument("BAD_PATH", f"path '{shown}': {why}", file=shown)


def manifest_digest(files: Sequence[ArtefactFile]) -> str:
    """sha256 of the canonical manifest: the JSON array of [path, digest, size in bytes], in the order of the
    paths' UTF-8 bytes, without spaces, in UTF-8."""
    rows = sorted(([f.path, f.digest, f.size_bytes] for f in files), key=lambda row: str(row[0]).encode())
    return hashlib.sha256(json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
