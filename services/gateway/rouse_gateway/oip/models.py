"""What a model is, in the protocol's words: readiness, metadata, configuration."""

from __future__ import annotations

from rouse_common.errors import RouseError
from rouse_contracts import functions, inference
from rouse_gateway.state import Table, Version

SERVER_NAME = "rouse"
# Extensions of the protocol that have a name and work here.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "sequence",
    "sequence(string_id)",
    "statistics",
    "system_shared_memory",
    "trace",
    "logging",
)
BACKEND = "rouse"
PLATFORMS = {
    functions.ARTEFACT_FORMAT_HUGGING_FACE: "rouse_hugging_face",
    functions.ARTEFACT_FORMAT_TORCH_EXPORT: "rouse_torch_export",
}
# The one datatype whose name differs between the protocol and the configuration.
CONFIG_TYPES = {"BYTES": "TYPE_STRING"}


def server_metadata(mesh_version: str) -> inference.ServerMetadataResponse:
    """Name, version and extensions of the server."""
    return inference.ServerMetadataResponse(name=SERVER_NAME, version=mesh_version, extensions=EXTENSIONS)


def is_ready(table: Table, name: str, number: str) -> bool:
    """Whether a request would be served, also where it has to wake the function first."""
    route = table.functions.get(name)
    if route is None or route.state in (functions.FUNCTION_STATE_FAILED, functions.FUNCTION_STATE_DELETING):
        return False
    try:
        table.version(name, number)
    except RouseError:
        return False
    return True


def platform(version: Version) -> str:
    """What runs the version, as `rouse_python`."""
    return PLATFORMS.get(version.contract.format, "rouse_python")


def metadata(table: Table, name: str, number: str) -> inference.ModelMetadataResponse:
    """Versions and tensors of a model. Raises NotFound, InvalidArgument."""
    version = table.version(name, number)
    numbers = [known for known in table.route(name).versions if known]
    tensor = inference.ModelMetadataResponse.TensorMetadata
    signature = version.contract.spec.signature
    return inference.ModelMetadataResponse(
        name=version.function,
        versions=[version.number] if number else sorted(numbers, key=int),
        platform=platform(version),
        inputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in signature.inputs],
        outputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in signature.outputs],
    )


def config(table: Table, name: str, number: str) -> inference.ModelConfig:
    """The configuration of a model as Triton's clients read it: sizes without the batch dimension where the
    model is batchable. Raises NotFound, InvalidArgument."""
    version = table.version(name, number)
    spec = version.contract.spec
    rows = spec.batching.max_batch_size
    found = inference.ModelConfig(
        name=version.function,
        platform=platform(version),
        backend=BACKEND,
        max_batch_size=min(rows, (1 << 31) - 1),
        version_policy=inference.ModelVersionPolicy(all=inference.ModelVersionPolicy.All()),
        input=[
            inference.ModelInput(name=t.name, data_type=_config_type(t.datatype), dims=_dims(t, rows))
            for t in spec.signature.inputs
        ],
        output=[
            inference.ModelOutput(name=t.name, data_type=_config_type(t.datatype), dims=_dims(t, rows))
            for t in spec.signature.outputs
        ],
        instance_group=[
            inference.ModelInstanceGroup(
                name=f"{version.function}_0",
                kind=inference.ModelInstanceGroup.KIND_AUTO,
                count=spec.scaling.max_instances or 1,
            )
        ],
        model_transaction_policy=inference.ModelTransactionPolicy(decoupled=spec.decoupled),
    )
    if rows > 1:
        found.dynamic_batching.max_queue_delay_microseconds = spec.batching.max_delay_us
    return found


def _config_type(datatype: str) -> inference.DataType:
    return getattr(inference, CONFIG_TYPES.get(datatype, f"TYPE_{datatype}"), inference.TYPE_INVALID)


def _dims(tensor: functions.TensorSpec, rows: int) -> list[int]:
    return list(tensor.shape[1:] if rows else tensor.shape)
