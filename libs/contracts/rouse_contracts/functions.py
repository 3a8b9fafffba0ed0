"""Deploying, calling and watching functions (rouse.functions.v1)."""

from rouse_contracts.gen.rouse.functions.v1.functions_pb2 import *
from rouse_contracts.gen.rouse.functions.v1.functions_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.functions.v1.functions_pb2_grpc import *
