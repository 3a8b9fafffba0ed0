"""The header of a safetensors file, read strictly: what it says is later copied to devices unchecked.

The format: 8 bytes of length, little-endian; a JSON object of that length; the tensors' bytes, each where the
object says, without gaps and without overlap, up to the end of the file.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

LENGTH_BYTES = 8
# The format's own limit.
MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 200_000
MAX_RANK = 64
MAX_NAME_BYTES = 1024
METADATA = "__metadata__"
# What a header is made of, counted before it is read: as objects of Python, a few bytes of text take a hundred. A
# tensor has some twelve, and one more for each dimension.
STRUCTURE = (b"{", b"[", b":", b",")
MAX_STRUCTURE = 20 * MAX_TENSORS

# Bits an element.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class BadSafetensors(ValueError):
    """A file that is not what the format says; the text says where."""


@dataclass(frozen=True)
class Tensor:
    """One tensor; `offset_bytes` from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


def header_bytes(first: bytes, file_bytes: int) -> int:
    """Bytes of the header's JSON, from the first 8 bytes of the file. Raises BadSafetensors."""
    if len(first) < LENGTH_BYTES:
        raise BadSafetensors(f"the file has {file_bytes} bytes, too few for the length of a header")
    (length,) = struct.unpack_from("<Q", first)
    if length > MAX_HEADER_BYTES:
        raise BadSafetensors(f"a header of {length} bytes; the format allows {MAX_HEADER_BYTES}")
    if LENGTH_BYTES + length > file_bytes:
        raise BadSafetensors(f"a header of {length} bytes does not fit into a file of {file_bytes} bytes")
    return int(length)


def parse(header: bytes, file_bytes: int) -> list[Tensor]:
    """The tensors in the order of their offsets. Raises BadSafetensors."""
    entries = _load(header)
    metadata = entries.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadSafetensors(f"{METADATA} is not an object of strings")
    if len(entries) > MAX_TENSORS:
        raise BadSafetensors(f"{len(entries)} tensors; at most {MAX_TENSORS} are taken")
    start = LENGTH_BYTES + len(header)
    tensors = sorted((_tensor(name, entry, start) for name, entry in entries.items()), key=_position)
    position = start
    for tensor in tensors:
        if tensor.offset_bytes != position:
            kind = "overlaps with the one before it" if tensor.offset_bytes < position else "leaves a gap before it"
            raise BadSafetensors(f"tensor '{shown(tensor.name)}' {kind}")
        position += tensor.size_bytes
    if position != file_bytes:
        raise BadSafetensors(f"the tensors end at byte {position}, the file at byte {file_bytes}")
    return tensors


def shown(name: str) -> str:
    """A name out of a file as it may stand in a message: short, and Unicode whatever it holds."""
    return name[:100].encode(errors="replace").decode()


def _position(tensor: Tensor) -> tuple[int, int, str]:
    # A tensor without bytes stands before the one that begins where it does.
    return tensor.offset_bytes, tensor.size_bytes, tensor.name


def _load(header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise BadSafetensors("the header does not begin with '{'")
    if sum(map(header.count, STRUCTURE)) > MAX_STRUCTURE:
        raise BadSafetensors(f"the header has more than {MAX_STRUCTURE} parts")
    try:
        entries = json.loads(header.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except RecursionError:
        raise BadSafetensors("the header is nested too deeply") from None
    except BadSafetensors:
        raise
    except ValueError as error:
        raise BadSafetensors(f"the header is not JSON: {error}") from None
    assert isinstance(entries, dict), "it begins with '{'"
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadSafetensors("a name stands twice in the header")
    return found


def _constant(text: str) -> NoReturn:
    raise BadSafetensors(f"the header holds {text}, which is not JSON")


def _tensor(name: str, entry: Any, start: int) -> Tensor:
    def bad(why: str) -> BadSafetensors:
        return BadSafetensors(f"tensor '{shown(name)}': {why}")

    if not name or len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        raise bad(f"its name has no characters or more than {MAX_NAME_BYTES} bytes")
    if any(0xD800 <= ord(char) < 0xE000 for char in name):
        raise bad("its name is not Unicode text")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise bad("want an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"unknown dtype '{shown(str(dtype))}'; known: {', '.join(sorted(DTYPE_BITS))}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_is_size(size) for size in shape):
        raise bad(f"its shape is not a list of at most {MAX_RANK} sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise bad("data_offsets is not a pair of offsets")
    begin, end = offsets
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    if end < begin or bits != (end - begin) * 8:
        raise bad(f"dtype {dtype} and shape {shape[:8]} do not agree with {end - begin} bytes")
    return Tensor(name, dtype, tuple(shape), start + begin, end - begin)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
