"""Reads handwritten digits of 8 by 8 pixels."""

import torch
from torch import nn


def network() -> nn.Module:
    """A small convolutional network: FP32 [n, 1, 8, 8] in 0..1 to 10 scores."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Digits:
    def load(self, context):
        with torch.device("meta"):
            self.network = network()
        context.bind(self.network, "weights.safetensors")

    def predict(self, inputs):
        scores = self.network(torch.from_numpy(inputs["image"]))
        return {"digit": scores.argmax(dim=1), "scores": scores.softmax(dim=1)}
