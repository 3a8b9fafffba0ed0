"""The subjects of the mesh, in one place."""

from __future__ import annotations

import re

# RoutingTable bytes; an empty message where the table is larger than a message may be: fetch it by RPC.
ROUTING = "rouse.routing"
# AccessTable bytes, in the same manner.
ACCESS = "rouse.access"
EVENTS = "rouse.events"
KIND = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def event(kind: str) -> str:
    """Subject of the events of a kind, as "function.deployed". Raises ValueError for other shapes."""
    if not KIND.fullmatch(kind):
        raise ValueError(f"event kind '{kind}': want lower-case words joined by dots, as function.deployed")
    return f"{EVENTS}.{kind}"


def all_events() -> str:
    """Subject that matches the events of every kind."""
    return f"{EVENTS}.>"


def queue(job_id: str, rank: int) -> str:
    """Subject of one worker's queue in a distributed job."""
    return f"rouse.job.{job_id}.queue.{rank}"


def queues(job_id: str) -> str:
    """Subject that matches the queues of all workers of a job."""
    return f"rouse.job.{job_id}.queue.*"


def arrival(job_id: str, barrier: str, rank: int) -> str:
    """Subject that says that a worker has arrived at a barrier of its job."""
    return f"{_barrier(job_id, barrier)}.{rank}"


def arrivals(job_id: str, barrier: str) -> str:
    """Subject that matches the arrivals of all workers at a barrier."""
    return f"{_barrier(job_id, barrier)}.*"


def all_arrivals(job_id: str = "*") -> str:
    """Subject that matches the arrivals at all barriers of a job, or of every job."""
    return f"rouse.job.{job_id}.barrier.>"


def _barrier(job_id: str, barrier: str) -> str:
    # A barrier's name may be any text; hex digits are fit for a subject.
    return f"rouse.job.{job_id}.barrier.{barrier.encode().hex()}"
