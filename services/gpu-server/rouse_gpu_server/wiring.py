"""How a node's devices are connected, from a file: who shares a switch, who has a direct link, and how fast each is.

[[switch]]
devices = ["gpu0", "gpu1"]
rate = "3GB"

[[device]]
name = "gpu0"
rate = "2GB"

[[link]]
devices = ["gpu0", "gpu2"]
rate = "6GB"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rouse_common.config import ConfigError, parse_size
from rouse_policy.topology import Topology

SETTING = "--topology"
MAX_BYTES = 1 << 20
KEYS = {"switch": ("devices", "rate"), "device": ("name", "rate"), "link": ("devices", "rate")}


@dataclass(frozen=True)
class Wiring:
    """What the file says; rates in bytes a second.

    Args:
        topology: switches, and direct links with their rates.
        switch_rates: of the links that switches share to host memory, in the topology's order; None: no limit.
        device_rates: of devices' own links to host memory; no limit where a device is missing.
    """

    topology: Topology = field(default_factory=Topology)
    switch_rates: tuple[float | None, ...] = ()
    device_rates: Mapping[str, float] = field(default_factory=dict)


def read(path: Path, devices: Sequence[str]) -> Wiring:
    """The wiring of these devices. Raises ConfigError, which names the file and what does not fit."""
    if not path.is_absolute():
        raise ConfigError(f"{SETTING}={path}: want an absolute path")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{SETTING}={path}: has {path.stat().st_size} B; want at most {MAX_BYTES}")
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{SETTING}={path}: cannot be read as TOML: {error}") from error
    try:
        return parse(content, devices)
    except ValueError as error:
        raise ConfigError(f"{SETTING}={path}: {error}") from error


def parse(content: Mapping[str, Any], devices: Sequence[str]) -> Wiring:
    """The wiring that a file's content describes. Raises ValueError."""
    for name in content:
        if name not in KEYS:
            raise ValueError(f"unknown table '{name}'; known: {', '.join(f'[[{key}]]' for key in KEYS)}")
    switches = _rows(content, "switch")
    links: dict[tuple[str, str], float] = {}
    for number, row in enumerate(_rows(content, "link"), 1):
        what = f"link {number}"
        one, other = sorted(_names(row, what, 2))
        key = (one, other)
        if one == other or key in links:
            raise ValueError(f"{what}: {one}-{other}: want two devices that no other link connects")
        links[key] = _rate(row, what)
    own: dict[str, float] = {}
    for number, row in enumerate(_rows(content, "device"), 1):
        device = row.get("name")
        if not isinstance(device, str) or device not in devices or device in own:
            raise ValueError(f"device {number}: name = {device!r}; want one of {', '.join(devices)}, each once")
        own[device] = _rate(row, f"device {number}")
    topology = Topology(tuple(_names(row, f"switch {n}", 1) for n, row in enumerate(switches, 1)), links)
    topology.check(devices)
    rates = tuple(_rate(row, f"switch {n}") if "rate" in row else None for n, row in enumerate(switches, 1))
    return Wiring(topology, rates, own)


def write(wiring: Wiring) -> str:
    """The file that says so; rates as whole bytes a second."""
    lines: list[str] = []
    for number, group in enumerate(wiring.topology.switches):
        rate = wiring.switch_rates[number] if number < len(wiring.switch_rates) else None
        lines += ["[[switch]]", f"devices = {_list(group)}", *([] if rate is None else [f"rate = {rate:.0f}"])]
    for device, rate in wiring.device_rates.items():
        lines += ["[[device]]", f"name = {json.dumps(device)}", f"rate = {rate:.0f}"]
    for pair, rate in wiring.topology.links.items():
        lines += ["[[link]]", f"devices = {_list(pair)}", f"rate = {rate:.0f}"]
    return "".join(f"{line}\n" for line in lines)


def _list(names: Sequence[str]) -> str:
    # A list of strings in JSON is one in TOML.
    return json.dumps(list(names))


def _rows(content: Mapping[str, Any], table: str) -> list[Mapping[str, Any]]:
    rows = content.get(table, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"'{table}': want tables [[{table}]]")
    for number, row in enumerate(rows, 1):
        for key in row:
            if key not in KEYS[table]:
                raise ValueError(f"{table} {number}: unknown key '{key}'; known: {', '.join(KEYS[table])}")
    return rows


def _names(row: Mapping[str, Any], what: str, low: int) -> tuple[str, ...]:
    names = row.get("devices")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'{what}: devices = {names!r}; want names of devices, as ["gpu0", "gpu1"]')
    if len(names) < low or (low == 2 and len(names) != 2):
        raise ValueError(f"{what}: names {len(names)} devices; want {'two' if low == 2 else 'at least one'}")
    return tuple(names)


def _rate(row: Mapping[str, Any], what: str) -> float:
    rate = row.get("rate")
    if isinstance(rate, int | str) and not isinstance(rate, bool):
        return float(parse_size(str(rate), f"{what}: rate"))
    raise ValueError(f'{what}: rate = {rate!r}; want bytes a second, as "2GB" or 2000000000')
