"""Access to the mesh (rouse.access.v1)."""

from rouse_contracts.gen.rouse.access.v1.access_pb2 import *
from rouse_contracts.gen.rouse.access.v1.access_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.access.v1.access_pb2_grpc import *
