"""The native executor of a device (rouse.device.v1, core.proto): messages; it is called over links only."""

from rouse_contracts.gen.rouse.device.v1.core_pb2 import *
from rouse_contracts.gen.rouse.device.v1.core_pb2 import DESCRIPTOR as DESCRIPTOR

DESCRIBE = "/rouse.device.v1.CoreService/Describe"
MAP_MODEL = "/rouse.device.v1.CoreService/MapModel"
UNMAP_MODEL = "/rouse.device.v1.CoreService/UnmapModel"
OPEN_SESSION = "/rouse.device.v1.CoreService/OpenSession"
CLOSE_SESSION = "/rouse.device.v1.CoreService/CloseSession"
SAVE_TAPES = "/rouse.device.v1.CoreService/SaveTapes"
LOAD_TAPES = "/rouse.device.v1.CoreService/LoadTapes"
