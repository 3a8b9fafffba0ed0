"""Builds a BERT-base with random weights and deploys it."""

from build import build

import rouse

with rouse.Client() as client:
    done = client.deploy(build(), "bert")
    print(f"{done.function} version {done.version.version} is {done.state}")
