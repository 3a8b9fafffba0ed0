"""rouse up | status | version."""

from __future__ import annotations

import importlib.util
import os
import sys

import click
from rich.markup import escape
from rich.progress_bar import ProgressBar

import rouse
from rouse.cli import text
from rouse.cli.state import State, common, pass_state

VERSION_TIMEOUT_S = 3.0
BAR_WIDTH = 16


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    short_help="Start the whole mesh on this machine.",
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def up(flags: tuple[str, ...]) -> None:
    """Start the whole mesh on this machine; `rouse up --help` lists the flags."""
    if importlib.util.find_spec("rouse_embedded") is None:
        raise rouse.FailedPrecondition(
            "the mesh itself is not installed here, only its client",
            reason="MESH_NOT_INSTALLED",
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "rouse_embedded", "up", *flags])  # noqa: S606 - no shell is meant


@click.command()
@common
@pass_state
def status(state: State) -> None:
    """Services, nodes, devices and what is on them."""
    with state.client() as client:
        found = client.status()
        names = {} if state.json else _names(client)
    if state.json:
        state.emit(found)
        return
    http = f", REST at {escape(found.http_address)}" if found.http_address else ""
    state.say(
        f"mesh [bold]{escape(found.mesh_version)}[/bold] at {escape(client.address)}{http}, "
        f"{text.count(found.functions, 'function')}"
    )
    state.out.print()
    services = text.table("service", "!state", "address")
    for service in found.services:
        services.add_row(service.name, text.state(service.state), service.address)
    state.out.print(services)
    for node in found.nodes:
        state.out.print()
        _node(state, node, names)
    if not found.nodes:
        state.say("no nodes yet")


def _names(client: rouse.Client) -> dict[str, str]:
    """Function names by the id of their active version; devices know versions only."""
    return {f.version.version_id: f.name for f in client.functions() if f.version is not None}


def _node(state: State, node: rouse.Node, names: dict[str, str]) -> None:
    heard = f"  [dim]heard of {text.ago(node.last_heartbeat)}[/dim]" if node.last_heartbeat else ""
    state.say(
        f"[bold]{escape(node.node)}[/bold] {text.state(node.state)}  instances {node.instances}  host memory "
        f"{text.size(node.host_used_bytes)} of {text.size(node.host_capacity_bytes)}{heard}"
    )
    devices = text.table("!device", "!memory", "!", ">swap-ins", ">evictions", "!on it")
    for device in node.devices:
        used = device.mapped_bytes + device.reserved_bytes
        devices.add_row(
            f"{device.name} ({device.kind})",
            ProgressBar(total=max(1, device.capacity_bytes), completed=used, width=BAR_WIDTH),
            f"{text.size(used)} of {text.size(device.capacity_bytes)}",
            str(device.swap_ins),
            str(device.evictions),
            "\n".join(_resident(r, names) for r in device.residents) or "[dim]nothing[/dim]",
        )
    state.out.print(devices)


def _resident(resident: rouse.Residency, names: dict[str, str]) -> str:
    """As `bert 418 MiB`, with its state where it is more than being there."""
    shown = f"{escape(names.get(resident.version_id, resident.version_id))} {text.size(resident.size_bytes)}"
    return shown if resident.state == "DEVICE" else f"{shown} {text.state(resident.state)}"


@click.command()
@common
@pass_state
def version(state: State) -> None:
    """The versions of this client and of the mesh."""
    mesh: str | None = None
    client = state.client(VERSION_TIMEOUT_S)
    with client:
        try:
            mesh = client.status().mesh_version
        except (rouse.Unavailable, rouse.DeadlineExceeded):
            mesh = None
    if state.json:
        state.emit({"client": rouse.__version__, "mesh": mesh, "address": client.address})
        return
    state.say(f"client {rouse.__version__}")
    state.say(f"mesh   {escape(mesh) if mesh else f'not reachable at {escape(client.address)}'}")
