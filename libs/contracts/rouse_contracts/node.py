"""The entry of a node (rouse.node.v1)."""

from rouse_contracts.gen.rouse.node.v1.node_pb2 import *
from rouse_contracts.gen.rouse.node.v1.node_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.node.v1.node_pb2_grpc import *
