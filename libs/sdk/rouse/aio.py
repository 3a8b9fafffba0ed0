"""The client for asyncio, and the logic of both clients."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from rouse import convert, inferring, tensors
from rouse.access import AsyncAccess
from rouse.address import Gateway, locate
from rouse.deploying import Deploy, Overrides, Steps
from rouse.errors import InvalidArgument, NotFound, Unavailable, about
from rouse.inferring import Asked, Parameter
from rouse.keys import find_key
from rouse.package import Package, read_package
from rouse.transport import LoopTransport, Transport
from rouse.types import (
    Deployment,
    Description,
    Function,
    Objective,
    Progress,
    Resources,
    Result,
    Scaling,
    Span,
    Status,
    TensorSpec,
    UsageRow,
)
from rouse_contracts import functions as contract

READ_ATTEMPTS = 3
FIRST_PAUSE_S = 0.1
MAX_SIGNATURES = 256
FOLLOW_TIMEOUT_S = 86_400.0
# Services write their spans out a fifth of a second after they end, at the latest.
SPANS_SETTLE_S = 0.5
SPANS_POLL_S = 0.1
_GROUPINGS: Mapping[str | None, contract.UsageGrouping] = {
    None: contract.USAGE_GROUPING_UNSPECIFIED,
    "tenant": contract.USAGE_GROUPING_TENANT,
    "function": contract.USAGE_GROUPING_FUNCTION,
    "hour": contract.USAGE_GROUPING_HOUR,
}


class AsyncClient:
    """Deploys, calls and watches functions of a mesh. Use it with `async with`, on one event loop.

    Args:
        address: the gateway as host:port or unix:PATH, grpcs://host:port for TLS. None: ROUSE_ADDRESS, else
            the running embedded mesh (mesh.json in ROUSE_DATA_DIR or ~/.rouse), else localhost:8001.
        timeout: seconds that a call may take where it names no timeout of its own.
        ca: PEM file of the authority that the gateway's certificate has to come from. None: ROUSE_CA, else that
            of the running embedded mesh, else the machine's for grpcs://.
        api_key: shown with every call. None: ROUSE_API_KEY, else that of the running embedded mesh.

    Every method raises RouseError, with `reason` for programs and `hint` for people. Reads are tried
    again where the mesh is unavailable for a moment, and so is what carries an idempotency key; nothing else that
    changes or computes is.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = 60.0,
        ca: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        transport: Callable[[Gateway, str | None], Transport] = LoopTransport,
    ) -> None:
        gateway = locate(address, ca)
        self.address = gateway.address
        self._timeout = timeout
        self._transport = transport(gateway, find_key(api_key, gateway.address))
        # Tenants, keys and secrets.
        self.access = AsyncAccess(self._transport, timeout)
        self._signatures: OrderedDict[str, Mapping[str, TensorSpec]] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls in flight are cancelled."""
        await self._transport.close()

    async def deploy(
        self,
        source: str | os.PathLike[str] | Package,
        name: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        scaling: Scaling | None = None,
        resources: Resources | None = None,
        objective: Objective | None = None,
        description: str | None = None,
        wake: bool = True,
        traffic: bool = True,
        force: bool = False,
        timeout: float = 900.0,
        progress: Callable[[Progress], None] | None = None,
    ) -> Deployment:
        """Deploys a folder as a new version of a function, waits until it has loaded, and gives it the traffic.

        A version that does not load gets none: what served before goes on serving. Where nothing changed since
        the newest version or the one that serves, no version is made.

        Args:
            source: a folder with a rouse.toml or a Hugging Face directory, or what `read_package` returned.
            name: the function; None takes rouse.toml's, else the folder's name.
            options: given to load(), merged over rouse.toml's. The other settings replace rouse.toml's.
            wake: False returns as soon as the version is stored, with the traffic: load errors then show at the
                first request.
            traffic: False leaves the traffic as it is: only requests that name the version reach it.
            force: makes a version also where nothing changed.
            timeout: seconds for all of it: hashing, uploading, deploying, loading.
            progress: called with every step.

        Raises PackageError before anything is sent where the folder is not fit, FailedPrecondition
        LOAD_FAILED where the new version does not load; it stays deployed then.
        """
        package = source if isinstance(source, Package) else await self._transport.work(lambda: read_package(source))
        overrides = Overrides(name, options, scaling, resources, objective, description)
        self._signatures.pop(name or package.default_name, None)
        with about(name or package.default_name):
            return await Deploy(self._transport, package, overrides, timeout, progress).run(Steps(wake, traffic, force))

    async def infer(
        self,
        function: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        version: int | None = None,
        request_id: str = "",
        idempotency_key: str = "",
        priority: int = 0,
        sequence_id: str | int | None = None,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Calls a function once, waking it where it sleeps.

        Args:
            inputs: arrays by name: numpy arrays and torch tensors keep their dtype; lists and numbers
                take the datatype that the function's signature says.
            outputs: names of the outputs wanted; None is all.
            version: number of a version; None is the active one, or one by the shares of the traffic.
            request_id: echoed in the result, and the idempotency key where none is given.
            idempotency_key: requests with the same key run once, and get one answer; so this one is tried again
                where the mesh is unavailable, up to three times in all.
            priority: 1 is the highest, 9 the lowest; 0 stands for 5.
            sequence_id: names a sequence of requests, which one instance serves in their order; the first says
                `sequence_start`, the last `sequence_end`.
            parameters: given to the function beside its inputs.
            timeout: seconds, a wake-up included; the mesh gives the request up then, too.
        """
        asked = Asked(
            version, request_id, idempotency_key, priority, sequence_id, sequence_start, sequence_end, parameters or {}
        )
        ends = time.monotonic() + self._seconds(timeout)
        with about(function):
            request = await self._request(function, inputs, outputs, asked, ends)
            try:
                if idempotency_key:
                    response = await self._read("Infer", request, self._left(ends))
                else:
                    response = await self._transport.unary("Infer", request, self._left(ends))
            except InvalidArgument:
                # The signature may be another one by now.
                self._signatures.pop(function, None)
                raise
        return inferring.result(response)

    async def stream(
        self,
        function: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        version: int | None = None,
        request_id: str = "",
        priority: int = 0,
        sequence_id: str | int | None = None,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Calls a function once and yields its responses as they come: any number of a decoupled function, one of
        any other. Closing the generator ends the request. Arguments as for `infer`; `timeout` is for all of them."""
        asked = Asked(version, request_id, "", priority, sequence_id, sequence_start, sequence_end, parameters or {})
        ends = time.monotonic() + self._seconds(timeout)
        with about(function):
            request = await self._request(function, inputs, outputs, asked, ends)
            streamed = contract.InferStreamRequest(request=request)
            async with aclosing(self._transport.stream("InferStream", streamed, self._left(ends))) as responses:
                async for response in responses:
                    yield inferring.result(response.response)

    async def _request(
        self, function: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, asked: Asked, ends: float
    ) -> contract.InferRequest:
        plain = [name for name, value in inputs.items() if not tensors.has_dtype(value)]
        specs = await self._signature(function, self._left(ends)) if plain else {}
        return inferring.message(function, tensors.encode_all(inputs, specs), outputs, asked)

    async def functions(self, *, timeout: float | None = None) -> list[Function]:
        """All functions in the order of their names."""
        response = await self._read("ListFunctions", contract.ListFunctionsRequest(), timeout)
        return [convert.function(summary) for summary in response.functions]

    async def describe(self, function: str, *, timeout: float | None = None) -> Description:
        """Versions, instances, residency, usage and events of a function."""
        with about(function):
            response = await self._read("GetFunction", contract.GetFunctionRequest(name=function), timeout)
        return convert.description(response)

    async def set_traffic(self, function: str, shares: Mapping[int, int], *, timeout: float | None = None) -> Function:
        """Shares the requests that name no version between versions: percentages by number, 100 in all.

        No shares at all give everything to the newest version. Holds for every request sent after it returned.
        """
        request = contract.SetTrafficRequest(
            name=function,
            shares=[contract.TrafficShare(version=number, percent=percent) for number, percent in shares.items()],
        )
        with about(function):
            response = await self._transport.unary("SetTraffic", request, self._seconds(timeout))
        return convert.function(response.function)

    async def roll_back(self, function: str, *, timeout: float | None = None) -> Function:
        """Puts the traffic back to what it was before the last deployment or change of it."""
        self._signatures.pop(function, None)
        with about(function):
            response = await self._transport.unary(
                "RollBack", contract.RollBackRequest(name=function), self._seconds(timeout)
            )
        return convert.function(response.function)

    async def sleep(self, function: str, *, timeout: float | None = None) -> Function:
        """Stops the instances above min_instances once what they execute has ended; the next request wakes it."""
        with about(function):
            response = await self._transport.unary(
                "SleepFunction", contract.SleepFunctionRequest(name=function), self._seconds(timeout)
            )
        return convert.function(response.function)

    async def wake(self, function: str, *, version: int | None = None, timeout: float | None = None) -> Function:
        """Starts an instance of a version, None being the active one, where there is none; waits until one is ready."""
        request = contract.WakeFunctionRequest(name=function, version=str(version) if version is not None else "")
        with about(function):
            response = await self._transport.unary("WakeFunction", request, self._seconds(timeout))
        return convert.function(response.function)

    async def delete(self, function: str, *, timeout: float | None = None) -> None:
        """Deletes a function with all its versions; returns when every byte is given back."""
        self._signatures.pop(function, None)
        request = contract.DeleteFunctionRequest(name=function)
        with about(function):
            await self._transport.unary("DeleteFunction", request, self._seconds(timeout))

    async def logs(
        self,
        function: str = "",
        *,
        service: str = "",
        instance: str = "",
        trace_id: str = "",
        tail: int = 200,
        follow: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Log lines, oldest first, at most `tail` (10,000) from the end; with `follow` also those to come.

        `instance` is an id as `describe` shows it: only what that instance said, and what was said of it.
        `follow` ends after `timeout` seconds, a day where none is given.
        """
        request = contract.ReadLogsRequest(
            function=function, service=service, instance=instance, trace_id=trace_id, tail=tail, follow=follow
        )
        timeout_s = FOLLOW_TIMEOUT_S if follow and timeout is None else self._seconds(timeout)
        async with aclosing(self._transport.stream("ReadLogs", request, timeout_s)) as stream:
            async for response in stream:
                for line in response.lines:
                    yield line

    async def trace(self, trace_id: str, *, settle: float = 2.0, timeout: float | None = None) -> list[Span]:
        """The spans of a trace in the order of their start.

        Spans are written a moment after they end: a trace that is not there yet, or lacks a parent of
        one of its spans, is asked for again for up to `settle` seconds.
        """
        ends = time.monotonic() + self._seconds(timeout)
        settled = time.monotonic() + settle
        request = contract.GetTraceRequest(trace_id=trace_id)
        while True:
            try:
                response = await self._read("GetTrace", request, self._left(ends))
            except NotFound:
                if time.monotonic() >= settled:
                    raise
            else:
                if time.monotonic() >= settled or _complete(response.spans):
                    return [convert.span(span) for span in response.spans]
            await self._transport.sleep(SPANS_POLL_S)

    async def usage(
        self,
        *,
        by: str | None = None,
        tenant: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        timeout: float | None = None,
    ) -> list[UsageRow]:
        """What requests used, those that kept devices longest first, 1,000 rows at most; by hours all rows, in order.

        Args:
            by: "tenant" or "function" for a row each, "hour" for the ledger: a row for every hour, tenant and function;
                None for a row for every pair of tenant and function.
            tenant: whose requests; empty is the caller's own tenant, for administrators everybody.
            since, until: only the hours from one to before the other, each on a whole hour with its time zone. Without
                them what was used in all.
            timeout: of each call; a ledger is read in pages of 1,000 rows.
        """
        if by not in _GROUPINGS:
            raise InvalidArgument(f"by='{by}': want one of tenant, function, hour", reason="BAD_GROUPING")
        request = contract.GetUsageRequest(
            tenant=tenant,
            grouping=_GROUPINGS[by],
            since=convert.moment(since, "since"),
            until=convert.moment(until, "until"),
        )
        rows: list[UsageRow] = []
        while True:
            response = await self._read("GetUsage", request, timeout)
            rows += [
                UsageRow(row.tenant, row.function, convert.usage(row.usage), convert.time(row, "hour"))
                for row in response.rows
            ]
            if not response.next_page_token or response.next_page_token == request.page_token:
                return rows
            request.page_token = response.next_page_token

    async def status(self, *, timeout: float | None = None) -> Status:
        """Services, nodes and devices of the mesh."""
        return convert.status(await self._read("GetStatus", contract.GetStatusRequest(), timeout))

    async def _read(self, method: str, request: Any, timeout: float | None) -> Any:
        """A call that may be repeated, tried again where the mesh is unavailable."""
        ends = time.monotonic() + self._seconds(timeout)
        pause = FIRST_PAUSE_S
        for attempt in range(1, READ_ATTEMPTS + 1):
            try:
                return await self._transport.unary(method, request, self._left(ends))
            except Unavailable as error:
                pause = max(pause, error.retry_after_s or 0)
                if attempt == READ_ATTEMPTS or time.monotonic() + pause >= ends:
                    raise
            await self._transport.sleep(pause)
            pause *= 3
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _signature(self, function: str, timeout_s: float) -> Mapping[str, TensorSpec]:
        """Inputs of the function by name, as it was when first asked for; lists are cast to it."""
        if function not in self._signatures:
            active = (await self.describe(function, timeout=timeout_s)).function.version
            self._signatures[function] = {spec.name: spec for spec in active.inputs} if active else {}
            if len(self._signatures) > MAX_SIGNATURES:
                self._signatures.popitem(last=False)
        return self._signatures[function]

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    @staticmethod
    def _left(ends: float) -> float:
        return max(0.001, ends - time.monotonic())


def _complete(spans: Sequence[contract.Span]) -> bool:
    """True where there is a root, every parent, and what ended last did so long enough ago."""
    ids = {span.span_id for span in spans}
    whole = all(not span.parent_span_id or span.parent_span_id in ids for span in spans)
    ended = max((span.end_unix_nanos for span in spans), default=0)
    return whole and any(not span.parent_span_id for span in spans) and time.time() - ended / 1e9 > SPANS_SETTLE_S
