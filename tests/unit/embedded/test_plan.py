"""Every service of a mesh gets settings that it takes, and only the secrets that it needs."""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from rouse_common.config import ServiceConfig, load
from rouse_embedded import plan
from rouse_embedded.folders import TAG, Folders
from rouse_embedded.keys import Keys
from rouse_embedded.options import MeshOptions, fitted
from rouse_embedded.processes import ProcessSpec
from rouse_embedded.stores import Nats, Postgres, Redis

STORES = {
    "cluster-manager": {"postgres", "nats"},
    "model-repository": {"nats"},
    "comm-broker": {"nats"},
    "scaler": {"redis"},
    "gateway": {"nats", "redis"},
    "node-router": {"redis"},
    "gpu-server": set(),
    "coordinator": set(),
}


def config_type(service: str) -> type[ServiceConfig]:
    module = importlib.import_module(f"rouse_{service.replace('-', '_')}.config")
    (found,) = {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, ServiceConfig) and kind is not ServiceConfig
    }
    return found


class Planned:
    def __init__(self, folder: Path) -> None:
        options = MeshOptions(folder, nodes=2, devices=("host:a=1GiB", "host:b=1GiB"), metrics=True, executors=True)
        self.options = fitted(dataclasses.replace(options, settings={"scaler": {"period_s": "0.25"}}), 1 << 40)
        self.folders = Folders(folder, folder / "memory", Path("/tmp/rouse-x"), "key", True)
        self.stores = plan.Stores(Postgres(folder / "pg", 1), Nats(folder / "nats", 2), Redis(folder / "redis", 3))
        self.names = plan.process_names(self.options)
        self.addresses = {name: f"127.0.0.1:{7000 + number}" for number, name in enumerate(self.names)}
        self.links = plan.link_addresses(self.options, self.folders)
        metrics = {name: f"127.0.0.1:{8000 + number}" for number, name in enumerate(self.names)}
        self.specs = {spec.name: spec for spec in self.service_specs(metrics)}

    def service_specs(self, metrics: dict[str, str]) -> list[ProcessSpec]:
        async def ready(pid: int) -> bool:
            return True

        return plan.service_specs(
            self.options,
            self.folders,
            self.stores,
            self.addresses,
            self.links,
            metrics,
            {"PATH": "/bin"},
            lambda _: ready,
            Keys(self.folders.data / "keys", auth=True),
        )

    def config(self, name: str) -> Any:
        service = name.partition("@")[0]
        return load(config_type(service), service, (), self.specs[name].environment)


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return Planned(tmp_path)


def test_executors_are_on_for_all_or_for_none(planned: Planned) -> None:
    assert planned.config("cluster-manager").executors
    assert all(planned.config(name).executors for name in planned.names if name.startswith("gpu-server@"))


def test_there_are_five_services_of_the_cluster_and_three_a_node(planned: Planned) -> None:
    assert len(planned.specs) == 5 + 2 * 3
    assert {name.partition("@")[0] for name in planned.specs} == set(STORES)


@pytest.mark.parametrize("service", sorted(STORES))
def test_a_service_takes_every_setting_that_it_gets(planned: Planned, service: str) -> None:
    for name in planned.names:
        if name.partition("@")[0] == service:
            config = planned.config(name)
            assert config.listen == planned.addresses[name]
            assert config.metrics_listen == planned.specs[name].metrics_address
            assert config.trace_dir == str(planned.folders.traces)


def test_nodes_know_their_own_neighbours(planned: Planned) -> None:
    for node in ("node0", "node1"):
        router, device = planned.addresses[f"node-router@{node}"], planned.addresses[f"gpu-server@{node}"]
        coordinator = planned.config(f"coordinator@{node}")
        assert (coordinator.node_id, coordinator.node_router, coordinator.gpu_server) == (node, router, device)
        server = planned.config(f"gpu-server@{node}")
        assert server.coordinator == planned.addresses[f"coordinator@{node}"]
        assert server.device == ("host:a=1GiB", "host:b=1GiB")
        node_router = planned.config(f"node-router@{node}")
        assert (node_router.gpu_server, node_router.gpu_server_link) == (device, server.link_listen)
        assert coordinator.node_router_link == node_router.link_listen
    folders = [planned.config(f"gpu-server@{node}") for node in ("node0", "node1")]
    assert folders[0].memory_dir != folders[1].memory_dir
    assert folders[0].cache_dir != folders[1].cache_dir


def test_the_gateway_shows_every_service(planned: Planned) -> None:
    assert planned.config("gateway").service == tuple(f"{n}={a}" for n, a in planned.addresses.items())


def test_settings_of_the_caller_win(planned: Planned) -> None:
    assert planned.config("scaler").period_s == 0.25


@pytest.mark.parametrize("service", sorted(STORES))
def test_a_service_gets_no_secret_but_its_own_and_none_by_argument(planned: Planned, service: str) -> None:
    passwords = {store.name: store.password for store in planned.stores.all()}
    for name, spec in planned.specs.items():
        if name.partition("@")[0] != service:
            continue
        values = " ".join(spec.environment.values())
        assert {store for store, password in passwords.items() if password in values} == STORES[service]
        assert not any(password in " ".join(spec.command) for password in passwords.values())


def test_processes_end_with_their_supervisor_and_can_be_found(planned: Planned) -> None:
    for spec in planned.specs.values():
        assert spec.environment["ROUSE_PARENT_PID"] == str(os.getpid())
        assert spec.environment[TAG] == "key"
        assert spec.environment["PATH"] == "/bin"


def test_the_front_door_closes_first_and_the_stores_last(planned: Planned) -> None:
    ranks = {spec.name.partition("@")[0]: spec.stop_rank for spec in planned.specs.values()}
    order = ["gateway", "scaler", "node-router", "coordinator", "gpu-server", "cluster-manager"]
    assert sorted(order, key=ranks.__getitem__) == order
    assert max(ranks.values()) < plan.STORE_STOP_RANK
