"""The three layers on LitServe; runs in its environment: litserve_server.py PORT MAX_BATCH DELAY_S."""

from __future__ import annotations

import sys

import litserve
import torch
from mlp import make_mlp


class Mlp(litserve.LitAPI):
    """x [1, 512] in, y [1, 512] out."""

    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self._model = make_mlp()

    def decode_request(self, request: dict) -> torch.Tensor:
        return torch.tensor(request["x"][0])

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._model(x)

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        return list(output)

    def encode_response(self, output: torch.Tensor) -> dict:
        return {"y": output.tolist()}


if __name__ == "__main__":
    port, size, delay_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    api = Mlp(max_batch_size=max(1, size), batch_timeout=delay_s)
    litserve.LitServer(api, accelerator="cpu").run(host="127.0.0.1", port=port, generate_client_file=False)
