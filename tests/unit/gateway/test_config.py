"""Settings: what is bad stops the start and is named."""

from __future__ import annotations

import pytest

from rouse_common.config import ConfigError, load
from rouse_gateway.config import GatewayConfig


def test_settings_come_from_environment_and_flags() -> None:
    config = load(
        GatewayConfig,
        "gateway",
        ["--cluster-manager", "a:1", "--service", "scaler=b:2", "--service", "x=unix:/tmp/s"],
        {"ROUSE_GATEWAY_MAX_HELD": "7", "ROUSE_GATEWAY_NATS": "nats://u:p@h:1"},
    )
    assert (config.cluster_manager, config.max_held, config.nats) == ("a:1", 7, "nats://u:p@h:1")
    assert config.services() == {"scaler": "b:2", "x": "unix:/tmp/s"}


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--cluster-manager", "here", "cluster_manager=here"),
        ("--scaler", "a:b", "scaler=a:b"),
        ("--max-held", "0", "1 to"),
        ("--default-timeout-s", "0", "0.001"),
        ("--http-listen", "8000", "http_listen=8000"),
        ("--service", "scaler", "NAME=host:port"),
        ("--service", "=a:1", "NAME=host:port"),
        ("--service", "scaler=nowhere", "scaler=nowhere"),
    ],
)
def test_a_bad_setting_is_named(flag: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(GatewayConfig, "gateway", [flag, value], {})
