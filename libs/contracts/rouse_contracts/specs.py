"""Rules of a function's spec that its client, the gateway and cluster-manager all hold it to.

Keys are those of rouse.toml, which are the paths of the contract's fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rouse_contracts import functions

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
# Variables that the mesh itself sets for an instance, and those that decide how programs, Python and its memory start.
RESERVED_PREFIXES = ("ROUSE_", "LD_", "PYTHON", "GLIBC_", "MALLOC_")
MAX_BATCH_SIZE = 65_536
MAX_DELAY_US = 10_000_000
MAX_CONCURRENT_REQUESTS = 1_000_000
MAX_VARIABLES = 256
MAX_VALUE_CHARS = 32_768


# What rouse.toml calls them; of the values that stand for a default, the default's word.
EXECUTIONS = {
    functions.EXECUTION_UNSPECIFIED: "plain",
    functions.EXECUTION_PLAIN: "plain",
    functions.EXECUTION_ROUSE: "rouse",
}
ISOLATIONS = {
    functions.EXECUTOR_ISOLATION_UNSPECIFIED: "sharing",
    functions.EXECUTOR_ISOLATION_SHARING: "sharing",
    functions.EXECUTOR_ISOLATION_ISOLATED: "isolated",
}


class SpecError(ValueError):
    """A value that a spec may not have.

    Args:
        key: where, as "batching.max_batch_size" or "inputs[0].shape".
        text: what is wrong and what is wanted.
    """

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"'{key}' {text}")
        self.key, self.text = key, text


def is_batchable(spec: functions.FunctionSpec) -> bool:
    """Whether requests of the function may be executed together."""
    return bool(spec.batching.max_batch_size > 1)


def execution_of(word: str) -> str:
    """The contract's name of what rouse.toml calls so; of an empty word the default's."""
    return f"EXECUTION_{word.upper() or 'UNSPECIFIED'}"


def isolation_of(word: str) -> str:
    """As `execution_of`."""
    return f"EXECUTOR_ISOLATION_{word.upper() or 'UNSPECIFIED'}"


def is_redirected(spec: functions.FunctionSpec) -> bool:
    """Whether the function's operations are carried out by an executor."""
    return spec.execution == functions.EXECUTION_ROUSE


def is_isolated(spec: functions.FunctionSpec) -> bool:
    """Whether the function has executors of its own."""
    return spec.isolation == functions.EXECUTOR_ISOLATION_ISOLATED


def uses_tapes(spec: functions.FunctionSpec) -> bool:
    """Whether requests may be recorded and replayed: so it is unless the spec says otherwise."""
    return not spec.HasField("tapes") or spec.tapes


def check(spec: functions.FunctionSpec) -> None:
    """Checks batching, execution, limits, environment and secrets. Raises SpecError."""
    _check_batching(spec)
    _check_execution(spec)
    if spec.limits.max_concurrent_requests > MAX_CONCURRENT_REQUESTS:
        _beyond("limits.max_concurrent_requests", spec.limits.max_concurrent_requests, MAX_CONCURRENT_REQUESTS)
    _check_environment(spec)


def _check_batching(spec: functions.FunctionSpec) -> None:
    batching = spec.batching
    if batching.max_batch_size > MAX_BATCH_SIZE:
        _beyond("batching.max_batch_size", batching.max_batch_size, MAX_BATCH_SIZE)
    if batching.max_delay_us > MAX_DELAY_US:
        _beyond("batching.max_delay_us", batching.max_delay_us, MAX_DELAY_US)
    if not is_batchable(spec):
        if batching.max_delay_us:
            raise SpecError(
                "batching.max_delay_us",
                f"is {batching.max_delay_us}, but without a max_batch_size of 2 or more no request waits for others",
            )
        return
    if spec.decoupled:
        raise SpecError("decoupled", "is true: a decoupled function answers one request at a time; leave out batching")
    for what, tensors in (("inputs", spec.signature.inputs), ("outputs", spec.signature.outputs)):
        for index, tensor in enumerate(tensors):
            if not tensor.shape or tensor.shape[0] != -1:
                raise SpecError(
                    f"{what}[{index}].shape",
                    f"of '{tensor.name}' is {list(tensor.shape)}: the first dimension of every tensor of a function "
                    "with batching is the batch; write -1 there",
                )


def _check_execution(spec: functions.FunctionSpec) -> None:
    for key, value, known in (
        ("execution", spec.execution, EXECUTIONS), ("isolation", spec.isolation, ISOLATIONS),
    ):  # fmt: skip
        if value not in known:
            raise SpecError(
                key, f"is {value}, which this mesh does not know; want one of {sorted(set(known.values()))}"
            )
    if is_redirected(spec):
        return
    if is_isolated(spec):
        raise SpecError(
            "isolation", "is 'isolated', but in plain execution there is no executor; say execution = 'rouse'"
        )
    if spec.HasField("tapes") and spec.tapes:
        raise SpecError("tapes", "is true, but in plain execution nothing is recorded; say execution = 'rouse'")


def _check_environment(spec: functions.FunctionSpec) -> None:
    if len(spec.environment) > MAX_VARIABLES:
        raise SpecError("environment", f"has {len(spec.environment)} variables, {MAX_VARIABLES} at most")
    if len(spec.secrets) > MAX_VARIABLES:
        raise SpecError("secrets", f"has {len(spec.secrets)} variables, {MAX_VARIABLES} at most")
    for variable, value in spec.environment.items():
        _check_variable("environment", variable)
        if len(value) > MAX_VALUE_CHARS or "\x00" in value:
            raise SpecError(
                f"environment.{variable}", f"is longer than {MAX_VALUE_CHARS} characters or holds a NUL character"
            )
    for reference in spec.secrets:
        _check_variable("secrets", reference.variable)
        if not SECRET_NAME.fullmatch(reference.secret):
            raise SpecError(
                f"secrets.{reference.variable}",
                "names no secret: want 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit; the "
                "value of a secret does not belong here",
            )
    twice = _first_double([*spec.environment, *(reference.variable for reference in spec.secrets)])
    if twice is not None:
        raise SpecError(f"secrets.{twice}", "is set twice: once is enough, here or in the environment")


def _check_variable(table: str, variable: str) -> None:
    if not VARIABLE.fullmatch(variable):
        shown = variable[:140].replace("\x00", " ")
        raise SpecError(f"{table}.{shown}", "is no environment variable: want letters, digits and '_', no digit first")
    prefix = next((prefix for prefix in RESERVED_PREFIXES if variable.startswith(prefix)), None)
    if prefix is not None:
        raise SpecError(f"{table}.{variable}", f"begins with {prefix}, which is kept for the mesh's own use")


def _first_double(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _beyond(key: str, value: int, high: int) -> None:
    raise SpecError(key, f"is {value}, {high} at most")
