"""What a mesh can lose: a store, a service, an instance, a device's executor, a whole node."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from rouse_testkit.mesh import Mesh

WHOLE_S = 90.0
POLL_S = 0.05


@dataclass(frozen=True)
class Victim:
    """Something that can be killed.

    Args:
        name: for the table.
        kill: kills it and returns when it is gone.
        is_back: whether there is another one in its place.
    """

    name: str
    kill: Callable[[], None]
    is_back: Callable[[], bool] = lambda: True


def every(mesh: Mesh, function: str) -> list[Victim]:
    """All that can be killed: the stores and services, of the nodes' services those of the first node, an instance
    of `function`, an executor, and all of the second node at once."""
    names = [name for name in mesh.services if not name.endswith("@node1")]
    return [
        *(Victim(name, lambda name=name: mesh.kill(name)) for name in names),  # type: ignore[misc]
        _instance(mesh, function),
        _executor(mesh),
        Victim("all of node1", lambda: _end(_of_node(mesh, "node1"))),
    ]


def wait_whole(mesh: Mesh, victim: Victim) -> None:
    """Returns once every process does its job again. Raises AssertionError after WHOLE_S."""
    deadline = time.monotonic() + WHOLE_S
    mesh.wait_ready(WHOLE_S)
    while not victim.is_back():
        assert time.monotonic() < deadline, f"{victim.name} is not back {WHOLE_S:.0f} s after it was killed"
        time.sleep(POLL_S)


def _instance(mesh: Mesh, function: str) -> Victim:
    count = len(mesh.instance_pids(function))

    def kill() -> None:
        _end([psutil.Process(mesh.instance_pids(function)[0])])

    return Victim("an instance", kill, lambda: len(mesh.instance_pids(function)) >= count)


def _executor(mesh: Mesh) -> Victim:
    def living() -> list[psutil.Process]:
        return [p for p in _of_service(mesh, "gpu-server@node0") if "rouse-executor" in p.name()]

    def kill() -> None:
        (one,) = living()
        _end([one])

    return Victim("executor@node0", kill, lambda: bool(living()))


def _of_service(mesh: Mesh, name: str) -> list[psutil.Process]:
    try:
        own = psutil.Process(mesh.services[name])
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _of_node(mesh: Mesh, node: str) -> list[psutil.Process]:
    return [p for name in mesh.services if name.endswith(f"@{node}") for p in _of_service(mesh, name)]


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=WHOLE_S)
