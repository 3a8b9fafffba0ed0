"""Reads the descriptions and the headers of an artefact's files out of the bucket, and makes its record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from rouse_common.errors import InvalidArgument
from rouse_contracts.functions import (
    ARTEFACT_FORMAT_HUGGING_FACE,
    ARTEFACT_FORMAT_TORCH_EXPORT,
    ArtefactFile,
    Signature,
)
from rouse_contracts.repository import Artefact
from rouse_model_repository.inspection import formats, programs, safetensors, signatures, weights
from rouse_model_repository.inspection.safetensors import BadSafetensors, Tensor

MAX_DESCRIPTION_BYTES = 4 << 20
MAX_INDEX_BYTES = 64 << 20
# Headers are up to 100 MB each, and held while they are parsed.
PARALLEL_INSPECTIONS = 2


class Blobs(Protocol):
    """Where the blobs are."""

    def read_blob(self, digest: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """`length` bytes from `offset`, in pieces."""
        ...


class Inspector:
    """Inspects artefacts whose blobs are in the bucket; a few at a time, as their headers may be large."""

    def __init__(self, bucket: Blobs) -> None:
        self._bucket = bucket
        self._gate = asyncio.Semaphore(PARALLEL_INSPECTIONS)

    async def inspect(self, digest: str, files: Sequence[ArtefactFile]) -> Artefact:
        """The record of an artefact. Raises InvalidArgument BAD_ARTEFACT | BAD_SPEC."""
        async with self._gate:
            return await self._inspect(digest, {file.path: file for file in files})

    async def _inspect(self, digest: str, files: dict[str, ArtefactFile]) -> Artefact:
        config = await self._config(files)
        manifest: dict[str, Any] = {}
        if (file := files.get(formats.MANIFEST)) is not None:
            manifest = formats.load_manifest(await self._text(file, MAX_DESCRIPTION_BYTES, "BAD_SPEC"))
        form = formats.decide(files, config, manifest)
        hugging_face = form == ARTEFACT_FORMAT_HUGGING_FACE
        tensors = {path: await self._tensors(file) for path, file in files.items() if formats.is_weights(path)}
        if hugging_face:
            await self._check_indexes(files, tensors)
        layout = await asyncio.to_thread(weights.lay_out, tensors, names_unique=hugging_face)
        architecture = formats.architecture(config) if hugging_face else ""
        derived = signatures.derive(architecture, config) if architecture else Signature()
        if form == ARTEFACT_FORMAT_TORCH_EXPORT:
            derived = await self._program(files[formats.PROGRAM])
        artefact = Artefact(
            digest=digest,
            format=form,
            size_bytes=sum(file.size_bytes for file in files.values()),
            signature=_declared(manifest, derived),
            layout=layout,
            architecture=architecture,
        )
        artefact.files.extend(files[path] for path in sorted(files))
        return artefact

    async def _config(self, files: dict[str, ArtefactFile]) -> dict[str, Any]:
        file = files.get(formats.CONFIG)
        if file is None:
            return {}
        try:
            return formats.load_json(file.path, await self._text(file, MAX_DESCRIPTION_BYTES, "BAD_ARTEFACT"))
        except InvalidArgument:
            if any(path.endswith(formats.CODE) for path in files):
                return {}  # a Python package may keep whatever it likes in a file of this name
            raise

    async def _program(self, file: ArtefactFile) -> Signature:
        data = await self._text(file, programs.MAX_BYTES, "BAD_ARTEFACT")
        return await asyncio.to_thread(lambda: programs.signature(formats.load_json(file.path, data)))

    async def _check_indexes(self, files: dict[str, ArtefactFile], tensors: dict[str, list[Tensor]]) -> None:
        names = {path: {tensor.name for tensor in found} for path, found in tensors.items()}
        for path, file in files.items():
            if path.endswith(formats.INDEX):
                data = await self._text(file, MAX_INDEX_BYTES, "BAD_ARTEFACT")
                formats.check_index(path, await asyncio.to_thread(formats.load_json, path, data), names)

    async def _tensors(self, file: ArtefactFile) -> list[Tensor]:
        try:
            first = await self._read(file, 0, safetensors.LENGTH_BYTES)
            length = safetensors.header_bytes(first, file.size_bytes)
            header = await self._read(file, safetensors.LENGTH_BYTES, length)
            return await asyncio.to_thread(safetensors.parse, header, file.size_bytes)
        except BadSafetensors as error:
            text = f"{file.path} is not a safetensors file: {error}"
            raise InvalidArgument("BAD_ARTEFACT", text, file=file.path) from None

    async def _text(self, file: ArtefactFile, limit: int, reason: str) -> bytes:
        if file.size_bytes > limit:
            raise InvalidArgument(reason, f"{file.path} has {file.size_bytes} bytes; at most {limit}", file=file.path)
        return await self._read(file, 0, file.size_bytes)

    async def _read(self, file: ArtefactFile, offset: int, length: int) -> bytes:
        async with aclosing(self._bucket.read_blob(file.digest, offset, length)) as chunks:
            return b"".join([chunk async for chunk in chunks])


def _declared(manifest: dict[str, Any], derived: Signature) -> Signature:
    """What rouse.toml says, else what the model itself says."""
    declared = formats.declared_signature(manifest)
    signature = Signature()
    signature.inputs.extend(declared.inputs or derived.inputs)
    signature.outputs.extend(declared.outputs or derived.outputs)
    return signature
