"""What a call can fail with: one class a status code, each with a reason, a message and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import grpc

from rouse_contracts.status import decode_details


class RouseError(Exception):
    """A call that failed.

    Attributes:
        code: name of the gRPC status code, as "NOT_FOUND".
        reason: UPPER_SNAKE_CASE and stable, for programs, as "FUNCTION_NOT_FOUND".
        message: what happened and where, for people.
        metadata: names concerned: function, node, device, tensor, trace_id, ...
        retry_after_s: seconds after which a retry may succeed; None where a retry does not help.
    """

    code: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.code
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    @property
    def hint(self) -> str:
        """What to do next, in one sentence."""
        template = _HINTS.get(self.reason) or _HINTS.get(self.code) or _HINTS["UNKNOWN"]
        if self.retry_after_s is not None:
            template += f" (a retry may succeed in {self.retry_after_s:g} s)"
        return template.format_map(_Names(self.metadata))

    def __str__(self) -> str:
        return self.message


class InvalidArgument(RouseError):
    """Something the caller gave is wrong; the same call fails again."""

    code = "INVALID_ARGUMENT"


class PackageError(InvalidArgument):
    """A folder that cannot be deployed; found before anything was sent."""


class NotFound(RouseError):
    code = "NOT_FOUND"


class AlreadyExists(RouseError):
    code = "ALREADY_EXISTS"


class FailedPrecondition(RouseError):
    """The mesh or the function is not in a state for this call; LOAD_FAILED carries the user's error."""

    code = "FAILED_PRECONDITION"


class ResourceExhausted(RouseError):
    """A bounded queue, a quota or a memory is full."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(RouseError):
    """Something in the mesh went away while it was needed."""

    code = "UNAVAILABLE"


class Unreachable(Unavailable):
    """No answer from the gateway's address at all, or the connection broke."""


class DeadlineExceeded(RouseError):
    code = "DEADLINE_EXCEEDED"


class Cancelled(RouseError):
    code = "CANCELLED"


class PermissionDenied(RouseError):
    code = "PERMISSION_DENIED"


class Unauthenticated(RouseError):
    code = "UNAUTHENTICATED"


class Unimplemented(RouseError):
    """The mesh does not do this yet."""

    code = "UNIMPLEMENTED"


class DataLoss(RouseError):
    code = "DATA_LOSS"


class Internal(RouseError):
    """A failure inside the mesh or inside the function (FUNCTION_RAISED)."""

    code = "INTERNAL"


_CLASSES: dict[str, type[RouseError]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        PermissionDenied,
        Unauthenticated,
        Unimplemented,
        DataLoss,
        Internal,
    )
}

# By reason first, by status code otherwise. {names} are filled from the error's metadata.
_HINTS = {
    "UNREACHABLE": "start a mesh with `rouse up`, or name a running one with --address or ROUSE_ADDRESS",
    "MESH_NOT_INSTALLED": "run `make setup` in Rouse's repository, and `rouse` from its .venv/bin",
    "BAD_CA": "give the PEM file of the mesh's authority by ca=, --ca or ROUSE_CA",
    "NO_KEY": "give an API key by api_key= or ROUSE_API_KEY; an administrator makes one with `rouse keys create`",
    "BAD_KEY": "check ROUSE_API_KEY; an administrator makes a key with `rouse keys create`",
    "KEY_EXPIRED": "have an administrator make a new key: `rouse keys create` or `rouse keys rotate`",
    "ROLE_MISSING": "use a key with that role; an administrator makes one with `rouse keys create --role`",
    "NOT_OWNER": "deploy a function of your own, or ask who shares this one",
    "NAME_TAKEN": "choose another name: names are unique in the mesh, and this one is another tenant's",
    "QUOTA_EXCEEDED": "send fewer requests, or have an administrator raise the limit: `rouse tenants set`",
    "OUTCOME_UNKNOWN": "find out whether it took effect; a request with a new id runs again",
    "IDEMPOTENCY_KEY_REUSED": "use a key, or a request id, of its own for every request",
    "BAD_PARAMETER": "correct the parameter; docs/sdk.md says what infer() takes",
    "SEQUENCE_NOT_STARTED": "say sequence_start with the first request of a sequence",
    "SEQUENCE_LOST": "start the sequence again from its first request: its instance is gone",
    "DECOUPLED_FUNCTION": "call it by stream()",
    "NO_SECRET_KEY": "set secrets_key_file of cluster-manager; docs/security.md says how",
    "SECRET_NOT_FOUND": "set it with `rouse secrets set`, or correct the name",
    "BAD_API_KEY": "give the key as it was printed, by api_key= or ROUSE_API_KEY",
    "BAD_ADDRESS": "give the gateway's address as host:port, as 127.0.0.1:8001",
    "PICKLE_REFUSED": "save the weights as safetensors, which hold numbers and no code: "
    "model.save_pretrained(folder), or safetensors.torch.save_file(model.state_dict(), file)",
    "BAD_ARTEFACT": "correct the folder and deploy again; docs/functions.md says what a folder holds",
    "BAD_PATH": "rename or remove that file and deploy again",
    "BAD_NAME": "choose a name of letters, digits, '.', '_' and '-', at most 128, beginning with a letter or digit",
    "BAD_SPEC": "correct rouse.toml or the options given, and deploy again",
    "BLOB_MISSING": "deploy again: a file was removed from the mesh while it was being deployed",
    "HASH_MISMATCH": "deploy again: a file changed while it was being read, or a transfer was damaged",
    "UPLOAD_TRUNCATED": "deploy again: a file changed while it was being read",
    "UPLOAD_TOO_LONG": "deploy again: a file changed while it was being read",
    "MODEL_TOO_LARGE": "use a larger device (`rouse status` shows them), or a smaller model or datatype",
    "FUNCTION_NOT_FOUND": "see `rouse functions` for what is deployed, or deploy it with `rouse deploy`",
    "TRACE_NOT_FOUND": "check the id; traces are kept for a limited time, `rouse infer` prints the id of a new one",
    "TRACES_NOT_LOCAL": "look the trace up where the mesh exports its spans to",
    "LOGS_NOT_LOCAL": "look where the mesh sends its logs to",
    "LOAD_FAILED": "see `rouse logs {function}` for the whole error, correct the function and deploy again",
    "NOTHING_TO_ROLL_BACK": "set the shares by hand with `rouse traffic {function}`",
    "BAD_TRAFFIC": "give shares of 1 to 100 that add up to 100, as `rouse traffic {function} 1=90 2=10`",
    "VERSION_NOT_FOUND": "see `rouse describe {function}` for the versions that there are",
    "PIN_TOO_LARGE": "deploy it without pinned = true, or on larger devices (`rouse status` shows them)",
    "FUNCTION_RAISED": "see `rouse logs {function}` for the traceback",
    "QUEUE_FULL": "send fewer requests at once, or raise queue_capacity or max_instances",
    "DEVICE_FULL_EARLY_BINDING": "delete other functions, or run gpu-server with --binding late",
    "DEVICE_WAIT_FULL": "send fewer requests at once, or add a device",
    "EXECUTOR_LOST": "retry if running twice is harmless: the request may have been executed",
    "NOT_SERVED": "see the message for what to use instead",
    "NO_INSTANCE": "retry in a moment, or see `rouse describe {function}` for why there is no instance",
    "INVALID_ARGUMENT": "correct what was given; `rouse describe {function}` shows what the function takes",
    "NOT_FOUND": "see `rouse functions` and `rouse status` for what there is",
    "ALREADY_EXISTS": "choose another name, or delete what is there",
    "FAILED_PRECONDITION": "see `rouse describe {function}` and `rouse logs {function}`",
    "RESOURCE_EXHAUSTED": "retry later with fewer requests at once",
    "UNAVAILABLE": "see `rouse status` for what is not serving, and retry",
    "DEADLINE_EXCEEDED": "allow more time with a larger timeout; `rouse status` and `rouse describe {function}` "
    "show what it waits for",
    "CANCELLED": "call again",
    "PERMISSION_DENIED": "use credentials that allow this",
    "UNAUTHENTICATED": "give credentials",
    "UNIMPLEMENTED": "use a mesh of a version that has this; `rouse version` shows both versions",
    "DATA_LOSS": "deploy again: stored bytes are damaged",
    "INTERNAL": "see `rouse logs` for the failure",
    "UNKNOWN": "see `rouse logs` for the failure",
}


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key.upper()


@contextmanager
def about(function: str) -> Iterator[None]:
    """Failures in the block concern this function, also those that did not reach the mesh."""
    try:
        yield
    except RouseError as error:
        error.metadata.setdefault("function", function)
        raise


def from_rpc_error(error: grpc.RpcError, address: str) -> RouseError:
    """The typed error that a failed call to the gateway at `address` stands for."""
    code: str = error.code().name
    details = decode_details(error)
    text = error.details() or code
    if code == "UNAVAILABLE" and details.reason == code:
        # The gateway always gives a reason: without one, it was the connection that failed.
        return Unreachable(f"cannot reach the mesh at {address}: {text}", reason="UNREACHABLE")
    if code == "DEADLINE_EXCEEDED" and details.reason == code:
        text = f"the mesh at {address} did not answer in time"
    cls = _CLASSES.get(code, RouseError)
    return cls(text, reason=details.reason, metadata=details.metadata, retry_after_s=details.retry_after_s)
