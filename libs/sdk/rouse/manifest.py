"""rouse.toml: what a folder says of its function."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rouse.convert import spec_message
from rouse.errors import PackageError
from rouse.toml_lines import Lines
from rouse.types import Batching, Limits, Objective, Resources, Scaling, TensorSpec
from rouse_contracts import specs
from rouse_contracts.tensors import DATATYPES

FILE = "rouse.toml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_TENSORS = 256
MAX_DIMENSIONS = 32
MAX_OPTIONS = 256
UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True)
class Manifest:
    """The content of rouse.toml; empty or None where it says nothing."""

    name: str = ""
    handler: str = ""
    description: str = ""
    queue_capacity: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    scaling: Scaling | None = None
    resources: Resources | None = None
    objective: Objective | None = None
    options: Mapping[str, str] | None = None
    batching: Batching | None = None
    limits: Limits | None = None
    decoupled: bool = False
    pinned: bool = False
    shared: bool = False
    environment: Mapping[str, str] | None = None
    secrets: Mapping[str, str] | None = None
    execution: str = ""
    isolation: str = ""
    tapes: bool | None = None


def parse(text: str) -> Manifest:
    """Reads the text of a rouse.toml. Raises PackageError BAD_SPEC | BAD_NAME that names the key and its line."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PackageError(f"{FILE}: it is not TOML: {error}", reason="BAD_SPEC") from None
    try:
        manifest = _manifest(content)
        specs.check(
            spec_message(
                manifest.name, inputs=manifest.inputs, outputs=manifest.outputs, batching=manifest.batching,
                decoupled=manifest.decoupled, environment=manifest.environment, secrets=manifest.secrets,
                execution=manifest.execution, isolation=manifest.isolation, tapes=manifest.tapes,
            )
        )  # fmt: skip
    except specs.SpecError as error:
        line = Lines(text).of(error.key)
        where = FILE if line is None else f"{FILE}, line {line}"
        reason = "BAD_NAME" if isinstance(error, _NameError) else "BAD_SPEC"
        raise PackageError(f"{where}: {error}", reason=reason) from None
    return manifest


def _manifest(content: dict[str, Any]) -> Manifest:
    table = _Table("", content)
    manifest = Manifest(
        name=table.get("name", _name, ""),
        handler=table.get("handler", _handler, ""),
        description=table.get("description", _text, ""),
        queue_capacity=table.get("queue_capacity", _whole(1, 1_000_000), 0),
        inputs=table.get("inputs", _tensors, ()),
        outputs=table.get("outputs", _tensors, ()),
        scaling=table.get("scaling", _scaling, None),
        resources=table.get("resources", _resources, None),
        objective=table.get("objective", _objective, None),
        options=table.get("options", _options, None),
        batching=table.get("batching", _batching, None),
        limits=table.get("limits", _limits, None),
        decoupled=table.get("decoupled", _flag, False),
        pinned=table.get("pinned", _flag, False),
        shared=table.get("shared", _flag, False),
        environment=table.get("environment", _options, None),
        secrets=table.get("secrets", _references, None),
        execution=table.get("execution", _word(specs.EXECUTIONS.values()), ""),
        isolation=table.get("isolation", _word(specs.ISOLATIONS.values()), ""),
        tapes=table.get("tapes", _flag, None),
    )
    table.finish()
    return manifest


def check_name(name: str) -> str:
    """Raises PackageError BAD_NAME where the mesh would refuse the name."""
    if not NAME.fullmatch(name):
        raise PackageError(f"'{name}' is not a function name", reason="BAD_NAME")
    return name


class _NameError(specs.SpecError):
    """A name that no function may have."""


class _Table:
    """Reads the keys of one table and complains of those that nobody asked for."""

    def __init__(self, path: str, content: Any) -> None:
        if not isinstance(content, dict):
            raise specs.SpecError(path, f"must be a table, as [{path}]")
        self.path, self.content = path, content
        self.known: list[str] = []

    def get(self, key: str, read: Callable[[str, Any], Any], default: Any) -> Any:
        self.known.append(key)
        path = f"{self.path}.{key}" if self.path else key
        return read(path, self.content[key]) if key in self.content else default

    def need(self, key: str, read: Callable[[str, Any], Any]) -> Any:
        if key not in self.content:
            raise specs.SpecError(self.path, f"lacks '{key}'")
        return self.get(key, read, None)

    def finish(self) -> None:
        for key in self.content:
            if key in self.known:
                continue
            close = difflib.get_close_matches(key, self.known, 1)
            guess = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(self.known)}"
            raise specs.SpecError(f"{self.path}{'.' if self.path else ''}{key}", f"is not known; {guess}")


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise specs.SpecError(path, "must be a text")
    return value


def _name(path: str, value: Any) -> str:
    if not NAME.fullmatch(_text(path, value)):
        raise _NameError(
            path, f"is '{value[:140]}', which is not a function name: want 1 to 128 letters, digits, '.', '_' or '-'"
        )
    return str(value)


def _handler(path: str, value: Any) -> str:
    if not HANDLER.fullmatch(_text(path, value)):
        raise specs.SpecError(path, f"is '{value}'; want \"module:Class\"")
    return str(value)


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(path: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise specs.SpecError(path, f"is {value!r}; want a whole number from {low} to {high}")
        return value

    return read


def _number(low: float, high: float) -> Callable[[str, Any], float]:
    def read(path: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise specs.SpecError(path, f"is {value!r}; want a number from {low:g} to {high:g}")
        return float(value)

    return read


def _size(path: str, value: Any) -> int:
    """Bytes, or a text with a unit."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]i?B)?", text, re.IGNORECASE) if isinstance(text, str) else None
    if match is None:
        raise specs.SpecError(path, f'is {value!r}; want bytes, as 1000000 or "64MiB"')
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def _tensors(path: str, value: Any) -> tuple[TensorSpec, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TENSORS:
        raise specs.SpecError(path, f"must be 1 to {MAX_TENSORS} tables, each as [[{path}]]")
    tensors = tuple(_tensor(f"{path}[{index}]", entry) for index, entry in enumerate(value))
    names = [tensor.name for tensor in tensors]
    for name in names:
        if names.count(name) > 1:
            raise specs.SpecError(path, f"names '{name}' twice")
    return tensors


def _tensor(path: str, value: Any) -> TensorSpec:
    table = _Table(path, value)
    name = table.need("name", _text)
    datatype = table.need("datatype", _text)
    shape = table.need("shape", _shape)
    table.finish()
    if not name:
        raise specs.SpecError(f"{path}.name", "is empty")
    if datatype not in DATATYPES:
        raise specs.SpecError(f"{path}.datatype", f"is '{datatype}'; want one of {', '.join(sorted(DATATYPES))}")
    return TensorSpec(name, datatype, shape)


def _shape(path: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_DIMENSIONS:
        raise specs.SpecError(path, f"must be a list of at most {MAX_DIMENSIONS} sizes, -1 for any")
    size = _whole(-1, 1 << 40)
    return tuple(size(path, entry) for entry in value)


def _scaling(path: str, value: Any) -> Scaling:
    table, default = _Table(path, value), Scaling()
    scaling = Scaling(
        table.get("min_instances", _whole(0, 1000), default.min_instances),
        table.get("max_instances", _whole(1, 1000), default.max_instances),
        table.get("idle_timeout_s", _number(0.1, 1e7), default.idle_timeout_s),
    )
    table.finish()
    if scaling.min_instances > scaling.max_instances:
        raise specs.SpecError(f"{path}.min_instances", f"is above '{path}.max_instances'")
    return scaling


def _resources(path: str, value: Any) -> Resources:
    table = _Table(path, value)
    resources = Resources(
        table.get("working_memory_bytes", _size, 0),
        table.get("host_memory_limit_bytes", _size, 0),
        table.get("threads", _whole(0, 1024), 0),
    )
    table.finish()
    return resources


def _objective(path: str, value: Any) -> Objective:
    table = _Table(path, value)
    objective = Objective(
        table.need("latency_ms", _whole(1, 86_400_000)),
        table.get("percentile", _number(0.001, 0.9999), 0.98),
    )
    table.finish()
    return objective


def _batching(path: str, value: Any) -> Batching:
    table = _Table(path, value)
    batching = Batching(
        table.need("max_batch_size", _whole(1, specs.MAX_BATCH_SIZE)),
        table.get("max_delay_us", _whole(0, specs.MAX_DELAY_US), 0),
    )
    table.finish()
    return batching


def _limits(path: str, value: Any) -> Limits:
    table = _Table(path, value)
    limits = Limits(table.get("max_concurrent_requests", _whole(1, specs.MAX_CONCURRENT_REQUESTS), 0))
    table.finish()
    return limits


def _flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise specs.SpecError(path, f"is {value!r}; want true or false")
    return value


def _word(words: Iterable[str]) -> Callable[[str, Any], str]:
    known = tuple(dict.fromkeys(words))

    def read(path: str, value: Any) -> str:
        if value not in known:
            raise specs.SpecError(path, f"is {value!r}; want {' or '.join(repr(word) for word in known)}")
        return str(value)

    return read


def _references(path: str, value: Any) -> dict[str, str]:
    content = _Table(path, value).content
    return {variable: _text(f"{path}.{variable}", secret) for variable, secret in content.items()}


def _options(path: str, value: Any) -> dict[str, str]:
    content = _Table(path, value).content
    if len(content) > MAX_OPTIONS:
        raise specs.SpecError(path, f"has more than {MAX_OPTIONS} entries")
    return {key: _option(f"{path}.{key}", entry) for key, entry in content.items()}


def _option(path: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise specs.SpecError(path, "must be a text, a number or true or false")
