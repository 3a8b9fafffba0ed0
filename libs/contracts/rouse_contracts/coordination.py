"""Instances of a node (rouse.coordination.v1)."""

from rouse_contracts.gen.rouse.coordination.v1.coordination_pb2 import *
from rouse_contracts.gen.rouse.coordination.v1.coordination_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.coordination.v1.coordination_pb2_grpc import *
