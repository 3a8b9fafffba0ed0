"""Functions for loads that are broken into: one that tells which requests ran, and one that tapes answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from pathlib import Path

from rouse_contracts import inference
from rouse_loadtest import mesh as meshes
from rouse_loadtest.open_loop import Question

WITNESSED = """
import socket

class Function:
    def load(self, context):
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.to = ("127.0.0.1", int(context.options["port"]))

    def predict(self, inputs):
        # Told before the answer: what ran is known even where nobody hears of it.
        self.out.sendto(str(int(inputs["x"][0])).encode(), self.to)
        return {"y": inputs["x"]}
"""
DOUBLED = """
import torch

class Function:
    def load(self, context):
        self.layer = torch.nn.Linear(1, 1, bias=False, device="meta")
        context.bind(self.layer, "weights.safetensors")

    def predict(self, inputs):
        return {"y": self.layer(torch.from_numpy(inputs["x"]))}
"""
TWO_INSTANCES = "[scaling]\nmin_instances = 2\nmax_instances = 2\n"


class Witness:
    """Hears from the function which requests ran, and how often each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.ran: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(64):
            self.ran[int(data)] += 1

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(5)
        self._socket.close()


def write_witnessed(folder: Path, witness: Witness) -> Path:
    """An identity of INT64 [1] that tells the witness of every request."""
    settings = f'{TWO_INSTANCES}[options]\nport = "{witness.port}"'
    return meshes.write_function(folder, "witnessed", WITNESSED, ["x INT64 [-1]"], ["y INT64 [-1]"], settings)


def write_doubled(folder: Path) -> Path:
    """y = 2x of FP32 [1, 1], by the devices' executors."""
    import torch
    from safetensors.torch import save_file

    meshes.write_function(folder, "doubled", DOUBLED, ["x FP32 [-1, 1]"], ["y FP32 [-1, 1]"], TWO_INSTANCES)
    manifest = folder / "rouse.toml"
    manifest.write_text(f'execution = "rouse"\n{manifest.read_text()}')
    save_file({"weight": torch.full((1, 1), 2.0)}, folder / "weights.safetensors")
    return folder


def witnessed() -> Question:
    """Asks the identity for the request's number."""

    def ask(number: int) -> inference.ModelInferRequest:
        return _request("witnessed", "INT64", [1], number.to_bytes(8, "little"))

    return Question(ask, lambda number, answer: answer.raw_output_contents[0] == number.to_bytes(8, "little"))


def doubled() -> Question:
    """Asks for twice the request's number."""

    def ask(number: int) -> inference.ModelInferRequest:
        return _request("doubled", "FP32", [1, 1], struct.pack("<f", number % 1000))

    return Question(ask, lambda number, answer: answer.raw_output_contents[0] == struct.pack("<f", 2 * (number % 1000)))


def _request(model: str, datatype: str, shape: list[int], content: bytes) -> inference.ModelInferRequest:
    request = inference.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    request.raw_input_contents.append(content)
    return request
