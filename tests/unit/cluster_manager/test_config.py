"""Settings: what is missing or contradicts itself is named."""

from __future__ import annotations

import pytest

from rouse_cluster_manager.config import ClusterManagerConfig
from rouse_common.config import ConfigError, load

DATABASE = "postgresql://rouse:hidden@127.0.0.1:5432/rouse"
NATS = "nats://127.0.0.1:4222"


def loaded(**settings: str) -> ClusterManagerConfig:
    environment = {f"ROUSE_CLUSTER_MANAGER_{key}": value for key, value in settings.items()}
    return load(ClusterManagerConfig, "cluster-manager", [], environment)


def test_two_urls_are_enough() -> None:
    config = loaded(DATABASE=DATABASE, NATS=NATS)
    assert (config.heartbeat_ms, config.node_lost_ms) == (1000, 5000)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "database is not set"),
        ({"DATABASE": "sqlite:///hidden", "NATS": NATS}, "PostgreSQL"),
        ({"DATABASE": DATABASE}, "nats is not set"),
        ({"DATABASE": DATABASE, "NATS": NATS, "NODE_LOST_MS": "1500"}, "node_lost_ms=1500"),
        ({"DATABASE": DATABASE, "NATS": NATS, "MODEL_REPOSITORY": "nowhere"}, "model_repository=nowhere"),
        ({"DATABASE": DATABASE, "NATS": NATS, "HEARTBEAT_MS": "1"}, "HEARTBEAT_MS=1"),
    ],
)
def test_bad_settings_are_named_without_their_secrets(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**settings)
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)
