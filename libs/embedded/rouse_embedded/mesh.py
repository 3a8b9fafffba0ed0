"""The whole mesh on one machine: stores and services as supervised processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from rouse_common.tasks import periodically
from rouse_common.tls import MeshTls
from rouse_embedded import plan
from rouse_embedded.authority import Authority, services_of
from rouse_embedded.folders import Folders, claimed, end_leftovers, prune_traces, tagged
from rouse_embedded.keys import Keys
from rouse_embedded.logs import Line, LogSink
from rouse_embedded.notices import Logged, Note, Notice, Restarting, Waiting
from rouse_embedded.options import NO_HTTP, MeshOptions, fitted
from rouse_embedded.ports import GATEWAY, GATEWAY_HTTP, gateway_listen, reachable
from rouse_embedded.processes import Observers, ProcessSpec, Supervised
from rouse_embedded.readiness import Health
from rouse_embedded.restart import Restart, RestartSettings
from rouse_embedded.stores import Store
from rouse_embedded.stores.base import free_port, write_private

LOG = logging.getLogger(__name__)
MESH_FILE = "mesh.json"
CHECK_PERIOD_S = 0.05
PRUNE_PERIOD_S = 60.0
LAST_PROCESSES_S = 3.0
READY_TIMEOUT_S = 120.0


class MeshError(RuntimeError):
    """The mesh cannot start or serve; the text says which process, why, and where its log is."""


@dataclass(frozen=True)
class MeshInfo:
    """Where a running mesh is.

    Args:
        http_address: of REST v2; empty where it is not served.
        options: as they are in force, with what was left open filled in.
        addresses, metrics_addresses: host:port by process name.
        tls: how the supervisor speaks with the services; None: plain.
        api_key_file: holds an administrator's API key; None where callers need none.
    """

    gateway_address: str
    http_address: str
    options: MeshOptions
    folders: Folders
    stores: plan.Stores
    addresses: Mapping[str, str]
    metrics_addresses: Mapping[str, str]
    tls: MeshTls | None = None
    api_key_file: Path | None = None


class EmbeddedMesh:
    """Stores and services of a mesh, from `async with` to its end.

        async with EmbeddedMesh(MeshOptions(Path("data"))) as mesh:
            await mesh.wait_ready()

    Entering starts everything and does not wait. Leaving stops everything in order; what the data folder
    holds is kept. The processes belong to the thread of the event loop: they end with it.

    Args:
        options: see MeshOptions; what is left open is filled in to fit the machine.
        notify: is told of progress, lines of the log and restarts; must not block.
    """

    info: MeshInfo

    def __init__(self, options: MeshOptions, *, notify: Callable[[Notice], object] = lambda _: None) -> None:
        options.validate()
        self._options = fitted(options, psutil.virtual_memory().available)
        self._notify = notify
        self._stack = contextlib.AsyncExitStack()
        self._processes: dict[str, Supervised] = {}
        self._failure: MeshError | None = None
        self._stopping = False
        self._at_once = False
        # Processes that outlived those that should have ended them; empty unless there is a fault.
        self.leaked: list[str] = []

    async def __aenter__(self) -> EmbeddedMesh:
        await self._stack.enter_async_context(self._running())
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        return await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    @property
    def gateway_address(self) -> str:
        """host:port for clients."""
        return self.info.gateway_address

    @property
    def services(self) -> dict[str, int]:
        """Process ids by name, of the stores and services that run now."""
        return {name: process.pid for name, process in self._processes.items() if process.pid is not None}

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S, abort: asyncio.Event | None = None) -> bool:
        """Waits until every process does its job and every node is registered.

        Returns False where `abort` was set meanwhile. Raises MeshError where a process is given up, or
        after `timeout_s` with what is still missing.
        """
        deadline = time.monotonic() + timeout_s
        while (waiting := await self._waiting()) is not None:
            if self._failure is not None:
                raise self._failure
            if abort is not None and abort.is_set():
                return False
            self._notify(waiting)
            if time.monotonic() > deadline:
                raise MeshError(
                    f"after {timeout_s:.0f} s still waiting for {waiting.name}: {waiting.detail} (log: {self._log})"
                )
            await asyncio.sleep(CHECK_PERIOD_S)
        return True

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kills a process as a crash would and waits until it is gone; it is then started again.

        Args:
            name: of a process; a node service's name without its node means the first node's.
        """
        found = self._processes.get(name) or self._processes.get(f"{name}@node0")
        if found is None:
            raise KeyError(f"there is no process {name}; there are {', '.join(self._processes)}")
        await found.kill(number)

    def hurry(self) -> None:
        """From now on nothing is waited for: every process is killed."""
        self._at_once = True
        for process in self._processes.values():
            process.send(signal.SIGKILL)

    @property
    def _log(self) -> Path:
        return self._sink.path

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        failure: Exception | None = None
        with contextlib.ExitStack() as stack:
            folders = stack.enter_context(claimed(self._options.data_dir, self._options.memory_bytes))
            self._sink = LogSink(folders.logs)
            stack.callback(self._sink.close)
            specs = self._plan(folders)
            async with asyncio.TaskGroup() as tasks:
                try:
                    self._start(tasks, folders, specs)
                    yield
                except Exception as error:  # noqa: BLE001 - raised again below; the TaskGroup would wrap it
                    failure = error
                finally:
                    await self._stop(folders)
        if failure is not None:
            raise failure

    def _plan(self, folders: Folders) -> list[ProcessSpec]:
        """Gives every process its address. Raises OSError where the gateway's is taken."""
        options, environ = self._options, dict(os.environ)
        if not folders.memory_is_shared:
            self._notify(Note(f"shared memory is smaller than the devices: memory files are in {folders.memory}"))
        names = plan.process_names(options)
        addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        addresses["gateway"] = gateway_listen(options.listen)
        if not options.listen and addresses["gateway"] != GATEWAY:
            self._notify(Note(f"{GATEWAY} is taken: the gateway listens on {addresses['gateway']}"))
        links = plan.link_addresses(options, folders)
        options, http_address = self._http(options)
        metrics = {name: f"127.0.0.1:{free_port()}" for name in names} if options.metrics else {}
        stores = plan.Stores.below(folders)
        authority = self._authority(folders, addresses)
        tls = authority.tls() if authority is not None else None
        self._health = Health(tls)
        keys = Keys(folders.data / "keys", auth=options.auth)
        self.info = MeshInfo(
            reachable(addresses["gateway"]), http_address, options, folders, stores, addresses, metrics, tls,
            keys.api_key_file,
        )  # fmt: skip
        return [
            *(plan.store_spec(store, folders, environ, _answers(store)) for store in stores.all()),
            *plan.service_specs(
                options, folders, stores, addresses, links, metrics, environ, self._health.probe, keys, authority
            ),
        ]

    def _http(self, options: MeshOptions) -> tuple[MeshOptions, str]:
        """The options with the HTTP port in force, and the address that clients use for it."""
        if options.http_listen == NO_HTTP:
            return options, ""
        listen = gateway_listen(options.http_listen, GATEWAY_HTTP)
        if not options.http_listen and listen != GATEWAY_HTTP:
            self._notify(Note(f"{GATEWAY_HTTP} is taken: the gateway serves HTTP on {listen}"))
        return dataclasses.replace(options, http_listen=listen), reachable(listen)

    def _authority(self, folders: Folders, addresses: Mapping[str, str]) -> Authority | None:
        """With certificates for every process. Raises MeshError where what is kept of them is broken."""
        if not self._options.tls:
            return None
        authority = Authority(folders.data / "tls", addresses["gateway"])
        try:
            authority.prepare(services_of(list(addresses)))
            authority.tls().check()
        except (OSError, ValueError) as error:
            raise MeshError(f"the certificates in {folders.data / 'tls'} cannot be used: {error}") from error
        return authority

    def _start(self, tasks: asyncio.TaskGroup, folders: Folders, specs: list[ProcessSpec]) -> None:
        self._pruning = tasks.create_task(
            periodically("pruning traces", PRUNE_PERIOD_S, lambda: asyncio.to_thread(prune_traces, folders.traces))
        )
        for node in plan.node_ids(self._options):
            for folder in (folders.memory / node, folders.runtime / node, folders.data / "nodes" / node / "cache"):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        observers = Observers(self._line, self._restarted, self._given_up, self._write_state)
        for spec in specs:
            process = self._processes[spec.name] = Supervised(spec, observers, RestartSettings())
            tasks.create_task(process.run(), name=spec.name)

    async def _stop(self, folders: Folders) -> None:
        self._stopping = True
        (folders.data / MESH_FILE).unlink(missing_ok=True)
        by_rank: dict[int, list[Supervised]] = {}
        for process in self._processes.values():
            by_rank.setdefault(process.spec.stop_rank, []).append(process)
        for rank in sorted(by_rank):
            await asyncio.gather(*(process.stop(at_once=self._at_once) for process in by_rank[rank]))
        self._processes.clear()
        self._pruning.cancel()
        await self._health.close()
        self.leaked = await asyncio.to_thread(_last_processes, folders.key)

    async def _waiting(self) -> Waiting | None:
        """What the mesh waits for now; None where it is ready."""
        missing = [process for process in self._processes.values() if not process.ready]
        ready, total = len(self._processes) - len(missing), len(self._processes)
        if missing:
            lines = missing[0].last_lines
            return Waiting(missing[0].spec.name, lines[-1].text if lines else "starting", ready, total)
        # All of them were ready once; now that each has its neighbours, ask again.
        addresses = self.info.addresses
        serving = await asyncio.gather(*(self._health.serves(address) for address in addresses.values()))
        for name, serves in zip(addresses, serving, strict=True):
            if not serves:
                lines = self._processes[name].last_lines
                return Waiting(name, lines[-1].text if lines else "not serving", ready - 1, total)
        routers = [(node, addresses[f"node-router@{node}"]) for node in plan.node_ids(self._options)]
        nodes = await self._health.missing_nodes(addresses["cluster-manager"], routers)
        return Waiting(nodes[0], "to register with cluster-manager", ready, total) if nodes else None

    def _line(self, name: str, level: str, raw: str) -> Line:
        line = self._sink.write(name, level, raw)
        self._notify(Logged(line))
        return line

    def _restarted(self, name: str, restart: Restart) -> None:
        self._sink.write("supervisor", "WARNING", f"restarting process={name} reason={restart.reason!r}")
        self._notify(Restarting(name, restart.reason, restart.delay_s))

    def _given_up(self, name: str, reason: str) -> None:
        # One that failed five times says the same five times.
        texts = list(dict.fromkeys(line.text.strip() for line in self._processes[name].last_lines))
        said = " | ".join(texts[-3:]) or "it said nothing"
        self._failure = MeshError(f"{name} {reason}: {said} (log: {self._log})")

    def _write_state(self) -> None:
        """Keeps `mesh.json` true: where everything is, for the command line; no secret is in it."""
        if self._stopping:
            return
        info = self.info
        devices = [vars(device) for device in info.options.parsed_devices()]
        state = {
            "gateway_address": info.gateway_address,
            "http_address": info.http_address,
            "pid": os.getpid(),
            "version": version("rouse"),
            "data_dir": str(info.folders.data),
            "api_key_file": str(info.api_key_file or ""),
            "tls_ca": str(info.tls.files.ca) if info.tls is not None else "",
            "nodes": [{"node_id": node, "devices": devices} for node in plan.node_ids(info.options)],
            "processes": [
                {
                    "name": name,
                    "pid": process.pid,
                    "address": process.spec.address,
                    "metrics_address": process.spec.metrics_address,
                }
                for name, process in self._processes.items()
            ],
        }
        write_private(info.folders.data / MESH_FILE, json.dumps(state, indent=2) + "\n")


def _answers(store: Store) -> Callable[[int], Awaitable[bool]]:
    return lambda pid: asyncio.to_thread(store.answers, pid)


def _last_processes(key: str) -> list[str]:
    """Ends what outlived those that should have ended it; returns it, empty unless there is a fault."""
    deadline = time.monotonic() + LAST_PROCESSES_S
    while (rest := tagged(key)) and time.monotonic() < deadline:
        time.sleep(CHECK_PERIOD_S)
    described = [f"{process.pid} {_command(process)}" for process in rest]
    if described:
        LOG.warning("processes outlived the mesh and are killed: %s", "; ".join(described))
        end_leftovers(key)
    return described


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "(ended)"
