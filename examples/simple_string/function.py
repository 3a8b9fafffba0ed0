"""Adds and subtracts numbers in decimal text: the model `simple_string` of Triton's examples."""

import numpy as np


class SimpleString:
    def load(self, context):
        pass

    def predict(self, inputs):
        first, second = inputs["INPUT0"].astype(np.int64), inputs["INPUT1"].astype(np.int64)
        return {"OUTPUT0": text(first + second), "OUTPUT1": text(first - second)}


def text(numbers):
    return np.array([str(number).encode() for number in numbers.ravel()], dtype=object).reshape(numbers.shape)
