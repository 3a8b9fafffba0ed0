"""Artefacts by content hash (rouse.repository.v1)."""

from rouse_contracts.gen.rouse.repository.v1.repository_pb2 import *
from rouse_contracts.gen.rouse.repository.v1.repository_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.repository.v1.repository_pb2_grpc import *
