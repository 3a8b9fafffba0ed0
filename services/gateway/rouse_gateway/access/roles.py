"""The role that each method needs. What is not listed here needs ADMIN.

`grpc.health.v1` and reflection need no key: probes have none, and they say nothing of anybody's functions.
"""

from __future__ import annotations

from rouse_gateway.access.caller import ADMIN, DEPLOY, INVOKE, OPEN

INFERENCE = "/inference.GRPCInferenceService/"
FUNCTIONS = "/rouse.functions.v1.FunctionService/"
ACCESS = "/rouse.access.v1.AccessService/"

_BY_ROLE: dict[str, dict[int, tuple[str, ...]]] = {
    INFERENCE: {
        # A mesh's liveness and what protocol it speaks: clients ask before they have a key at hand.
        OPEN: ("ServerLive", "ServerReady", "ServerMetadata"),
        INVOKE: (
            "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer", "ModelStreamInfer",
            "RepositoryIndex", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
            "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
        ),
        DEPLOY: ("RepositoryModelLoad", "RepositoryModelUnload"),
        # Settings of the whole mesh.
        ADMIN: ("TraceSetting", "LogSettings"),
    },
    FUNCTIONS: {
        INVOKE: ("Infer", "InferStream", "GetFunction", "ListFunctions", "GetUsage", "GetStatus"),
        DEPLOY: (
            "FindMissingBlobs", "UploadBlob", "DeployFunction", "DeleteFunction", "WakeFunction", "SleepFunction",
            "SetTraffic", "RollBack", "ReadLogs", "GetTrace",
        ),
    },
    ACCESS: {
        DEPLOY: ("PutSecret", "ListSecrets", "DeleteSecret"),
        ADMIN: (
            "PutTenant", "ListTenants", "DeleteTenant", "CreateKey", "ListKeys", "RotateKey", "RevokeKey",
            "GetAccessTable",
        ),
    },
}  # fmt: skip

ROLES: dict[str, int] = {
    service + method: role
    for service, by_role in _BY_ROLE.items()
    for role, methods in by_role.items()
    for method in methods
}


# Of the HTTP port, by how a path begins; the first that fits.
_PATHS = (
    ("/v2/repository/models/", DEPLOY),
    ("/v2/repository/index", INVOKE),
    ("/v2/models/{model}/trace/", ADMIN),
    ("/v2/models/", INVOKE),
    ("/v2/systemsharedmemory", INVOKE),
    ("/v2/cudasharedmemory", INVOKE),
    ("/v1/", INVOKE),
)


def role_of_path(template: str) -> int:
    """The role that a path of the HTTP port needs."""
    return next((role for begin, role in _PATHS if template.startswith(begin)), ADMIN)
