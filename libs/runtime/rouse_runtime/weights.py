"""The one range of addresses that a function's weights live at, whatever memory is behind it.

Architecture, "One address space", in its first form: the range is reserved when the instance starts and never
moves. While the function loads, the node's host copy is mapped there; attaching a device maps the device's copy
over it, detaching leaves it without access. Tensors are views of addresses in the range, so they are made once,
stay valid, and a touch while detached faults instead of reading something else.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rouse_runtime.failures import LoadError

if TYPE_CHECKING:
    import torch

ALIGNMENT_BYTES = 64

PROT_NONE = 0
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
MAP_FAILED = ctypes.c_void_p(-1).value

# safetensors name to torch name; some exist in newer versions of torch only.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


class WeightsError(LoadError):
    """Weights that cannot be mapped or named; the text says which and why."""


class SizeMismatch(WeightsError):
    """A file or a size that does not fit the range."""


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.munmap.restype = ctypes.c_int
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class WeightsRange:
    """`image_bytes` of reserved addresses, rounded up to whole pages.

    Not thread-safe: the caller sees to it that nothing computes while the mapping changes.

    Args:
        image_bytes: size of the weights' image; 0 reserves nothing.
    """

    def __init__(self, image_bytes: int) -> None:
        self.image_bytes = image_bytes
        self.size_bytes = -(-image_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._libc = _libc()
        self.address = 0
        if image_bytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            self.address = self._map(None, PROT_NONE, flags, -1)

    def map_private(self, path: str) -> None:
        """Maps the host copy of the image copy-on-write, for the time of loading.

        Raises SizeMismatch where the file is not the image, OSError where it cannot be opened or mapped.
        """
        self._map_file(path, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)

    def attach(self, path: str, size_bytes: int) -> None:
        """Maps a device's copy of the image read-only.

        Weights do not change while a function serves, and other instances may share the copy, so a write faults.
        Pages are mapped as they are touched: populating 400 MiB at once takes 27 ms and saves the first pass over
        them 22 ms, and what a request does not read (rows of embeddings) is never mapped.
        Raises SizeMismatch where size or file is not the image's, OSError where the file cannot be opened or mapped.
        """
        if size_bytes not in (self.image_bytes, self.size_bytes):
            raise SizeMismatch(f"the device's copy has {size_bytes} bytes, the weights have {self.image_bytes}")
        self._map_file(path, mmap.PROT_READ, mmap.MAP_SHARED)

    def detach(self) -> None:
        """Leaves the range reserved and without access."""
        if self.image_bytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
            self._map(self.address, PROT_NONE, flags, -1)

    def written_bytes(self) -> int:
        """Bytes of a private mapping that were written since it was made."""
        if not self.image_bytes:
            return 0
        start, inside = f"{self.address:x}-", False
        with open("/proc/self/smaps") as smaps:
            for line in smaps:
                if line.startswith(start):
                    inside = True
                elif inside and line.startswith("Anonymous:"):
                    return int(line.split()[1]) * 1024
        raise WeightsError(f"the weights' range at {start} is not in /proc/self/smaps")

    def holds(self, address: int) -> bool:
        """Whether an address lies in the range."""
        return self.address <= address < self.address + self.image_bytes

    def tensor(self, offset_bytes: int, size_bytes: int, dtype: str, shape: Sequence[int]) -> torch.Tensor:
        """A tensor over part of the range, with a storage of its own.

        Args:
            offset_bytes: where it begins in the image; a multiple of 64.
            size_bytes: what it takes there; has to be what dtype and shape say.
            dtype: safetensors name, as BF16.

        Raises WeightsError.
        """
        import torch

        kind = getattr(torch, DTYPES.get(dtype, ""), None)
        if kind is None:
            raise WeightsError(f"this version of PyTorch ({torch.__version__}) has no dtype for safetensors' {dtype}")
        count = 1
        for size in shape:
            count *= size
        if count * kind.itemsize != size_bytes:
            raise WeightsError(f"{dtype} of shape {list(shape)} needs {count * kind.itemsize} bytes, not {size_bytes}")
        if offset_bytes % ALIGNMENT_BYTES or offset_bytes + size_bytes > self.image_bytes:
            raise WeightsError(
                f"offset {offset_bytes} with {size_bytes} bytes is not aligned to {ALIGNMENT_BYTES} bytes, "
                f"or outside of an image of {self.image_bytes}"
            )
        if count == 0:
            return torch.empty(tuple(shape), dtype=kind)
        memory = (ctypes.c_char * size_bytes).from_address(self.address + offset_bytes)
        return torch.frombuffer(memory, dtype=kind, count=count).view(tuple(shape))

    def close(self) -> None:
        """Gives the addresses back; tensors over them must not be used any more."""
        if self.image_bytes and self._libc.munmap(self.address, self.size_bytes) != 0:
            raise OSError(ctypes.get_errno(), "munmap of the weights' range failed")
        self.image_bytes = self.size_bytes = 0

    def _map_file(self, path: str, protection: int, flags: int) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor).st_size
            if found not in (self.image_bytes, self.size_bytes):
                raise SizeMismatch(f"'{path}' has {found} bytes, the weights have {self.image_bytes}")
            self._map(self.address, protection, flags | MAP_FIXED, descriptor)
        finally:
            os.close(descriptor)

    def _map(self, address: int | None, protection: int, flags: int, descriptor: int) -> int:
        result = self._libc.mmap(address, self.size_bytes, protection, flags, descriptor, 0)
        if result == MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"mmap of {self.size_bytes} bytes for weights failed: {os.strerror(number)}")
        if address is not None and result != address:
            raise WeightsError(f"the kernel moved the weights' range from {address:#x} to {result:#x}")
        return int(result)


def make_tensors(weights: WeightsRange, layout: Sequence[Any]) -> Mapping[str, Mapping[str, torch.Tensor]]:
    """The tensors of a layout (repository.WeightTensor) over a range: by file, then by name.

    Raises WeightsError naming the tensor.
    """
    files: dict[str, dict[str, torch.Tensor]] = {}
    for entry in layout:
        try:
            made = weights.tensor(entry.image_offset_bytes, entry.size_bytes, entry.dtype, entry.shape)
        except WeightsError as error:
            raise WeightsError(f"tensor '{entry.name}' of '{entry.file}': {error}") from error
        files.setdefault(entry.file, {})[entry.name] = made
    return files
