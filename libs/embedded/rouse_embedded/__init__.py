"""The whole mesh on one machine: stores from wheels, every service a supervised process."""

from rouse_embedded.mesh import EmbeddedMesh, MeshError, MeshInfo
from rouse_embedded.options import MeshOptions

__all__ = ["EmbeddedMesh", "MeshError", "MeshInfo", "MeshOptions"]
