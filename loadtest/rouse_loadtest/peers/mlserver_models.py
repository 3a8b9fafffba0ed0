"""Models for MLServer; runs in its environment."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Identity(MLModel):
    """x in, the same out as y."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = payload.inputs[0]
        output = ResponseOutput(name="y", datatype=tensor.datatype, shape=tensor.shape, data=tensor.data)
        return InferenceResponse(model_name=self.name, outputs=[output])


class Mlp(MLModel):
    """x [n, 512] in, y [n, 512] out."""

    async def load(self) -> bool:
        import torch
        from mlp import make_mlp

        torch.set_num_threads(1)
        self._model = make_mlp()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        import torch
        from mlserver.codecs import NumpyCodec

        x = NumpyCodec.decode_input(payload.inputs[0])
        with torch.inference_mode():
            y = self._model(torch.from_numpy(x.copy())).numpy()
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])
