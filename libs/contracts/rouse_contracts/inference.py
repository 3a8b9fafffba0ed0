"""The public inference protocol, in a descriptor pool of its own (see generate.py)."""

from rouse_contracts.gen.inference.model_config_pb2 import *  # isort: skip
from rouse_contracts.gen.inference.grpc_service_pb2 import *
from rouse_contracts.gen.inference.grpc_service_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.inference.grpc_service_pb2_grpc import *
