"""Channels of distributed jobs (rouse.broker.v1)."""

from rouse_contracts.gen.rouse.broker.v1.broker_pb2 import *
from rouse_contracts.gen.rouse.broker.v1.broker_pb2 import DESCRIPTOR as DESCRIPTOR
from rouse_contracts.gen.rouse.broker.v1.broker_pb2_grpc import *
