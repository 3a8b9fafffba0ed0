"""Artefacts on the local disk as a node would have them: files, layout of the weights, image of the host tier."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rouse_contracts.functions import ArtefactFile, ArtefactFormat, FunctionSpec, FunctionVersion, Signature, TensorSpec
from rouse_contracts.repository import Artefact, WeightsLayout, WeightTensor

ALIGNMENT_BYTES = 64
Tensors = list[tuple[str, str, list[int]]]


@dataclass(frozen=True)
class Staged:
    """A version with what StageVersion would answer for it."""

    version: FunctionVersion
    artefact: Artefact
    folder: Path
    image: Path | None

    @property
    def image_path(self) -> str:
        return str(self.image) if self.image else ""


def stage(
    folder: Path,
    images: Path,
    *,
    name: str,
    inputs: Tensors,
    outputs: Tensors,
    handler: str = "",
    options: dict[str, str] | None = None,
    version_id: str = "",
) -> Staged:
    """Describes a function's folder and writes the image of its weights into `images`.

    Without a handler a folder with a config.json is a Hugging Face directory, and one with a program.json a program
    of torch.export.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [
        ArtefactFile(
            path=str(path.relative_to(folder)),
            digest=hashlib.sha256(path.read_bytes()).hexdigest(),
            size_bytes=path.stat().st_size,
        )
        for path in paths
    ]
    digest = hashlib.sha256("\n".join(f"{file.path} {file.digest}" for file in files).encode()).hexdigest()
    weights = [path for path in paths if path.suffix == ".safetensors"]
    tensors, image = _lay_out(folder, weights)
    image_path = None
    if image:
        image_path = images / digest
        image_path.write_bytes(image)
    signature = Signature(inputs=_specs(inputs), outputs=_specs(outputs))
    kind, architecture = ArtefactFormat.ARTEFACT_FORMAT_PYTHON, ""
    if not handler and (folder / "program.json").exists():
        kind = ArtefactFormat.ARTEFACT_FORMAT_TORCH_EXPORT
    elif not handler:
        kind = ArtefactFormat.ARTEFACT_FORMAT_HUGGING_FACE
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    artefact = Artefact(
        digest=digest,
        format=kind,
        files=files,
        size_bytes=sum(file.size_bytes for file in files),
        signature=signature,
        layout=WeightsLayout(tensors=tensors, image_bytes=len(image)),
        architecture=architecture,
    )
    version = FunctionVersion(
        version_id=version_id or f"{name}-1",
        version=1,
        spec=FunctionSpec(name=name, handler=handler, options=options, signature=signature),
        artefact_digest=digest,
        format=kind,
        weights_bytes=len(image),
        artefact_bytes=artefact.size_bytes,
    )
    return Staged(version, artefact, folder, image_path)


def _specs(tensors: Tensors) -> list[TensorSpec]:
    return [TensorSpec(name=name, datatype=datatype, shape=shape) for name, datatype, shape in tensors]


def _lay_out(folder: Path, files: list[Path]) -> tuple[list[WeightTensor], bytes]:
    tensors, image = [], bytearray()
    for path in files:
        content = path.read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            image.extend(b"\0" * (-len(image) % ALIGNMENT_BYTES))
            tensors.append(
                WeightTensor(
                    name=name,
                    file=str(path.relative_to(folder)),
                    dtype=entry["dtype"],
                    shape=entry["shape"],
                    file_offset_bytes=begin,
                    image_offset_bytes=len(image),
                    size_bytes=end - begin,
                )
            )
            image.extend(content[begin:end])
    return tensors, bytes(image)
