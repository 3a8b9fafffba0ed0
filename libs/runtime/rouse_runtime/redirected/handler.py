"""A loaded function whose operations are redirected while it is attached."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from rouse_contracts.functions import FunctionSpec
from rouse_contracts.repository import WeightTensor
from rouse_runtime.failures import ExecutorLost
from rouse_runtime.handlers import Handler
from rouse_runtime.redirected.device import Device
from rouse_runtime.redirected.placing import Names, Placement
from rouse_runtime.request import Request
from rouse_runtime.weights import WeightsRange

END = object()


class Redirected:
    """A handler around another one. Everything is called in the worker thread.

    Between requests a function may change what it keeps on the host; what it writes to buffers of bound modules is on
    the device, and gone when the function leaves it.

    Args:
        handler: as loaded for plain execution, its weights on the host.
        weights, layout: the model's range, and its tensors.
        spec: of the function.

    Raises WeightsError where a module holds a view of the weights that cannot be named.
    """

    def __init__(
        self,
        handler: Handler,
        weights: WeightsRange,
        layout: Iterable[WeightTensor],
        device: Device,
        spec: FunctionSpec,
    ) -> None:
        from rouse_runtime.redirected.mode import Meeting
        from rouse_runtime.redirected.recording import Recorder

        self._handler, self._device = handler, device
        self.casts, self.takes_request = handler.casts, handler.takes_request
        self.mixes, self.modules = handler.mixes, handler.modules
        self.takes_tensors, self.kept = False, handler.kept
        self._names = Names(device, weights, layout)
        self._placement = Placement(handler.modules, self._names)
        # A reusable context: PyTorch's modes are.
        self._mode: AbstractContextManager[Any] = (
            Meeting(device.name, self._names) if handler.mixes else contextlib.nullcontext()
        )
        self.recorder = Recorder(spec, handler, device, self._names)
        self._connected = False

    def connect(self, socket: str) -> None:
        """Takes a session and puts the function onto its device. Raises OSError or RuntimeError; it is as it was
        before then."""
        self._device.connect(socket)
        self._connected = True
        try:
            self._placement.place()
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Takes the function off the device and ends the session. Harmless without one."""
        self._placement.restore()
        self._names.forget()
        self.recorder.forget()
        if self._connected:
            self._connected = False
            self._device.disconnect()

    def predict(self, inputs: dict[str, np.ndarray], request: Request) -> Mapping[str, Any] | Iterator[Any]:
        """As the handler's; outputs come to the host here, so that the time of the device is the function's. Raises
        ExecutorLost in place of what it raises because the executor has ended."""
        self._names.drop_inputs()  # of a request that was interrupted
        with self._mode, self._lost():
            result = self._called(inputs, request)
            return self._streamed(result) if isinstance(result, Iterator) else self._fetched(result)

    def _called(self, inputs: dict[str, np.ndarray], request: Request) -> Any:
        """What the function returns, recorded where that can be."""
        take = self.recorder.begin(inputs)
        if take is None:
            return self._handler.predict(inputs, request)
        try:
            result = self._handler.predict(take.given, request)
        except BaseException:
            self.recorder.drop(take)
            raise
        result = self.recorder.end(take, result)
        return self._handler.predict(inputs, request) if result is None else result

    def _streamed(self, results: Iterator[Any]) -> Iterator[Any]:
        # The mode is a thread's: it must not stay while the generator waits for its reader.
        try:
            while (item := self._next(results)) is not END:
                yield item
        finally:
            if isinstance(results, Generator):
                with self._mode:
                    results.close()

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._connected and not self._device.alive():
                raise ExecutorLost(str(error)) from error
            raise

    def _next(self, results: Iterator[Any]) -> Any:
        with self._mode, self._lost():
            item = next(results, END)
            return item if item is END else self._fetched(item)

    def _fetched(self, result: Any) -> Any:
        if not isinstance(result, Mapping):
            return result
        return {name: self._on_host(value) for name, value in result.items()}

    def _on_host(self, value: Any) -> Any:
        there = getattr(getattr(value, "device", None), "type", "") == self._device.name
        return value.cpu() if there else value

    def close(self) -> None:
        """The function is not called any more."""
        close = getattr(self._handler, "close", None)
        if close is not None:
            close()
