"""How calls reach the gateway: blocking or on an event loop, behind one interface.

The client's logic is written once, as coroutines over a Transport. `BlockingTransport` does its work
before it returns and never suspends, so `finish` drives such a coroutine to its end in one step: no
second copy of the logic, no event loop and no thread in the program of a blocking user.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc

from rouse.address import Gateway
from rouse.errors import from_rpc_error
from rouse_contracts.access import AccessServiceStub
from rouse_contracts.functions import FunctionServiceStub

T = TypeVar("T")
MAX_MESSAGE_BYTES = 1 << 30
LOOPBACK = ("localhost", "127.", "[::1]", "unix:")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over a BlockingTransport."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a blocking client was asked to wait on an event loop")


def drain(values: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The values of an asynchronous generator over a BlockingTransport; it is closed with this one."""
    try:
        while True:
            try:
                yield finish(values.__anext__())
            except StopAsyncIteration:
                return
    finally:
        finish(values.aclose())


class Transport(ABC):
    """Calls by method name, every one with a timeout in seconds. Failures are raised as RouseError."""

    def __init__(self, gateway: Gateway, api_key: str | None = None) -> None:
        self.gateway, self.address = gateway, gateway.address
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else None

    @abstractmethod
    async def unary(self, method: str, request: Any, timeout_s: float) -> Any: ...

    @abstractmethod
    async def upload(self, method: str, requests: Iterator[Any], timeout_s: float) -> Any:
        """Sends a stream of messages, which may be read from disk as they go, for one answer."""

    @abstractmethod
    def stream(self, method: str, request: Any, timeout_s: float) -> AsyncGenerator[Any, None]: ...

    @abstractmethod
    async def together(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]], limit: int) -> None:
        """Runs the jobs, `limit` at a time; the first failure stops those not yet started and is raised."""

    @abstractmethod
    async def work(self, function: Callable[[], T]) -> T:
        """Runs something that computes or reads files."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    def _options(self) -> list[tuple[str, int]]:
        options = [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            # A mesh that died is noticed in seconds, also under a stream that follows logs.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.enable_retries", 0),
        ]
        if self.address.startswith(LOOPBACK):
            options.append(("grpc.enable_http_proxy", 0))
        return options


def _methods(channel: Any) -> Any:
    """Every method of the mesh by its name."""
    return SimpleNamespace(**vars(FunctionServiceStub(channel)), **vars(AccessServiceStub(channel)))


class BlockingTransport(Transport):
    """Over a blocking channel; safe to use from several threads."""

    def __init__(self, gateway: Gateway, api_key: str | None = None) -> None:
        super().__init__(gateway, api_key)
        credentials = gateway.credentials()
        if credentials is None:
            self._channel = grpc.insecure_channel(self.address, options=self._options())
        else:
            self._channel = grpc.secure_channel(self.address, credentials, options=self._options())
        self._stub = _methods(self._channel)

    async def unary(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.address) from None

    async def upload(self, method: str, requests: Iterator[Any], timeout_s: float) -> Any:
        return await self.unary(method, requests, timeout_s)

    async def stream(self, method: str, request: Any, timeout_s: float) -> AsyncGenerator[Any, None]:
        call = getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        try:
            for response in call:
                yield response
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.address) from None
        finally:
            call.cancel()

    async def together(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]], limit: int) -> None:
        pool = ThreadPoolExecutor(max_workers=limit, thread_name_prefix="rouse")
        try:
            futures: list[Future[None]] = [pool.submit(_start, job) for job in jobs]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    async def work(self, function: Callable[[], T]) -> T:
        return function()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop under this transport

    async def close(self) -> None:
        self._channel.close()


def _start(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    finish(job())


class LoopTransport(Transport):
    """Over grpc.aio; the channel belongs to the event loop of the first call."""

    def __init__(self, gateway: Gateway, api_key: str | None = None) -> None:
        super().__init__(gateway, api_key)
        self._credentials = gateway.credentials()
        self._channel: grpc.aio.Channel | None = None
        self._made: Any = None

    @property
    def _stub(self) -> Any:
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self.address, options=self._options())
            else:
                self._channel = grpc.aio.secure_channel(self.address, self._credentials, options=self._options())
            self._made = _methods(self._channel)
        return self._made

    async def unary(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.address) from None

    async def upload(self, method: str, requests: Iterator[Any], timeout_s: float) -> Any:
        end = object()

        async def read() -> AsyncIterator[Any]:
            while (message := await asyncio.to_thread(next, requests, end)) is not end:
                yield message

        return await self.unary(method, read(), timeout_s)

    async def stream(self, method: str, request: Any, timeout_s: float) -> AsyncGenerator[Any, None]:
        call = getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.address) from None
        finally:
            call.cancel()

    async def together(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]], limit: int) -> None:
        free = asyncio.Semaphore(limit)

        async def run(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async with free:
                await job()

        try:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(run(job))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def work(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
