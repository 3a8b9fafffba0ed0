"""The `rouse` device as this process sees it: one session at a time, tensors that are named by address."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rouse_runtime.failures import LoadError

if TYPE_CHECKING:
    import torch

DEVICE = "rouse"
CONNECT_S = 10.0


class Device(Protocol):
    """A device whose operations run elsewhere. Everything is called in the thread that runs the function."""

    name: str
    """What PyTorch calls it."""

    def connect(self, socket: str) -> None:
        """Takes the session that an executor offers at a Unix socket. Raises OSError, or RuntimeError with the reason
        where the session cannot be had."""
        ...

    def disconnect(self) -> None:
        """Ends the session; tensors on the device lose their memory. Harmless without one."""
        ...

    def alive(self) -> bool:
        """Whether there is a session whose executor has not ended."""
        ...

    def named(self, address: int, dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
        """A contiguous tensor over what the executor has at an address of a range that is mapped for this session,
        with a storage of its own. Nothing is copied."""
        ...

    def signature_of(self, what: str, inputs: Sequence[torch.Tensor]) -> str:
        """What requests with inputs that look so are called by the executor, in hexadecimal."""
        ...

    def begin(self, request: int, what: str, inputs: Sequence[torch.Tensor]) -> None:
        """The executor records a request from here on: what is done with inputs that are on the device."""
        ...

    def end(self, request: int, outputs: Sequence[torch.Tensor]) -> None:
        """The request is over, and these are what it computed. One that does not end is forgotten."""
        ...

    def memory(self, size_bytes: int) -> Memory:
        """Memory for arrays that a function is given."""
        ...


class Memory(Protocol):
    """Memory of this process, as a writable buffer, that says whether it was touched."""

    def watch(self) -> None:
        """Notes touches from here on. Raises RuntimeError where that cannot be done."""
        ...

    def unwatch(self) -> bool:
        """Whether it was touched meanwhile. Harmless where it is not watched."""
        ...


class NativeDevice:
    """The device of rouse_native."""

    name = DEVICE

    def __init__(self) -> None:
        # Registers the device; not before a function asks for it, as it stays for the life of the process.
        self._redirect = importlib.import_module("rouse_native.redirect")
        self._requests = importlib.import_module("rouse_native._redirect")
        self._session = importlib.import_module("rouse_native.session")

    def connect(self, socket: str) -> None:
        try:
            rings, peer = self._session.dial(Path(socket), CONNECT_S)
        except self._session.SessionError as error:
            raise RuntimeError(str(error)) from None
        self._redirect.attach(rings, peer)

    def disconnect(self) -> None:
        self._redirect.disconnect()

    def alive(self) -> bool:
        return bool(self._requests.alive())

    def named(self, address: int, dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
        found: torch.Tensor = self._redirect.tensor_at(address, dtype, list(sizes))
        return found

    def signature_of(self, what: str, inputs: Sequence[torch.Tensor]) -> str:
        signature: str = self._requests.signature_of(what, inputs)
        return signature

    def begin(self, request: int, what: str, inputs: Sequence[torch.Tensor]) -> None:
        self._requests.begin_request(request, what, inputs)

    def end(self, request: int, outputs: Sequence[torch.Tensor]) -> None:
        self._requests.end_request(request, outputs)

    def memory(self, size_bytes: int) -> Memory:
        memory: Memory = self._requests.Watched(size_bytes)
        return memory


def native_device() -> Device:
    """Raises LoadError where the native core is not there."""
    try:
        return NativeDevice()
    except ImportError as error:
        raise LoadError(
            f"execution = 'rouse' needs the native core, which this node does not have ({error}); build it with "
            "`make setup` where a C++20 compiler is, or say execution = 'plain'"
        ) from error
