"""The command line of the embedded mesh: flags, signals, exit code."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rouse_common import logs
from rouse_common.config import ConfigError
from rouse_embedded.display import Display
from rouse_embedded.folders import MeshLocked
from rouse_embedded.mesh import EmbeddedMesh, MeshError
from rouse_embedded.options import MeshOptions, default_data_dir
from rouse_embedded.stores import StoreError

STOPPED, FAILED, BAD_FLAGS, LOCKED, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES = "exit codes: 0 stopped, 1 could not start, 2 bad flags, 3 a mesh runs on the data folder, 130 interrupted"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `rouse up --help` lists the flags")


def parse(argv: Sequence[str]) -> tuple[MeshOptions, bool]:
    """The options, and whether every log line is wanted. Raises ConfigError; --help exits."""
    parser = _Parser(prog="rouse", description="A serverless inference mesh on this machine.", allow_abbrev=False)
    up = parser.add_subparsers(dest="command", required=True).add_parser(
        "up", help="run the mesh until Ctrl-C", epilog=EXIT_CODES, allow_abbrev=False
    )
    add = up.add_argument
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="what is kept between runs (default: $ROUSE_DATA_DIR, else ~/.rouse)",
    )
    add("--nodes", type=int, default=1, metavar="N", help="nodes to run (default: 1)")
    add(
        "--device", action="append", default=[], metavar="KIND:NAME=SIZE",
        help="device of every node, repeatable (default: host:gpu0=2GiB, less on a small machine)",
    )  # fmt: skip
    add("--host-memory", default="", metavar="SIZE", help="a node's memory for sleeping models (default: up to 4GiB)")
    add(
        "--listen", default="", metavar="HOST:PORT",
        help="address of the gateway (default: 127.0.0.1:8001, or a free port where that is taken)",
    )  # fmt: skip
    add(
        "--http", default="", metavar="HOST:PORT",
        help="address of the gateway's REST API (default: 127.0.0.1:8000, or a free port where that is taken; "
        "off: none)",
    )  # fmt: skip
    add("--metrics", action="store_true", help="serve Prometheus metrics of every service")
    add("--otlp-endpoint", default="", metavar="URL", help="export spans there by OTLP/gRPC")
    add("--tls", action="store_true", help="TLS everywhere, with certificates made for this mesh in its data folder")
    add("--auth", action="store_true", help="callers need an API key; the command line here finds the first one itself")
    add(
        "--executors", action="store_true",
        help='a native executor for every device, for functions with execution = "rouse"; needs the native core',
    )  # fmt: skip
    add("--verbose", action="store_true", help="show every log line, from level DEBUG")
    flags = parser.parse_args(argv)
    options = MeshOptions(
        data_dir=(flags.data_dir or default_data_dir()).expanduser(),
        nodes=flags.nodes,
        devices=tuple(flags.device),
        host_memory=flags.host_memory,
        listen=flags.listen,
        http_listen=flags.http,
        metrics=flags.metrics,
        otlp_endpoint=flags.otlp_endpoint,
        tls=flags.tls,
        auth=flags.auth,
        executors=flags.executors,
        log_level="DEBUG" if flags.verbose else "INFO",
    )
    options.validate()
    return options, flags.verbose


def main(argv: Sequence[str]) -> int:
    """Runs the mesh until SIGINT or SIGTERM; a second one kills it at once. Returns the exit code."""
    try:
        options, verbose = parse(argv)
    except ConfigError as error:
        print(f"rouse up: {error}", file=sys.stderr)
        return BAD_FLAGS
    logs.configure("supervisor", "WARNING")
    with Display(verbose=verbose) as display:
        try:
            return asyncio.run(_up(options, display))
        except MeshLocked as error:
            display.error(str(error))
            return LOCKED
        except (MeshError, StoreError, OSError) as error:
            display.error(str(error))
            return FAILED


async def _up(options: MeshOptions, display: Display) -> int:
    stopping = asyncio.Event()
    mesh = EmbeddedMesh(options, notify=display.notice)

    def stop() -> None:
        if stopping.is_set():
            display.note("stopping at once")
            mesh.hurry()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    async with mesh:
        ready = await mesh.wait_ready(abort=stopping)
        if ready:
            display.ready(mesh.info)
            await stopping.wait()
        display.stopping()
    display.stopped()
    return STOPPED if ready else INTERRUPTED
