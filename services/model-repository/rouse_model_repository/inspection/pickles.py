"""Finds pickles: loading one runs whatever code its maker put into it, so no artefact may hold any."""

from __future__ import annotations

import pickletools
import re
import struct
import zipfile
import zlib
from io import BytesIO
from typing import BinaryIO

EXTENSIONS = frozenset(
    {".pkl", ".pickle", ".pck", ".pcl", ".dill", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".torch", ".mar"}
)
MEMBER_EXTENSIONS = (".pkl", ".pickle", ".joblib", ".pt", ".pth")

# How much of a file is looked at: a pickle shows itself long before.
HEAD_BYTES = 1 << 20
OPCODES = frozenset(ord(opcode.code) for opcode in pickletools.opcodes)
# Without any of these a text that happens to parse as a pickle is harmless, and most likely a text.
CALLING = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1"})
HIGHEST_PROTOCOL = 5

NUMPY_MAGIC = b"\x93NUMPY"
NUMPY_OBJECT = re.compile(rb"['\"][|<>=]?O\d*['\"]")
ZIP_START = b"PK\x03\x04"
ZIP_END = b"PK\x05\x06"
ZIP_END_BYTES = 22
ZIP_COMMENT_BYTES = 65_535
MAX_ZIP_DIRECTORY_BYTES = 64 << 20
MAX_ZIP_MEMBERS = 100_000
ZIP_FAILURES = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, OverflowError, struct.error,
    zlib.error, KeyError, IndexError, UnicodeError,
)  # fmt: skip


def by_name(path: str) -> str:
    """Why a file is taken for a pickle by its name, in words; empty where it is not."""
    name = path.rpartition("/")[2].lower()
    extension = "." + name.rpartition(".")[2] if "." in name else ""
    return f"files that end in {extension} hold pickles" if extension in EXTENSIONS else ""


def by_content(file: BinaryIO) -> str:
    """Why a file is taken for a pickle by what is in it, in words; empty where it is not. Blocks; reads the
    head of the file and, of a zip archive, its directory."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if found := in_head(head):
        return found
    return _in_archive(file, head.startswith(ZIP_START))


def in_head(head: bytes) -> str:
    """What by_content finds in the first bytes."""
    if head.startswith(NUMPY_MAGIC):
        return "it is a NumPy array of Python objects" if _holds_objects(head) else ""
    if len(head) >= 3 and head[0] == 0x80 and head[1] <= HIGHEST_PROTOCOL:
        return f"it begins as a pickle of protocol {head[1]}" if head[2] in OPCODES else ""
    return "it is a pickle of an old protocol" if _parses(head) else ""


def _parses(head: bytes) -> bool:
    """Protocols 0 and 1 have no mark: the opcodes must lead to the end, and call something on the way."""
    if not head or head[0] not in OPCODES:
        return False
    calls = False
    try:
        for opcode, _, _ in pickletools.genops(BytesIO(head)):
            calls = calls or opcode.name in CALLING
            if opcode.name == "STOP":
                return calls
    except (ValueError, OverflowError, EOFError, IndexError, struct.error):
        return False
    return False


def _holds_objects(head: bytes) -> bool:
    # Magic, two bytes of version, two or four of length, then the description as a literal.
    return NUMPY_OBJECT.search(head[:4096]) is not None


def _in_archive(file: BinaryIO, must_be: bool) -> str:
    size = file.seek(0, 2)
    tail_start = max(0, size - ZIP_END_BYTES - ZIP_COMMENT_BYTES)
    file.seek(tail_start)
    tail = file.read()
    end = tail.rfind(ZIP_END)
    if end < 0 or len(tail) - end < ZIP_END_BYTES:
        return "it begins as a zip archive but cannot be read as one" if must_be else ""
    members, directory_bytes = struct.unpack_from("<HL", tail, end + 10)
    if members == 0xFFFF or directory_bytes == 0xFFFFFFFF:
        members, directory_bytes = _of_large_archive(tail, end)
    if directory_bytes > min(size, MAX_ZIP_DIRECTORY_BYTES) or members > MAX_ZIP_MEMBERS:
        return "it is a zip archive with a directory too large to be checked" if must_be else ""
    try:
        with zipfile.ZipFile(file) as archive:
            return _in_members(archive)
    except ZIP_FAILURES:
        return "it begins as a zip archive but cannot be read as one" if must_be else ""


def _of_large_archive(tail: bytes, end: int) -> tuple[int, int]:
    """Members and bytes of a zip64 archive's directory; too many of both where its end cannot be found."""
    record = tail.rfind(b"PK\x06\x06", 0, end)
    if record < 0 or record + 48 > len(tail):
        return MAX_ZIP_MEMBERS + 1, MAX_ZIP_DIRECTORY_BYTES + 1
    members, directory_bytes = struct.unpack_from("<QQ", tail, record + 32)
    return members, directory_bytes


def _in_members(archive: zipfile.ZipFile) -> str:
    for member in archive.infolist():
        name = member.filename
        if name.lower().endswith(MEMBER_EXTENSIONS):
            return f"it is a zip archive that holds the pickle '{name[:100]}', as torch.save writes it"
        if name.lower().endswith(".npy"):
            with archive.open(member) as array:
                if _holds_objects(array.read(4096)):
                    return f"it is a zip archive that holds '{name[:100]}', a NumPy array of Python objects"
    return ""
