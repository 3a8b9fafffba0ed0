"""The errors that node-router itself answers with, in words."""

from __future__ import annotations

from rouse_common.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from rouse_contracts import node
from rouse_policy.queueing import Admission, Verdict

NO_INSTANCE = "NO_INSTANCE"


def expired(request: node.InferRequest) -> DeadlineExceeded:
    """The deadline passed in the queue."""
    return DeadlineExceeded(
        "DEADLINE_EXCEEDED",
        f"the deadline passed while the request waited in the queue of function '{request.function}' for a device; "
        "it was not executed",
        function=request.function,
        version=request.version_id,
    )


def unanswered(request: node.InferRequest, device: str) -> DeadlineExceeded:
    """The deadline passed during the execution."""
    return DeadlineExceeded(
        "DEADLINE_EXCEEDED",
        f"function '{request.function}' did not answer within the deadline on device '{device}'",
        function=request.function,
        version=request.version_id,
        device=device,
    )


def no_instance(node_id: str, request: node.InferRequest, why: str) -> Unavailable:
    """Nothing here executes the request."""
    return Unavailable(
        NO_INSTANCE,
        f"node '{node_id}' has no instance of function '{request.function}' that takes requests, and "
        f"nothing was executed: {why}; send it to another node or wake the function",
        function=request.function,
        version=request.version_id,
        node=node_id,
    )


def refused(request: node.InferRequest, admission: Admission) -> ResourceExhausted:
    """The request was not let in."""
    if admission.verdict is Verdict.TOO_LATE:
        reason, what = "CANNOT_MEET_DEADLINE", "could not be answered before its deadline"
    else:
        reason, what = "QUEUE_FULL", "finds the queue full"
    return ResourceExhausted(
        reason,
        f"a request for function '{request.function}' {what} on this node: {admission.reason}; try again later",
        retry_after_s=admission.retry_after_s,
        function=request.function,
        version=request.version_id,
    )


def displaced(request: node.InferRequest, why: str, admission: Admission) -> ResourceExhausted:
    """The request was let in, and gave way to another tenant's."""
    return ResourceExhausted(
        "DISPLACED",
        f"the queue of function '{request.function}' on this node is full, and the request gave way to another "
        f"tenant's: {why}; it was not executed, try again later",
        retry_after_s=admission.retry_after_s,
        function=request.function,
        version=request.version_id,
    )
