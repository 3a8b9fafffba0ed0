"""The identity on Ray Serve over gRPC; runs in its environment: ray_server.py GRPC_PORT HTTP_PORT PROTO_FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import ray
from grpc_tools import protoc
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

GRPC_PORT, HTTP_PORT, PROTO = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
# The replica imports the contract, too: the folder is on PYTHONPATH.
GENERATED = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])


@serve.deployment
class Identity:
    """x in, the same out as y."""

    def ModelInfer(self, request: object) -> object:
        from inference import grpc_service_pb2

        response = grpc_service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            response.outputs.add(name="y", datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(raw)
        return response


def main() -> None:
    protos = [str(path) for path in (PROTO / "inference").glob("*.proto")]
    outputs = [f"--python_out={GENERATED}", f"--grpc_python_out={GENERATED}"]
    if protoc.main(["protoc", f"-I{PROTO}", *outputs, *protos]) != 0:
        sys.exit("the contract cannot be compiled")
    ray.init(include_dashboard=False, num_cpus=2, log_to_driver=False)
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=HTTP_PORT),
        grpc_options=gRPCOptions(
            port=GRPC_PORT,
            grpc_servicer_functions=["inference.grpc_service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"],
        ),
    )
    serve.run(Identity.bind())
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
