"""Rouse: client and command line of the serverless inference mesh.

`Client` blocks, `AsyncClient` is for asyncio; both speak gRPC to the mesh's gateway.
"""

from importlib.metadata import version as _version

from rouse.aio import AsyncClient
from rouse.client import Client
from rouse.errors import (
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PackageError,
    PermissionDenied,
    ResourceExhausted,
    RouseError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from rouse.package import Package, read_package
from rouse.types import (
    Deployment,
    Description,
    Device,
    Event,
    Function,
    Instance,
    Node,
    Objective,
    Progress,
    Residency,
    Resources,
    Result,
    Scaling,
    Service,
    Span,
    Status,
    TensorSpec,
    Timings,
    Usage,
    Version,
)

__version__ = _version("rouse")

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "Cancelled",
    "Client",
    "DataLoss",
    "DeadlineExceeded",
    "Deployment",
    "Description",
    "Device",
    "Event",
    "FailedPrecondition",
    "Function",
    "Instance",
    "Internal",
    "InvalidArgument",
    "Node",
    "NotFound",
    "Objective",
    "Package",
    "PackageError",
    "PermissionDenied",
    "Progress",
    "Residency",
    "ResourceExhausted",
    "Resources",
    "Result",
    "RouseError",
    "Scaling",
    "Service",
    "Span",
    "Status",
    "TensorSpec",
    "Timings",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unreachable",
    "Usage",
    "Version",
    "__version__",
    "read_package",
]
