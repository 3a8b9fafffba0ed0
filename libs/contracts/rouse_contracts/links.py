"""The methods that travel over links (docs/decisions/0005), and where an instance's link is."""

from __future__ import annotations

INFER = "/rouse.node.v1.NodeService/Infer"
ACQUIRE = "/rouse.device.v1.DeviceService/Acquire"
RELEASE = "/rouse.device.v1.DeviceService/Release"
EXECUTE = "/rouse.device.v1.ExecutorService/Execute"

# What the path of an instance's link has more than that of its gRPC server.
LINK_SUFFIX = ".link"


def executor_link(address: str) -> str:
    """unix:PATH of an instance's link, from unix:PATH of its gRPC server."""
    return address + LINK_SUFFIX
