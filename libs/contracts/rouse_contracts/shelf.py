"""What a gpu-server keeps of functions that tapes answer (rouse.device.v1, shelf.proto)."""

from rouse_contracts.gen.rouse.device.v1.shelf_pb2 import *
from rouse_contracts.gen.rouse.device.v1.shelf_pb2 import DESCRIPTOR as DESCRIPTOR
