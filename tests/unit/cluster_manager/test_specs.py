"""What a spec may be; a bad one is refused with words that say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from rouse_cluster_manager import specs
from rouse_cluster_manager.adapters import rows
from rouse_common.errors import InvalidArgument, Unimplemented
from rouse_contracts import functions as pb
from rouse_contracts.repository import Artefact

FLOAT = pb.TensorSpec(name="x", datatype="FP32", shape=[-1, 3])
SIGNATURE = pb.Signature(inputs=[FLOAT], outputs=[FLOAT])
HUGGING_FACE = Artefact(format=pb.ARTEFACT_FORMAT_HUGGING_FACE, signature=SIGNATURE)
PYTHON = Artefact(format=pb.ARTEFACT_FORMAT_PYTHON)


def python_spec(**fields: Any) -> pb.FunctionSpec:
    return pb.FunctionSpec(**(dict[str, Any](name="f", handler="main:Model", signature=SIGNATURE) | fields))


def test_zero_values_become_the_documented_defaults() -> None:
    full = specs.effective(pb.FunctionSpec(name="f"), HUGGING_FACE)
    assert full.scaling.max_instances == 1
    assert full.scaling.idle_timeout.seconds == 300
    assert full.queue_capacity == 256
    assert full.signature == SIGNATURE
    assert not full.objective.latency_ms
    assert full.execution == pb.EXECUTION_PLAIN
    assert not full.HasField("tapes")


def test_what_is_given_stays() -> None:
    spec = python_spec(
        scaling=pb.Scaling(min_instances=2, max_instances=3, idle_timeout=Duration(nanos=500_000_000)),
        objective=pb.Objective(latency_ms=50, percentile=0.9),
        resources=pb.Resources(working_memory_bytes=7, threads=2),
        queue_capacity=4,
        options={"a": "b"},
        execution=pb.EXECUTION_ROUSE,
        isolation=pb.EXECUTOR_ISOLATION_ISOLATED,
        tapes=False,
    )
    assert specs.effective(spec, PYTHON) == spec


def test_life_of_a_function_is_kept_as_it_is_given() -> None:
    spec = python_spec(
        scaling=pb.Scaling(min_instances=1, max_instances=1, idle_timeout=Duration(seconds=300)),
        queue_capacity=256,
        batching=pb.Batching(max_batch_size=8, max_delay_us=500),
        limits=pb.Limits(max_concurrent_requests=4),
        pinned=True,
        shared=True,
        environment={"A": "1"},
        secrets=[pb.SecretReference(variable="TOKEN", secret="hub-token")],
        execution=pb.EXECUTION_PLAIN,
    )
    full = specs.effective(spec, PYTHON)
    assert full == spec
    stored = rows.spec_columns(full)
    assert ParseDict(stored, pb.FunctionSpec()) == spec


def test_redirected_functions_share_an_executor_unless_they_say_otherwise() -> None:
    full = specs.effective(python_spec(execution=pb.EXECUTION_ROUSE), PYTHON)
    assert full.isolation == pb.EXECUTOR_ISOLATION_SHARING
    assert specs.effective(full, PYTHON) == full
    with pytest.raises(Unimplemented) as caught:
        specs.check_execution(full, executors=False)
    assert caught.value.reason == "EXECUTION_UNAVAILABLE"
    specs.check_execution(full, executors=True)
    full.isolation = pb.EXECUTOR_ISOLATION_ISOLATED
    assert specs.effective(full, PYTHON) == full
    specs.check_execution(full, executors=True)


def test_a_pinned_function_keeps_an_instance() -> None:
    assert specs.effective(python_spec(pinned=True), PYTHON).scaling.min_instances == 1
    more = python_spec(pinned=True, scaling=pb.Scaling(min_instances=2))
    assert specs.effective(more, PYTHON).scaling.min_instances == 2


def test_a_spec_stored_before_these_fields_were_there_is_read() -> None:
    full = specs.effective(python_spec(), PYTHON)
    stored = rows.spec_columns(full)
    assert not {"batching", "limits", "pinned", "environment", "secrets", "shared", "decoupled"} & stored.keys()
    assert ParseDict(stored, pb.FunctionSpec()) == full


def test_keeping_instances_raises_the_default_limit() -> None:
    spec = python_spec(scaling=pb.Scaling(min_instances=3))
    assert specs.effective(spec, PYTHON).scaling.max_instances == 3


def test_a_signature_that_is_given_overrides_the_derived_one() -> None:
    mine = pb.Signature(inputs=[pb.TensorSpec(name="z", datatype="INT64")], outputs=[FLOAT])
    assert specs.effective(pb.FunctionSpec(name="f", signature=mine), HUGGING_FACE).signature == mine


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "9", "x" * 128])
def test_good_names(name: str) -> None:
    specs.check_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a/b", "a b", "ä", "x" * 129, "a\n", "a\x00"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        specs.check_name(name)
    assert caught.value.reason == "BAD_NAME"


def tensor(**fields: Any) -> pb.Signature:
    return pb.Signature(inputs=[pb.TensorSpec(**(dict[str, Any](name="x", datatype="FP32") | fields))], outputs=[FLOAT])


BAD: dict[str, tuple[pb.FunctionSpec, Artefact, str]] = {
    "no handler": (python_spec(handler=""), PYTHON, "handler"),
    "handler without class": (python_spec(handler="main"), PYTHON, "handler"),
    "handler with code": (python_spec(handler="os:system('x')"), PYTHON, "handler"),
    "handler for hugging face": (python_spec(), HUGGING_FACE, "handler"),
    "no signature": (python_spec(signature=None), PYTHON, "inputs"),
    "no outputs": (python_spec(signature=pb.Signature(inputs=[FLOAT])), PYTHON, "outputs"),
    "one name twice": (
        python_spec(signature=pb.Signature(inputs=[FLOAT, FLOAT], outputs=[FLOAT])), PYTHON, "same name",
    ),
    "unknown datatype": (python_spec(signature=tensor(datatype="FP31")), PYTHON, "FP31"),
    "empty tensor name": (python_spec(signature=tensor(name="")), PYTHON, "name"),
    "negative size": (python_spec(signature=tensor(shape=[-2])), PYTHON, "-2"),
    "too many dimensions": (python_spec(signature=tensor(shape=[1] * 33)), PYTHON, "33"),
    "min above max": (
        python_spec(scaling=pb.Scaling(min_instances=3, max_instances=2)), PYTHON, "min_instances is 3",
    ),
    "too many instances": (python_spec(scaling=pb.Scaling(max_instances=10**6)), PYTHON, "max_instances"),
    "negative idle timeout": (
        python_spec(scaling=pb.Scaling(idle_timeout=Duration(seconds=-5))), PYTHON, "idle_timeout",
    ),
    "memory beyond 63 bits": (
        python_spec(resources=pb.Resources(working_memory_bytes=2**63)), PYTHON, "working_memory",
    ),
    "percentile of 1": (python_spec(objective=pb.Objective(latency_ms=5, percentile=1.0)), PYTHON, "percentile"),
    "percentile that is none": (
        python_spec(objective=pb.Objective(latency_ms=5, percentile=float("nan"))), PYTHON, "percentile",
    ),
    "percentile alone": (python_spec(objective=pb.Objective(percentile=0.9)), PYTHON, "latency_ms"),
    "huge queue": (python_spec(queue_capacity=10**9), PYTHON, "queue_capacity"),
    "NUL in an option": (python_spec(options={"a": "b\x00"}), PYTHON, "NUL"),
    "batch of one dimension": (python_spec(batching=pb.Batching(max_batch_size=2), signature=tensor(shape=[3])), PYTHON,
                               "'inputs[0].shape' of 'x'"),
    "batch beyond the limit": (python_spec(batching=pb.Batching(max_batch_size=10**6)), PYTHON, "65536"),
    "delay beyond the limit": (
        python_spec(batching=pb.Batching(max_batch_size=2, max_delay_us=10**9)), PYTHON, "batching.max_delay_us",
    ),
    "delay without a batch": (python_spec(batching=pb.Batching(max_delay_us=1)), PYTHON, "batching.max_delay_us"),
    "decoupled and batched": (
        python_spec(batching=pb.Batching(max_batch_size=2), decoupled=True), PYTHON, "'decoupled'",
    ),
    "limit beyond the limit": (
        python_spec(limits=pb.Limits(max_concurrent_requests=10**9)), PYTHON, "limits.max_concurrent_requests",
    ),
    "odd variable": (python_spec(environment={"a b": "x"}), PYTHON, "environment.a b"),
    "variable of the mesh": (python_spec(environment={"ROUSE_X": "x"}), PYTHON, "environment.ROUSE_X"),
    "NUL in a variable": (python_spec(environment={"A": "x\x00"}), PYTHON, "environment.A"),
    "many variables": (python_spec(environment={f"A{i}": "" for i in range(257)}), PYTHON, "257 variables"),
    "no name of a secret": (
        python_spec(secrets=[pb.SecretReference(variable="A", secret="a value!")]), PYTHON, "secrets.A",
    ),
    "one variable twice": (
        python_spec(secrets=[pb.SecretReference(variable="A", secret="s")] * 2), PYTHON, "set twice",
    ),
    "unknown execution": (python_spec(execution=7), PYTHON, "'execution' is 7"),
    "unknown isolation": (python_spec(execution=pb.EXECUTION_ROUSE, isolation=9), PYTHON, "'isolation' is 9"),
    "isolated in plain execution": (
        python_spec(isolation=pb.EXECUTOR_ISOLATION_ISOLATED), PYTHON, "in plain execution there is no executor",
    ),
    "tapes in plain execution": (python_spec(tapes=True), PYTHON, "in plain execution nothing is recorded"),
    "long description": (python_spec(description="x" * 10_000), PYTHON, "description"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_spec_is_refused_and_the_words_say_why(what: str) -> None:
    spec, artefact, words = BAD[what]
    with pytest.raises(InvalidArgument) as caught:
        specs.effective(spec, artefact)
    assert caught.value.reason == "BAD_SPEC"
    assert words in caught.value.message
    assert caught.value.metadata == {"function": "f"}


numbers: Callable[[int], st.SearchStrategy[int]] = lambda high: st.integers(0, high)  # noqa: E731


@given(
    st.builds(
        pb.FunctionSpec,
        name=st.sampled_from(["f", "model-1"]),
        handler=st.sampled_from(["", "m:C", "a.b:C"]),
        signature=st.sampled_from([None, SIGNATURE]),
        scaling=st.builds(pb.Scaling, min_instances=numbers(4), max_instances=numbers(4)),
        objective=st.builds(pb.Objective, latency_ms=numbers(2), percentile=st.sampled_from([0.0, 0.5, 2.0])),
        queue_capacity=numbers(2**32 - 1),
    ),
    st.sampled_from([HUGGING_FACE, PYTHON]),
)
def test_what_is_accepted_has_no_zero_left_and_is_accepted_again_unchanged(
    spec: pb.FunctionSpec, artefact: Artefact
) -> None:
    try:
        full = specs.effective(spec, artefact)
    except InvalidArgument:
        return
    assert 0 < full.scaling.max_instances >= full.scaling.min_instances
    assert full.queue_capacity > 0
    assert full.signature.inputs
    assert specs.effective(full, artefact) == full
