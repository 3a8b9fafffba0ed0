"""Configuration of a service: defaults, then environment, then flags; one check that names what is bad.

A service declares a frozen dataclass whose fields are made by :func:`option`::

    @dataclass(frozen=True)
    class GatewayConfig(ServiceConfig):
        cluster: str = option("127.0.0.1:7001", "address of cluster-manager")
        max_held: int = option(1000, "requests held while functions wake", low=1, high=100_000)

    config = load(GatewayConfig, "gateway", sys.argv[1:], os.environ)

reads ``ROUSE_GATEWAY_CLUSTER`` and ``--cluster``. An unknown flag, an unknown ``ROUSE_GATEWAY_…``
variable or a value out of range ends the start with a line that says which, what and the range.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_type_hints

if TYPE_CHECKING:
    from rouse_common.tls import MeshTls

C = TypeVar("C")


class ConfigError(ValueError):
    """A value that cannot be used; the text names the setting, the value and what is allowed."""


def option(
    default: Any, help: str, *, low: float | None = None, high: float | None = None, choices: Sequence[str] = ()
) -> Any:
    """A setting: its default, what it means with its unit, and its range or choices.

    A tuple default makes a repeatable flag; its environment variable is split at commas.
    """
    return dataclasses.field(
        default=default, metadata={"help": help, "low": low, "high": high, "choices": tuple(choices)}
    )


@dataclass(frozen=True)
class ServiceConfig:
    """What every service can be told."""

    listen: str = option("127.0.0.1:0", "address to serve gRPC on, host:port; port 0 takes a free one")
    metrics_listen: str = option("", "address to serve Prometheus metrics on, host:port; empty: none")
    log_level: str = option("INFO", "lowest level that is logged", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    otlp_endpoint: str = option("", "OTLP/gRPC endpoint that spans are exported to; empty: none")
    trace_dir: str = option("", "folder that spans are kept in as JSON lines; empty: none")
    max_message_mib: int = option(64, "largest gRPC message, MiB", low=1, high=1024)
    drain_s: float = option(5.0, "how long a stop waits for calls in flight, seconds", low=0, high=600)
    tls_cert: str = option("", "PEM file of this service's certificate; with tls_key and tls_ca, all or none")
    tls_key: str = option("", "PEM file of the certificate's private key, for its owner and group alone")
    tls_ca: str = option("", "PEM file of the authority that signed the certificates of the mesh's services")

    @property
    def tls(self) -> MeshTls | None:
        """How services prove themselves to each other; None: plain connections. Raises ConfigError."""
        from rouse_common.tls import MeshTls, files_from

        files = files_from(self.tls_cert, self.tls_key, self.tls_ca)
        return MeshTls(files) if files is not None else None

    def check_tls(self) -> None:
        """Raises ConfigError where the certificates are missing, expired, not ours or not private."""
        if (tls := self.tls) is not None:
            tls.check()


class _Parser(argparse.ArgumentParser):
    """Says what is wrong by ConfigError, in one line, instead of printing how it is used."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` lists the flags")


def load(cls: type[C], service: str, argv: Sequence[str], environ: Mapping[str, str]) -> C:
    """Builds `cls` from defaults, environment and flags. Raises ConfigError; `--help` exits with 0."""
    prefix = f"ROUSE_{service.upper().replace('-', '_')}_"
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    parser = _Parser(prog=f"rouse-{service}", allow_abbrev=False)
    for name, field in fields.items():
        repeat: dict[str, Any] = {"action": "append"} if isinstance(field.default, tuple) else {}
        shown = field.default if field.default not in ("", ()) else "none"
        text = f"{field.metadata['help']} (default: {shown}; environment: {prefix}{name.upper()})"
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, default=argparse.SUPPRESS, metavar="VALUE",
            help=text.replace("%", "%%"), **repeat,
        )  # fmt: skip
    values: dict[str, Any] = {}
    for key, text in environ.items():
        if key.startswith(prefix):
            name = key[len(prefix) :].lower()
            if name not in fields:
                raise ConfigError(f"unknown setting {key}; known: {', '.join(prefix + n.upper() for n in fields)}")
            values[name] = _parse(key, text, hints[name], fields[name])
    flags, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ConfigError(f"unknown flag {unknown[0]}; `rouse-{service} --help` lists the flags")
    for name, text in vars(flags).items():
        values[name] = _parse(f"--{name.replace('_', '-')}", text, hints[name], fields[name])
    config = cls(**values)
    validate = getattr(config, "validate", None)
    if validate is not None:
        validate()
    return config


def _parse(key: str, text: Any, kind: Any, field: dataclasses.Field[Any]) -> Any:
    if isinstance(field.default, tuple):
        parts = text if isinstance(text, list) else [p for p in text.split(",") if p]
        return tuple(parts)
    value: Any = text
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise ConfigError(f"{key}={text}: want true or false")
        return text.lower() in ("true", "1", "yes")
    if kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            raise ConfigError(f"{key}={text}: want {'a whole number' if kind is int else 'a number'}") from None
        if not math.isfinite(value):
            raise ConfigError(f"{key}={text}: want a finite number")
        low, high = field.metadata["low"], field.metadata["high"]
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(f"{key}={text}: want {low} to {high}")
    if field.metadata["choices"] and value not in field.metadata["choices"]:
        raise ConfigError(f"{key}={text}: want one of {', '.join(field.metadata['choices'])}")
    return value


def parse_address(text: str, what: str) -> tuple[str, int]:
    """'host:port' as its parts. Raises ConfigError naming `what`."""
    host, separator, port = text.rpartition(":")
    # ASCII alone: int() takes digits of every script, gRPC does not.
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{what}={text}: want host:port")
    return host, int(port)


def parse_ports(text: str) -> tuple[int, ...] | None:
    """'any' as None, 'none' as no port, '53,443' as those. Raises ValueError."""
    if text == "any":
        return None
    if text == "none":
        return ()
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 65536 for word in words) or len(words) > 64:
        raise ValueError("want any, none, or up to 64 ports as 53,443")
    return tuple(int(word) for word in words)


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"K": 2**10, "KIB": 2**10, "M": 2**20, "MIB": 2**20, "G": 2**30, "GIB": 2**30, "T": 2**40, "TIB": 2**40}


SIZE = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[A-Za-z]*)", re.ASCII)
MAX_SIZE = (1 << 63) - 1


def parse_size(text: str, what: str) -> int:
    """'512MiB', '2G' or '1000000' as bytes. Raises ConfigError naming `what`."""
    found = SIZE.fullmatch(text)
    unit = UNITS.get((found["unit"] or "B").upper()) if found is not None else None
    if found is None or unit is None:
        raise ConfigError(f"{what}={text}: want a size as 512MiB, 2GiB or 1000000")
    size = int(Decimal(found["number"]) * unit)
    if not 0 < size <= MAX_SIZE:
        raise ConfigError(f"{what}={text}: want a size above zero and below 8 EiB")
    return size
