"""A program of torch.export made fit to deploy: model.pt2 becomes program.json and weights.safetensors.

An archive of `torch.export.save` is a zip file with the program's graph as JSON, its weights as raw bytes, and its
sample inputs as a pickle. The first two are taken over as they are, so neither PyTorch is needed nor any pickle
loaded, here or later; the weights become ones that Rouse can map and swap.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rouse import programs
from rouse.errors import PackageError
from rouse.programs import BadProgram, Unsupported

ARCHIVE, PROGRAM, WEIGHTS = "model.pt2", "program.json", "weights.safetensors"
FORMAT = "rouse.torch_export.1"
GRAPH, CONFIGS = "models/model.json", ("weights", "constants")
# Written by PyTorch before 2.8, with the weights as a pickle.
LEGACY = "serialized_exported_program.json"
MAX_JSON_BYTES = 64 << 20
MAX_MEMBERS = 1_000_000
COPY_BYTES = 4 << 20
STRIDED = 7
# What zipfile raises for archives that are damaged.
ZIP_FAILURES = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error, zlib.error, ValueError, KeyError,
    IndexError, OverflowError,
)  # fmt: skip
# torch's number of a dtype: safetensors name, bytes.
DTYPES = {
    1: ("U8", 1), 2: ("I8", 1), 3: ("I16", 2), 4: ("I32", 4), 5: ("I64", 8), 6: ("F16", 2), 7: ("F32", 4),
    8: ("F64", 8), 10: ("C64", 8), 12: ("BOOL", 1), 13: ("BF16", 2), 28: ("U16", 2), 29: ("F8_E4M3", 1),
    30: ("F8_E5M2", 1), 31: ("F8_E4M3FNUZ", 1), 32: ("F8_E5M2FNUZ", 1), 33: ("F8_E8M0FNU", 1), 34: ("U32", 4),
    35: ("U64", 8),
}  # fmt: skip


def convert(archive: Path, into: Path) -> list[Path]:
    """Writes program.json and, where there are any weights, weights.safetensors into a folder; returns their paths.

    The same archive always gives the same bytes. Raises PackageError BAD_ARTEFACT.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            return _Archive(opened).write(into)
    except (BadProgram, Unsupported) as error:
        raise _bad(f"{archive}: {error}") from None
    except ZIP_FAILURES as error:
        raise _bad(f"{archive} is not an archive of torch.export.save: {error}") from None
    except OSError as error:
        raise _bad(f"{archive} cannot be converted: {error.strerror}") from None


class _Archive:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip = archive
        infos = archive.infolist()
        if len(infos) > MAX_MEMBERS:
            raise BadProgram(f"it has {len(infos)} members, more than {MAX_MEMBERS}")
        # All members are in one folder, named after the file that was saved.
        self._members = {info.filename.partition("/")[2]: info for info in infos}
        if LEGACY in {info.filename.rpartition("/")[2] for info in infos}:
            raise Unsupported("it was saved by a PyTorch before 2.8, with pickled weights; save it with a newer one")
        graphs = [name for name in self._members if name.startswith("models/") and name.endswith(".json")]
        if graphs != [GRAPH]:
            raise BadProgram(f"want one program, {GRAPH}; it holds {', '.join(graphs) or 'none'}")

    def write(self, into: Path) -> list[Path]:
        program = self._json(GRAPH)
        payloads: dict[str, tuple[str, zipfile.ZipInfo]] = {}
        tensors = {kind: self._tensors(kind, payloads) for kind in CONFIGS}
        content = {
            "format": FORMAT,
            **programs.describe(program),
            **tensors,
            "program": programs.strip(program),
        }
        written = [into / PROGRAM]
        written[0].write_text(json.dumps(content, separators=(",", ":"), sort_keys=True))
        if payloads:
            written.append(into / WEIGHTS)
            with written[1].open("wb") as file:
                self._write_weights(file, payloads)
        return written

    def _tensors(self, kind: str, payloads: dict[str, tuple[str, zipfile.ZipInfo]]) -> dict[str, Any]:
        """Views by name: which payload of the archive, and how it lies there. Fills in the payloads."""
        entries = self._json(f"data/{kind}/model_{kind}_config.json").get("config")
        if not isinstance(entries, dict):
            raise BadProgram(f"its list of {kind} is damaged")
        views = {}
        for name, entry in entries.items():
            what = f"the tensor '{name}'"
            if not isinstance(entry, dict) or not isinstance(entry.get("path_name"), str):
                raise BadProgram(f"{what} is damaged")
            if entry.get("use_pickle") or not isinstance(meta := entry.get("tensor_meta"), dict):
                raise Unsupported(f"{what} is no plain tensor but a pickle, which is never loaded")
            dtype, itemsize = DTYPES.get(meta.get("dtype", 0), ("", 0))
            if not dtype or meta.get("layout") != STRIDED:
                raise Unsupported(f"{what} has a dtype or layout that cannot be mapped")
            info = self._member(f"data/{kind}/{entry['path_name']}")
            if info.file_size % itemsize:
                raise BadProgram(f"{what} is cut off")
            payload = f"{kind}/{entry['path_name']}"
            if payloads.setdefault(payload, (dtype, info))[0] != dtype:
                raise Unsupported(f"{what} shares its memory with a tensor of another dtype")
            views[name] = {
                "payload": payload,
                "sizes": _numbers(what, meta.get("sizes")),
                "strides": _numbers(what, meta.get("strides")),
                "offset": _numbers(what, [meta.get("storage_offset")])[0],
                "parameter": entry.get("is_param") is True,
            }
        return views

    def _write_weights(self, file: BinaryIO, payloads: Mapping[str, tuple[str, zipfile.ZipInfo]]) -> None:
        header, position = {}, 0
        for name, (dtype, info) in payloads.items():
            count = info.file_size // next(size for known, size in DTYPES.values() if known == dtype)
            header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [position, position + info.file_size]}
            position += info.file_size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        file.write(struct.pack("<Q", len(text)) + text)
        for _, info in payloads.values():
            for chunk in self._chunks(info):
                file.write(chunk)

    def _chunks(self, info: zipfile.ZipInfo) -> Iterator[bytes]:
        left = info.file_size
        with self._zip.open(info) as member:
            while left and (chunk := member.read(min(COPY_BYTES, left))):
                left -= len(chunk)
                yield chunk
        if left:
            raise BadProgram(f"{info.filename} is cut off")

    def _member(self, name: str) -> zipfile.ZipInfo:
        info = self._members.get(name)
        if info is None:
            raise BadProgram(f"it lacks {name}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise BadProgram(f"{name} is compressed, which torch.export.save does not do")
        return info

    def _json(self, name: str) -> dict[str, Any]:
        info = self._member(name)
        if info.file_size > MAX_JSON_BYTES:
            raise BadProgram(f"{name} has {info.file_size} bytes; at most {MAX_JSON_BYTES}")
        try:
            content = json.loads(b"".join(self._chunks(info)))
        except (ValueError, RecursionError) as error:
            raise BadProgram(f"{name} is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise BadProgram(f"{name} does not hold an object")
        return content


def _numbers(what: str, entries: Any) -> list[int]:
    numbers = [entry.get("as_int") if isinstance(entry, dict) else None for entry in entries or ()]
    if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in numbers):
        raise BadProgram(f"{what} has sizes that are no numbers")
    return [number for number in numbers if number is not None]


def _bad(message: str) -> PackageError:
    return PackageError(message, reason="BAD_ARTEFACT", metadata={"path": ARCHIVE})
