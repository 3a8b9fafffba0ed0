"""Where NATS is: the servers of a URL, and whom a connection to them believes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

PLAIN, TLS = "nats", "tls"
DEFAULT_PORT = 4222
FILES = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True)
class Servers:
    """One or more servers of one cluster.

    Attributes:
        urls: for the client library, with user and password.
        shown: host:port of each, for people.
        tls: whether a connection is TLS or none at all.
    """

    urls: tuple[str, ...] = field(repr=False)
    shown: str
    tls: bool
    files: tuple[tuple[str, Path], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Servers:
        """Reads `nats://USER:PASSWORD@HOST:PORT`, or `tls://…?tls_ca=FILE&tls_cert=FILE&tls_key=FILE`; several
        servers with commas between, and the files behind the last one.

        Raises ValueError, whose text holds no password.
        """
        text, _, query = url.partition("?")
        parts = [urlsplit(part if "://" in part else f"{PLAIN}://{part}") for part in text.split(",")]
        schemes = {part.scheme for part in parts}
        if not schemes <= {PLAIN, TLS} or len(schemes) != 1 or not all(part.hostname for part in parts):
            raise ValueError("want a URL as nats://USER:PASSWORD@HOST:PORT or tls://…, all servers of one kind")
        tls = schemes == {TLS}
        files = _files(query)
        if files and not tls:
            raise ValueError(f"{', '.join(files)} need a URL that begins with {TLS}://")
        if ("tls_cert" in files) != ("tls_key" in files):
            raise ValueError("tls_cert and tls_key: want both or none")
        shown = ",".join(f"{part.hostname}:{_port(part)}" for part in parts)
        return cls(tuple(part.geturl() for part in parts), shown, tls, tuple(files.items()))

    def context(self) -> ssl.SSLContext | None:
        """Whom a connection believes: `tls_ca`, else the machine's authorities, and the host's name has to be in the
        certificate; shows `tls_cert`. None without TLS. Reads the files anew, so that rotated ones are taken.

        Raises OSError, ssl.SSLError.
        """
        if not self.tls:
            return None
        files = dict(self.files)
        context = ssl.create_default_context(cafile=files.get("tls_ca"))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if "tls_cert" in files:
            # A key that needs a password would ask for it on the terminal.
            context.load_cert_chain(files["tls_cert"], files["tls_key"], password=lambda: b"")
        return context


def _files(query: str) -> dict[str, Path]:
    given = parse_qsl(query, keep_blank_values=True)
    unknown = [name for name, _ in given if name not in FILES]
    if unknown:
        raise ValueError(f"{unknown[0][:40]} is not known; a NATS URL takes {', '.join(FILES)}")
    return {name: Path(value) for name, value in given}


def _port(part: SplitResult) -> int:
    return part.port or DEFAULT_PORT
