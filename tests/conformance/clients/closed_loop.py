"""One closed-loop client: `python closed_loop.py grpc|http ADDRESS COUNT` prints the p50 of its requests in us."""

from __future__ import annotations

import importlib
import statistics
import sys
import time

import numpy as np


def main(protocol: str, address: str, count: int) -> float:
    triton = importlib.import_module(f"tritonclient.{protocol}")
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = triton.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
        tensors.append(tensor)
    taken = []
    with triton.InferenceServerClient(address) as client:
        for _ in range(count):
            began = time.perf_counter()
            client.infer("simple", tensors)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
