"""Builds a ResNet-50 with random weights and deploys it."""

from build import build

import rouse

with rouse.Client() as client:
    done = client.deploy(build(), "resnet50")
    print(f"{done.function} version {done.version.version} is {done.state}")
