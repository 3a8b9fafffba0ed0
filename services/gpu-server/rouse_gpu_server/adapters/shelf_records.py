"""What the node's disk says of an artefact's states and versions, so that a gpu-server that starts knows them.

A record is a sha256 and the ShelfRecord that it is of; it is replaced whole. Nothing that is read is believed before
it was checked: neither the record, nor that a state's file is what the record says. Functions block: call them from
threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from rouse_common.errors import DataLoss
from rouse_contracts import states as rules
from rouse_contracts.functions import FunctionVersion
from rouse_contracts.repository import State
from rouse_contracts.shelf import ShelfRecord
from rouse_gpu_server.adapters.disk import check_digest

FORMAT = 1
DIGEST_BYTES = 32
MAX_RECORD_BYTES = 16 << 20
MAX_VERSIONS = 1024


def write(path: Path, artefact: str, states: Sequence[State], versions: Sequence[FunctionVersion]) -> None:
    """Writes an artefact's record, unless it would be larger than is read. Raises OSError, DataLoss BAD_RECORD."""
    record = ShelfRecord(format=FORMAT, artefact_digest=artefact, states=states, versions=versions[:MAX_VERSIONS])
    body = record.SerializeToString()
    if len(body) > MAX_RECORD_BYTES:
        raise _bad(artefact, f"would have {len(body)} B, {MAX_RECORD_BYTES} at most")
    part = path.with_suffix(".part")
    part.write_bytes(hashlib.sha256(body).digest() + body)
    # Specs may hold what instances of other functions are not to read.
    part.chmod(0o600)
    part.replace(path)


def read(path: Path, artefact: str) -> ShelfRecord | None:
    """An artefact's record; None where there is none. Raises DataLoss BAD_RECORD | BAD_STATE | BAD_DIGEST, OSError."""
    try:
        size = path.stat().st_size
        if size > DIGEST_BYTES + MAX_RECORD_BYTES:
            raise _bad(artefact, f"has {size} B, {DIGEST_BYTES + MAX_RECORD_BYTES} at most")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise _bad(artefact, "is not what was written")
    try:
        record = ShelfRecord.FromString(body)
    except DecodeError as error:
        raise _bad(artefact, f"cannot be read: {error}") from None
    if record.format != FORMAT:
        raise _bad(artefact, f"has format {record.format}, want {FORMAT}")
    if record.artefact_digest != artefact:
        raise _bad(artefact, f"is of artefact '{record.artefact_digest[:80]}'")
    if len(record.versions) > MAX_VERSIONS:
        raise _bad(artefact, f"names {len(record.versions)} versions, {MAX_VERSIONS} at most")
    for version in record.versions:
        if not version.version_id or version.artefact_digest != artefact:
            raise _bad(artefact, f"names version '{version.version_id[:80]}', which is not of this artefact")
    check_states(artefact, record.states)
    return record


def check_states(artefact: str, states: Sequence[State]) -> None:
    """Checks what somebody says of an artefact's states before it is used on disk. Raises DataLoss BAD_STATE |
    BAD_DIGEST."""
    if len(states) > rules.MAX_STATES or sum(state.size_bytes for state in states) > rules.MAX_TOTAL_BYTES:
        raise DataLoss("BAD_STATE", f"{len(states)} states of artefact {artefact} are too many, or too large")
    for state in states:
        check_digest(state.digest, f"a state of artefact {artefact}")
        try:
            rules.check(state)
        except rules.BadState as error:
            raise DataLoss("BAD_STATE", f"a state of artefact {artefact} cannot be meant: {error}") from None


def check_file(state: State, path: Path) -> None:
    """Raises DataLoss HASH_MISMATCH where a state's file is not there, or not the one."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size != state.size_bytes:
                raise _other(state, f"has {size} B, not {state.size_bytes}")
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _other(state, f"cannot be read: {error}") from None
    if found != state.digest:
        raise _other(state, f"hashes to {found}")


def _bad(artefact: str, what: str) -> DataLoss:
    text = f"the record of the tapes of artefact {artefact} {what}; they come back when an instance is started"
    return DataLoss("BAD_RECORD", text, artefact=artefact)


def _other(state: State, what: str) -> DataLoss:
    return DataLoss(
        "HASH_MISMATCH",
        f"state '{state.name}' of artefact {state.artefact_digest} {what}; it comes back when an instance is started",
        artefact=state.artefact_digest,
    )
