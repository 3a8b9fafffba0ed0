"""The bare servers that the mesh is measured against, each a process: `python -m rouse_loadtest.baselines`.

echo: answers ModelInfer with an identity's response, parsed and built with the generated classes, as any server of the
protocol must. chain: the same behind a proxy that parses the request, builds it anew, calls the echo, and does the
same to the response: the least that a mesh of a gateway and a node does with plain grpc.aio.
"""

from __future__ import annotations

import argparse
import asyncio

import grpc
import uvloop

from rouse_contracts import inference

SERVICE = "inference.GRPCInferenceService"


async def serve(port: int, upstream: str) -> None:
    """Serves until the process is ended; `upstream` makes it the proxy."""
    server = grpc.aio.server()
    stub = None
    if upstream:
        stub = inference.GRPCInferenceServiceStub(grpc.aio.insecure_channel(upstream))

    async def infer(request: inference.ModelInferRequest, context: object) -> inference.ModelInferResponse:
        if stub is not None:
            copy = inference.ModelInferRequest(model_name=request.model_name, id=request.id)
            copy.inputs.extend(request.inputs)
            copy.raw_input_contents.extend(request.raw_input_contents)
            answer = await stub.ModelInfer(copy, timeout=60)
            back = inference.ModelInferResponse(model_name=answer.model_name, id=answer.id)
            back.outputs.extend(answer.outputs)
            back.raw_output_contents.extend(answer.raw_output_contents)
            return back
        response = inference.ModelInferResponse(model_name=request.model_name, id=request.id)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(raw)
        return response

    handler = grpc.unary_unary_rpc_method_handler(
        infer, inference.ModelInferRequest.FromString, inference.ModelInferResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", default="", help="host:port of the next server: this one is a proxy")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    arguments = parser.parse_args()
    run = uvloop.run if arguments.loop == "uvloop" else asyncio.run
    run(serve(arguments.port, arguments.upstream))


if __name__ == "__main__":
    main()
