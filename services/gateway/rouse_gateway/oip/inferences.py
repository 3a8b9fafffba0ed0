"""Inferences of the protocol, from a Request to its Reply: shared memory, classification, decoupled functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from rouse_common.errors import InvalidArgument, RouseError, Unimplemented
from rouse_common.telemetry import current_trace_id
from rouse_gateway.asked import Answer, Call, Serves
from rouse_gateway.oip.classification import classify
from rouse_gateway.oip.regions import Regions
from rouse_gateway.oip.requests import Caller, Place, Reply, Request
from rouse_gateway.state import Routes
from rouse_gateway.wire import TensorView

NO_PLACES: Mapping[str, Place] = {}


class Inferences:
    """Serves inferences of the protocol.

    Args:
        default_timeout_s: time for a request that sets none.
    """

    def __init__(self, routes: Routes, dispatcher: Serves, regions: Regions, default_timeout_s: float) -> None:
        self._routes = routes
        self._dispatcher = dispatcher
        self._regions = regions
        self._default_timeout_s = default_timeout_s

    def is_decoupled(self, model: str, version: str) -> bool:
        """Whether requests to a model may have any number of responses; false for models that are not there."""
        route = self._routes.table.functions.get(model)
        return route is not None and version in route.decoupled

    async def infer(self, request: Request, caller: Caller) -> Reply:
        """The one reply. Raises the RouseError of the contract; Unimplemented NOT_ONE_RESPONSE where a decoupled
        function does not give exactly one."""
        with _explained(request.model):
            call = await self._call(request, caller)
        if not self.is_decoupled(request.model, request.version):
            return await self._reply(request, caller, await self._dispatcher.infer(call))
        found: Answer | None = None
        async with aclosing(self._dispatcher.stream(call)) as answers:
            async for answer in answers:
                if found is not None:
                    raise _not_one(request.model, "more than one response")
                found = answer
        if found is None:
            raise _not_one(request.model, "no response")
        return await self._reply(request, caller, found)

    async def stream(self, request: Request, caller: Caller) -> AsyncGenerator[Reply, None]:
        """Every reply, in their order: one of an ordinary function, any number of a decoupled one. Raises as
        `infer` does, also after some replies."""
        with _explained(request.model):
            call = await self._call(request, caller)
        if not self.is_decoupled(request.model, request.version):
            yield await self._reply(request, caller, await self._dispatcher.infer(call))
            return
        async with aclosing(self._dispatcher.stream(call)) as answers:
            async for answer in answers:
                yield await self._reply(request, caller, answer)

    async def _call(self, request: Request, caller: Caller) -> Call:
        """What the dispatcher is asked. Raises InvalidArgument, NotFound."""
        given = request.parameters
        bounds = [bound for bound in (caller.time_left_s, given.timeout_s) if bound is not None]
        inputs: Sequence[TensorView] = [
            tensor
            if isinstance(tensor, TensorView)
            else TensorView(
                tensor.name, tensor.datatype, tensor.shape, await self._regions.read(caller.tenant, tensor.place)
            )
            for tensor in request.inputs
        ]
        for output in request.outputs:
            if output.place is not None:
                if output.classes:
                    raise InvalidArgument(
                        "BAD_PARAMETER",
                        f"output '{output.name}' of model '{request.model}': classification results do not go into "
                        "shared memory",
                        function=request.model,
                        tensor=output.name,
                    )
                self._regions.check(caller.tenant, output.place)
        return Call(
            function=request.model,
            number=request.version,
            inputs=inputs,
            output_names=[output.name for output in request.outputs],
            timeout_s=min(bounds, default=self._default_timeout_s),
            tenant=caller.tenant,
            tenant_weight=caller.weight,
            options=given.options,
            idempotency_key=caller.idempotency_key or given.idempotency_key,
        )

    async def _reply(self, request: Request, caller: Caller, answer: Answer) -> Reply:
        """The outputs as they are wanted. Raises InvalidArgument where one does not fit into its place."""
        if not any(output.classes or output.place for output in request.outputs):
            return Reply(answer, answer.outputs, NO_PLACES)
        with _explained(request.model):
            return await self._shaped(request, caller, answer)

    async def _shaped(self, request: Request, caller: Caller, answer: Answer) -> Reply:
        wanted = {output.name: output for output in request.outputs if output.classes or output.place}
        outputs: list[TensorView] = []
        placed: dict[str, Place] = {}
        for tensor in answer.outputs:
            output = wanted.get(tensor.name)
            if output is not None and output.classes:
                tensor = await classify(answer.version, tensor, output.classes)
            if output is not None and output.place is not None:
                await self._regions.write(caller.tenant, output.place, tensor.data)
                placed[tensor.name] = Place(output.place.region, output.place.offset, len(tensor.data))
                tensor = TensorView(tensor.name, tensor.datatype, tensor.shape, b"")
            outputs.append(tensor)
        return Reply(answer, outputs, placed)


class _explained:  # noqa: N801 - it reads as the function that it stands for
    """Gives errors the names that those of the dispatcher have."""

    __slots__ = ("_model",)

    def __init__(self, model: str) -> None:
        self._model = model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, RouseError):
            error.metadata.setdefault("function", self._model)
            error.metadata.setdefault("trace_id", current_trace_id())


def _not_one(model: str, given: str) -> Unimplemented:
    return Unimplemented(
        "NOT_ONE_RESPONSE",
        "ModelInfer RPC doesn't support models with decoupled transaction policy: "
        f"model '{model}' gave {given}; call it by ModelStreamInfer or generate_stream",
        function=model,
    )
