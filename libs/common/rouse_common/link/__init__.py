"""Links: many calls at once over one connection between two processes of the mesh (docs/decisions/0005)."""

from rouse_common.link.blocking import BlockingLinkServer, Ongoing
from rouse_common.link.client import Links
from rouse_common.link.frames import Buffer
from rouse_common.link.server import Incoming, LinkServer

__all__ = ["BlockingLinkServer", "Buffer", "Incoming", "LinkServer", "Links", "Ongoing"]
