"""Where each tensor of an artefact stands in the image that goes to a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rouse_common.errors import InvalidArgument
from rouse_contracts.repository import WeightsLayout
from rouse_model_repository.inspection.safetensors import Tensor

ALIGNMENT_BYTES = 64
MAX_TENSORS = 200_000


def lay_out(files: Mapping[str, Sequence[Tensor]], *, names_unique: bool) -> WeightsLayout:
    """The layout of all weight files, in the order of their paths, each tensor 64-byte aligned in the image.

    Args:
        names_unique: refuse a tensor name that stands in two files, as for the shards of one model.
    Raises: InvalidArgument BAD_ARTEFACT.
    """
    layout, offset, owners = WeightsLayout(), 0, dict[str, str]()
    if sum(map(len, files.values())) > MAX_TENSORS:
        raise InvalidArgument("BAD_ARTEFACT", f"the weights have more than {MAX_TENSORS} tensors")
    for path in sorted(files):
        for tensor in files[path]:
            if names_unique and tensor.name in owners:
                raise InvalidArgument(
                    "BAD_ARTEFACT",
                    f"tensor '{tensor.name}' stands in {owners[tensor.name]} and in {path}; keep one of them",
                    tensor=tensor.name,
                )
            owners[tensor.name] = path
            layout.tensors.add(
                name=tensor.name,
                file=path,
                dtype=tensor.dtype,
                shape=tensor.shape,
                file_offset_bytes=tensor.offset_bytes,
                image_offset_bytes=offset,
                size_bytes=tensor.size_bytes,
            )
            offset = aligned(offset + tensor.size_bytes)
    layout.image_bytes = offset
    return layout


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
