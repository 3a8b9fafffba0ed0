"""The gRPC server and client that every service uses."""

from rouse_common.rpc.client import Channels, call
from rouse_common.rpc.server import RpcServer, remaining_s

__all__ = ["Channels", "RpcServer", "call", "remaining_s"]
