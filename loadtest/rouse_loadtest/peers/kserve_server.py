"""The identity on KServe's model server; runs in its environment."""

from __future__ import annotations

import argparse

import kserve
from kserve import InferOutput, InferRequest, InferResponse


class Identity(kserve.Model):
    """x in, the same out as y."""

    def __init__(self) -> None:
        super().__init__("identity")
        self.ready = True

    async def predict(self, payload: InferRequest, headers: object = None) -> InferResponse:
        tensor = payload.inputs[0]
        output = InferOutput("y", tensor.shape, tensor.datatype)
        output.set_data_from_numpy(tensor.as_numpy(), binary_data=True)
        return InferResponse(payload.id or "", "identity", [output])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(parents=[kserve.model_server.parser]).parse_args()
    kserve.ModelServer(
        http_port=arguments.http_port, grpc_port=arguments.grpc_port, workers=arguments.workers, access_log_format=None
    ).start([Identity()])
