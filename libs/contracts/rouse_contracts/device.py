"""Devices and executors of a node (rouse.device.v1)."""

from rouse_contracts.gen.rouse.device.v1.device_pb2 import *
from rouse_contracts.gen.rouse.device.v1.device_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.device.v1.device_pb2_grpc import *
