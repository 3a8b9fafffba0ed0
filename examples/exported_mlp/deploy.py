"""Exports the MLP and deploys it."""

from build import build

import rouse

with rouse.Client() as client:
    done = client.deploy(build())
    print(f"{done.function} version {done.version.version} is {done.state}")
