"""An instance confines itself, as it was told to, while it still has one thread and no code of the user."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from rouse_common.lifecycle import die_with_parent
from rouse_common.telemetry import JsonLinesExporter
from rouse_contracts.specs import RESERVED_PREFIXES
from rouse_runtime import isolation, output
from rouse_runtime.config import InstanceConfig
from rouse_runtime.failures import LoadError
from rouse_runtime.isolation.view import TMP
from rouse_runtime.limits import MIB, Limits

MAX_GRANT_BYTES = 64 * 1024
OTLP_PORT = 4317


def confine(config: InstanceConfig) -> tuple[JsonLinesExporter | None, str]:
    """Waits for what is granted and gives everything else up; where spans go, and what it got, in words.

    Raises IsolationError where `strict` cannot be met, OSError.
    """
    isolated = config.isolation != isolation.OFF
    spans = JsonLinesExporter(Path(config.trace_dir), output.SERVICE, held=isolated) if config.trace_dir else None
    if not isolated:
        return spans, isolation.OFF
    prepare(config.format)
    plan = isolation.Plan(
        strict=config.isolation == isolation.STRICT,
        granted=_granted(),
        folder=config.folder,
        socket=config.coordinator_path,
        user=config.user,
        ports=_ports(config),
        limits=Limits(config.processes, config.files, config.tmp_mib * MIB),
        tmp_bytes=config.tmp_mib * MIB,
    )
    own = os.path.join(config.folder, TMP)
    os.environ.update(TMPDIR=own, HOME=own)
    words = isolation.apply(plan, os.environ)
    # The kernel forgets it when a process changes its user.
    die_with_parent(signal.SIGKILL)
    return spans, words


def prepare(name: str) -> None:
    """Imports what every function of a format needs; while the artefact is being staged, too."""
    handler = {"HUGGING_FACE": "huggingface", "TORCH_EXPORT": "exported"}.get(name)
    if handler is not None:
        importlib.import_module(f"rouse_runtime.handlers.{handler}").prepare()


def memory_limit(config: InstanceConfig) -> int:
    """Bytes that a function may allocate where it names no limit itself; 0: no limit."""
    if config.isolation == isolation.OFF and not config.memory_mib:
        return 0
    return config.memory_mib * MIB or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def set_environment(environment: Mapping[str, str]) -> None:
    """Sets the function's own variables. Raises LoadError for names that are not a function's to set."""
    for name in environment:
        if name.startswith(RESERVED_PREFIXES):
            words = ", ".join(RESERVED_PREFIXES)
            raise LoadError(f"environment variable '{name}': functions cannot set names that begin with {words}")
    os.environ.update(environment)


def _granted() -> tuple[str, ...]:
    """Paths of the artefact and its weights, from standard input: the coordinator sends them once they are there."""
    data = b""
    while part := os.read(0, MAX_GRANT_BYTES):
        data += part
        if len(data) > MAX_GRANT_BYTES:
            raise isolation.IsolationError(f"the coordinator grants more than {MAX_GRANT_BYTES} bytes of paths")
    if not data:
        raise isolation.IsolationError("the coordinator went away before it granted anything")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return tuple(str(path) for path in json.loads(data))


def _ports(config: InstanceConfig) -> tuple[int, ...] | None:
    """With the port that spans are exported to."""
    ports = config.allowed_ports()
    if ports and config.otlp_endpoint:
        ports = (*ports, urlsplit(config.otlp_endpoint).port or OTLP_PORT)
    return ports
