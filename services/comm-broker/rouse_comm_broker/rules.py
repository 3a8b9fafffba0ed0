"""What a job, a message, a key and a barrier may be. Pure."""

from __future__ import annotations

import re

from rouse_common.errors import InvalidArgument
from rouse_contracts.broker import Job, Message

JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_WORKERS = 1024
DEFAULT_QUEUE_BYTES = 64 << 20
DEFAULT_OBJECT_BYTES = 256 << 20
MAX_LIMIT_BYTES = 1 << 40
DEFAULT_LIFETIME_S = 3600.0
MIN_LIFETIME_S, MAX_LIFETIME_S = 0.1, 7 * 86_400.0

MAX_TAG_BYTES = 128
MAX_KEY_BYTES = 256
MAX_BARRIER_BYTES = 64
DEFAULT_MESSAGES, MAX_MESSAGES = 64, 1024
DEFAULT_WAIT_S, MAX_WAIT_S = 1.0, 20.0
SHOWN_CHARS = 80


def check_id(job_id: str) -> str:
    """Raises InvalidArgument BAD_JOB."""
    if not JOB_ID.fullmatch(job_id):
        raise InvalidArgument("BAD_JOB", f"'{job_id[:SHOWN_CHARS]}' is no job id: want 1 to 64 of A-Z a-z 0-9 _ -")
    return job_id


def complete(job: Job) -> Job:
    """A job with its defaults. Raises InvalidArgument BAD_JOB naming what is out of range."""
    full = Job()
    full.CopyFrom(job)
    check_id(full.job_id)
    full.queue_limit_bytes = full.queue_limit_bytes or DEFAULT_QUEUE_BYTES
    full.object_limit_bytes = full.object_limit_bytes or DEFAULT_OBJECT_BYTES
    lifetime_s = full.lifetime.seconds + full.lifetime.nanos / 1e9
    if lifetime_s == 0:
        full.lifetime.FromSeconds(int(DEFAULT_LIFETIME_S))
        lifetime_s = DEFAULT_LIFETIME_S
    for what, value, low, high in (
        ("workers", full.workers, 1, MAX_WORKERS),
        ("queue_limit_bytes", full.queue_limit_bytes, 1, MAX_LIMIT_BYTES),
        ("object_limit_bytes", full.object_limit_bytes, 1, MAX_LIMIT_BYTES),
        ("lifetime in seconds", lifetime_s, MIN_LIFETIME_S, MAX_LIFETIME_S),
    ):
        if not low <= value <= high:
            raise InvalidArgument("BAD_JOB", f"job '{full.job_id}': {what} is {value}: want {low} to {high}")
    return full


def check_rank(job: Job, rank: int, what: str) -> None:
    """Raises InvalidArgument BAD_RANK."""
    if rank >= job.workers:
        text = f"{what} {rank} of job '{job.job_id}': its ranks are 0 to {job.workers - 1}"
        raise InvalidArgument("BAD_RANK", text, job=job.job_id)


def check_message(job: Job, message: Message, max_bytes: int) -> None:
    """Raises InvalidArgument BAD_RANK | BAD_TAG | MESSAGE_TOO_LARGE."""
    check_rank(job, message.source, "source")
    if len(message.tag.encode()) > MAX_TAG_BYTES:
        raise InvalidArgument("BAD_TAG", f"a tag of more than {MAX_TAG_BYTES} bytes", job=job.job_id)
    if message.ByteSize() > max_bytes:
        text = f"a message of {message.ByteSize()} bytes; the channel takes {max_bytes} at most: use PutObject"
        raise InvalidArgument("MESSAGE_TOO_LARGE", text, job=job.job_id)


def check_key(key: str) -> str:
    """A name of slash-separated parts. Raises InvalidArgument BAD_KEY."""
    size = len(key.encode())
    if not 1 <= size <= MAX_KEY_BYTES or not all(key.split("/")) or not key.isprintable():
        raise InvalidArgument(
            "BAD_KEY",
            f"'{key[:SHOWN_CHARS]!a}' is no key: want printable parts separated by single '/', {MAX_KEY_BYTES} bytes",
        )
    return key


def check_barrier(name: str) -> str:
    """Raises InvalidArgument BAD_BARRIER."""
    if not 1 <= len(name.encode()) <= MAX_BARRIER_BYTES:
        raise InvalidArgument("BAD_BARRIER", f"a barrier's name has 1 to {MAX_BARRIER_BYTES} bytes")
    return name


def in_ranges(ranks: set[int]) -> str:
    """Ranks in short: {0, 2, 3, 4} is "0,2-4"."""
    parts: list[str] = []
    ordered = sorted(ranks)
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[start], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = end
    return ",".join(parts)
