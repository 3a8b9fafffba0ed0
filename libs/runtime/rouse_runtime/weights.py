"""The one range of addresses that a function's weights live at, whatever memory is behind it.

Architecture, "One address space": the control plane has given the model its addresses, the same on every node and after
every restart. They are reserved when the instance starts, or it does not start at all; nothing is ever moved. While the
function loads, the node's host copy is mapped there; attaching a device maps the device's copy over it, detaching
leaves it without access. Tensors are views of addresses in the range, so they are made once, stay valid, and a touch
while detached faults instead of reading something else.
"""

from __future__ import annotations

import ctypes
import errno
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
MAP_FIXED_NOREPLACE = 0x100000
MAPS = "/proc/self/maps"
SHOWN_MAPPINGS = 3
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


class AddressTaken(WeightsError):
    """The addresses that the control plane gave the model cannot be had in this process; names what lies there."""


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
        base: where it has to begin, a multiple of the page size; None: wherever the kernel likes, outside of a mesh.

    Raises AddressTaken.
    """

    def __init__(self, image_bytes: int, base: int | None = None) -> None:
        self.image_bytes = image_bytes
        self.size_bytes = -(-image_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._libc = _libc()
        self.address = 0
        if image_bytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            self.address = self._map(None, PROT_NONE, flags, -1) if base is None else self._reserve(base, flags)

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

    def _reserve(self, base: int, flags: int) -> int:
        """Reserves the range where it belongs, or nowhere."""
        if base <= 0 or base % mmap.PAGESIZE:
            raise WeightsError(f"the model's addresses begin at {base:#x}, which is no page; deploy the function again")
        # A kernel before 4.17 takes the address for a hint, and may answer another one.
        found = self._libc.mmap(base, self.size_bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0)
        if found == base:
            return base
        number = ctypes.get_errno()
        if found != MAP_FAILED:
            self._libc.munmap(found, self.size_bytes)
        elif number != errno.EEXIST:
            raise OSError(number, f"reserving {self.size_bytes} bytes for weights failed: {os.strerror(number)}")
        raise AddressTaken(
            f"the model's addresses {base:#x}-{base + self.size_bytes:#x} cannot be reserved in this process: there "
            f"{mapped_in(base, base + self.size_bytes)}; whatever maps memory there must not, or must do so later"
        )

    def _map(self, address: int | None, protection: int, flags: int, descriptor: int) -> int:
        result = self._libc.mmap(address, self.size_bytes, protection, flags, descriptor, 0)
        if result == MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"mmap of {self.size_bytes} bytes for weights failed: {os.strerror(number)}")
        if address is not None and result != address:
            raise WeightsError(f"the kernel moved the weights' range from {address:#x} to {result:#x}")
        return int(result)


def mapped_in(start: int, end: int) -> str:
    """What this process has mapped between two addresses, in words."""
    found = []
    with open(MAPS) as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            low, high = (int(part, 16) for part in words[0].split("-"))
            if low < end and start < high:
                name = words[5].strip() if len(words) > 5 else "anonymous memory"
                found.append(f"{name} at {low:#x}-{high:#x}")
    if not found:
        return "lies nothing, and the kernel refuses all the same"
    more = f" and {len(found) - SHOWN_MAPPINGS} more" if len(found) > SHOWN_MAPPINGS else ""
    return f"lies {', '.join(found[:SHOWN_MAPPINGS])}{more}"


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
