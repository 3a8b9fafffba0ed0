"""Starts gpu-server."""

import sys

from rouse_common.lifecycle import main as run
from rouse_gpu_server.app import GpuServer
from rouse_gpu_server.config import GpuServerConfig


def main() -> int:
    return run("gpu-server", GpuServerConfig, GpuServer)


if __name__ == "__main__":
    sys.exit(main())
