"""What gpu-server can be told, and what it refuses."""

from __future__ import annotations

import pytest

from rouse_common.config import ConfigError, load
from rouse_gpu_server.config import DeviceSpec, GpuServerConfig, parse_device
from rouse_policy import eviction, interference, scheduling


def config(*flags: str, **environ: str) -> GpuServerConfig:
    return load(GpuServerConfig, "gpu-server", flags, environ)


def test_devices_come_by_flag_or_environment() -> None:
    wanted = (DeviceSpec("host", "cpu0", 2 << 30), DeviceSpec("host", "cpu1", 512 << 20))
    assert config("--device", "host:cpu0=2GiB", "--device", "host:cpu1=512MiB").devices == wanted
    assert config(ROUSE_GPU_SERVER_DEVICE="host:cpu0=2GiB,host:cpu1=512MiB").devices == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu0=2GiB", "want KIND:NAME=SIZE"),
        ("host:=2GiB", "want KIND:NAME=SIZE"),
        ("host:../x=2GiB", "want KIND:NAME=SIZE"),
        ("host:cpu0=much", "want a size"),
        ("host:cpu0=0", "above zero"),
        ("host:host=1GiB", "reserved name"),
        ("tpu:t=1GiB", "unknown kind 'tpu'"),
    ],
)
def test_a_bad_device_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_device(text)
    with pytest.raises(ConfigError, match=message):
        config("--device", text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "host:a=1GiB", "--device", "host:a=2GiB"], "'a' is named 2 times"),
        (
            ["--device", "host:a=1GiB", "--device", "cuda:b=2GiB", "--executors", "true"],
            "of one kind, and these are cuda and",
        ),
        (["--device", "cuda:gpu0=16GiB"], "only native executors compute on CUDA"),
        (["--host-memory", "plenty"], "--host-memory=plenty"),
        (["--cache-size", "-1"], "--cache-size=-1"),
        (["--memory-dir", "here"], "want an absolute path"),
        (["--coordinator", "nowhere"], "want host:port"),
        (["--max-waiting", "0"], "want 1 to"),
        (["--binding", "soon"], "want one of late, early"),
        (["--eviction-order", "POOL"], "want one of pool, lru"),
        (["--scheduling", "bound"], "want one of interference, random"),
    ],
)
def test_a_bad_setting_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*flags)


def test_milliseconds_reach_the_policy_as_seconds() -> None:
    policy = config("--patience-ms", "250", "--min-residency-ms", "50", "--replica-after-ms", "10").policy
    assert policy.patience_s == 0.25
    assert policy.eviction.min_residency_s == 0.05
    assert policy.replica_after_s == 0.01


def test_the_baselines_are_chosen_by_flag_or_environment() -> None:
    assert config().policy == scheduling.Settings()
    early = config("--binding", "early", ROUSE_GPU_SERVER_EVICTION_ORDER="lru").policy
    assert early.binding is scheduling.Binding.EARLY
    assert early.eviction.order is eviction.Order.LRU
    assert config("--scheduling", "random").policy.interference.mode is interference.Mode.RANDOM


def test_threads_are_shared_out_over_the_devices() -> None:
    assert config("--threads", "3").default_threads == 3
    assert config("--device", "host:a=1GiB").default_threads >= 1
