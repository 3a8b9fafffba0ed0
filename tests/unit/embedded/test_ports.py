"""Ports of a mesh's services are chosen before anybody listens on them."""

from __future__ import annotations

from rouse_embedded.stores.base import PORTS, free_port


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(1000)]
    assert len(set(ports)) == len(ports)
    assert all(port in PORTS for port in ports)
