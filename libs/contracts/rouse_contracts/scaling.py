"""Scaling (rouse.scaling.v1)."""

from rouse_contracts.gen.rouse.scaling.v1.scaling_pb2 import *
from rouse_contracts.gen.rouse.scaling.v1.scaling_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.scaling.v1.scaling_pb2_grpc import *
