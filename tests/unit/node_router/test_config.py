"""What node-router refuses to start with."""

from __future__ import annotations

import pytest

from rouse_common.config import ConfigError, load
from rouse_node_router.config import NodeRouterConfig
from rouse_policy.queueing import Order


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--node-id", ""], "node_id: want a name"),
        (["--gpu-server", "nowhere"], "gpu_server=nowhere: want host:port"),
        (["--gpu-server-link", "7111"], "gpu_server_link=7111: want host:port"),
        (["--cluster-manager", "host:99999"], "cluster_manager=host:99999: want host:port"),
        (["--max-acquires-per-version", "0"], "want 1 to 64"),
        (["--queue-order", "lifo"], "queue_order=lifo: want deadline, fifo or rrc"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(NodeRouterConfig, "node-router", argv, {})


def test_gpu_server_may_listen_on_a_socket() -> None:
    argv = ["--gpu-server", "unix:/run/gpu.sock", "--gpu-server-link", "unix:/run/gpu.link"]
    config = load(NodeRouterConfig, "node-router", argv, {})
    assert (config.gpu_server, config.gpu_server_link) == ("unix:/run/gpu.sock", "unix:/run/gpu.link")


def test_the_order_is_chosen_by_configuration() -> None:
    settings = load(NodeRouterConfig, "node-router", ["--queue-order", "rrc", "--percentile", "0.95"], {}).queueing
    assert settings.order is Order.RRC
    assert settings.objective.percentile == 0.95
