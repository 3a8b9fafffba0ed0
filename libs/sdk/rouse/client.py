"""The blocking client: `AsyncClient`'s logic over a transport that blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from rouse.access import Access
from rouse.aio import AsyncClient
from rouse.inferring import Parameter
from rouse.package import Package
from rouse.transport import BlockingTransport, drain, finish
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
    UsageRow,
)


class Client:
    """Deploys, calls and watches functions of a mesh; may be used from several threads.

    Arguments and methods are those of `AsyncClient`, which documents them; these block::

        with rouse.Client() as client:
            client.deploy("examples/digits/model")
            print(client.infer("digits", {"image": images})["digit"])
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = 60.0,
        ca: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
    ) -> None:
        self._client = AsyncClient(address, timeout=timeout, ca=ca, api_key=api_key, transport=BlockingTransport)
        # Tenants, keys and secrets.
        self.access = Access(self._client.access)

    @property
    def address(self) -> str:
        """The gateway's address in use."""
        return self._client.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls in flight are cancelled."""
        finish(self._client.close())

    def deploy(
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
        """Deploys a folder as a new version of a function, waits until it has loaded, and gives it the traffic."""
        return finish(
            self._client.deploy(
                source,
                name,
                options=options,
                scaling=scaling,
                resources=resources,
                objective=objective,
                description=description,
                wake=wake,
                traffic=traffic,
                force=force,
                timeout=timeout,
                progress=progress,
            )
        )

    def infer(
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
        """Calls a function once, waking it where it sleeps."""
        return finish(
            self._client.infer(
                function,
                inputs,
                outputs,
                version=version,
                request_id=request_id,
                idempotency_key=idempotency_key,
                priority=priority,
                sequence_id=sequence_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
                parameters=parameters,
                timeout=timeout,
            )
        )

    def stream(
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
    ) -> Generator[Result, None, None]:
        """Calls a function once and yields its responses as they come."""
        return drain(
            self._client.stream(
                function,
                inputs,
                outputs,
                version=version,
                request_id=request_id,
                priority=priority,
                sequence_id=sequence_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
                parameters=parameters,
                timeout=timeout,
            )
        )

    def functions(self, *, timeout: float | None = None) -> list[Function]:
        """All functions in the order of their names."""
        return finish(self._client.functions(timeout=timeout))

    def describe(self, function: str, *, timeout: float | None = None) -> Description:
        """Versions, instances, residency, usage and events of a function."""
        return finish(self._client.describe(function, timeout=timeout))

    def set_traffic(self, function: str, shares: Mapping[int, int], *, timeout: float | None = None) -> Function:
        """Shares the requests that name no version between versions: percentages by number, 100 in all."""
        return finish(self._client.set_traffic(function, shares, timeout=timeout))

    def roll_back(self, function: str, *, timeout: float | None = None) -> Function:
        """Puts the traffic back to what it was before the last deployment or change of it."""
        return finish(self._client.roll_back(function, timeout=timeout))

    def sleep(self, function: str, *, timeout: float | None = None) -> Function:
        """Stops the instances above min_instances once what they execute has ended; the next request wakes it."""
        return finish(self._client.sleep(function, timeout=timeout))

    def wake(self, function: str, *, version: int | None = None, timeout: float | None = None) -> Function:
        """Starts an instance of a version where there is none, and waits until one is ready."""
        return finish(self._client.wake(function, version=version, timeout=timeout))

    def delete(self, function: str, *, timeout: float | None = None) -> None:
        """Deletes a function with all its versions; returns when every byte is given back."""
        finish(self._client.delete(function, timeout=timeout))

    def logs(
        self,
        function: str = "",
        *,
        service: str = "",
        instance: str = "",
        trace_id: str = "",
        tail: int = 200,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Generator[str, None, None]:
        """Log lines, oldest first; with `follow` also those to come."""
        return drain(
            self._client.logs(
                function,
                service=service,
                instance=instance,
                trace_id=trace_id,
                tail=tail,
                follow=follow,
                timeout=timeout,
            )
        )

    def trace(self, trace_id: str, *, settle: float = 2.0, timeout: float | None = None) -> list[Span]:
        """The spans of a trace in the order of their start, once they are all there."""
        return finish(self._client.trace(trace_id, settle=settle, timeout=timeout))

    def usage(
        self,
        *,
        by: str | None = None,
        tenant: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        timeout: float | None = None,
    ) -> list[UsageRow]:
        """What requests used, those that kept devices longest first; by hours the ledger, in order."""
        return finish(self._client.usage(by=by, tenant=tenant, since=since, until=until, timeout=timeout))

    def status(self, *, timeout: float | None = None) -> Status:
        """Services, nodes and devices of the mesh."""
        return finish(self._client.status(timeout=timeout))
