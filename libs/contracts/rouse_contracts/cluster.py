"""The control plane (rouse.cluster.v1)."""

from rouse_contracts.gen.rouse.cluster.v1.cluster_pb2 import *
from rouse_contracts.gen.rouse.cluster.v1.cluster_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.cluster.v1.cluster_pb2_grpc import *
