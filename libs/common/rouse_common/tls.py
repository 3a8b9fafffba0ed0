"""TLS between the services of a mesh and towards its clients: what a process proves itself with, and whom it believes.

Between services both sides show a certificate that the mesh's authority signed, and the caller checks that the
callee's names the host that it dialled. The mesh's public front shows a certificate and asks for none. Unix sockets
stay plain: their folders are for one user only.

Files are read again when they change. Servers, and links in both directions, use what is new from the next
connection on; a gRPC channel keeps the certificate that it was made with for as long as it lives.
"""

from __future__ import annotations

import logging
import ssl
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import grpc

from rouse_common.config import ConfigError

LOG = logging.getLogger(__name__)
OTHERS = stat.S_IROTH | stat.S_IWOTH


class ServerTls(Protocol):
    """What a server of the mesh shows to those who connect."""

    def server_credentials(self) -> grpc.ServerCredentials: ...

    def server_context(self) -> ssl.SSLContext: ...


@dataclass(frozen=True)
class TlsFiles:
    """PEM files.

    Attributes:
        cert: the certificate, followed by those between it and the authority, if any.
        key: its private key, unencrypted; for its owner and group alone.
        ca: the authorities that are believed; None where nobody has to prove anything.
        setting: name of the settings, as `tls`, for messages.
    """

    cert: Path
    key: Path
    ca: Path | None
    setting: str = "tls"

    def paths(self) -> dict[str, Path]:
        """By the setting that names each."""
        named = {f"{self.setting}_cert": self.cert, f"{self.setting}_key": self.key}
        return named | ({f"{self.setting}_ca": self.ca} if self.ca is not None else {})

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file does. Raises OSError."""
        found = [path.stat() for path in self.paths().values()]
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)

    def check(self, now: datetime | None = None) -> None:
        """Raises ConfigError naming the setting, the file and what is wrong with it."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        contents = {name: _read(name, path) for name, path in self.paths().items()}
        _check_private(f"{self.setting}_key", self.key)
        moment = now or datetime.now(UTC)
        chains: dict[str, list[x509.Certificate]] = {}
        for name, path in self.paths().items():
            if name == f"{self.setting}_key":
                continue
            try:
                chains[name] = x509.load_pem_x509_certificates(contents[name])
            except ValueError as error:
                raise ConfigError(f"{name}={path}: holds no PEM certificates: {error}") from None
            for certificate in chains[name]:
                _check_valid(name, path, certificate, moment)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{self.setting}_key={self.key}: is not the private key, unencrypted, of {self.cert}: {error}"
            ) from None
        if self.ca is None:
            return
        leaf, *between = chains[f"{self.setting}_cert"]
        for issuer in (*between, *chains[f"{self.setting}_ca"]):
            try:
                leaf.verify_directly_issued_by(issuer)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return
        raise ConfigError(f"{self.setting}_cert={self.cert}: is not signed by an authority in {self.ca}")


class MeshTls:
    """Mutual TLS between services; see the module."""

    def __init__(self, files: TlsFiles) -> None:
        assert files.ca is not None
        self.files = files

    def check(self) -> None:
        """Raises ConfigError where the files cannot be used."""
        self.files.check()

    def server_credentials(self) -> grpc.ServerCredentials:
        """For gRPC servers: shows the certificate, and asks callers for theirs."""
        return _server_credentials(self.files, mutual=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For gRPC channels: shows the certificate, and believes the authority alone. Raises OSError."""
        read = _Material.read(self.files)
        return grpc.ssl_channel_credentials(read.ca, read.key, read.cert)

    def server_context(self) -> ssl.SSLContext:
        """For links: shows the certificate, and asks callers for theirs."""
        context = _Context.make(ssl.PROTOCOL_TLS_SERVER, self.files)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """For links: shows the certificate, and checks the other's authority and name."""
        return _Context.make(ssl.PROTOCOL_TLS_CLIENT, self.files)


class PublicTls:
    """What the front shows to clients, who prove themselves by other means."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files

    def check(self) -> None:
        """Raises ConfigError where the files cannot be used."""
        self.files.check()

    def server_credentials(self) -> grpc.ServerCredentials:
        return _server_credentials(self.files, mutual=False)

    def server_context(self) -> ssl.SSLContext:
        return _Context.make(ssl.PROTOCOL_TLS_SERVER, self.files)


def files_from(cert: str, key: str, ca: str, setting: str = "tls") -> TlsFiles | None:
    """The files of three settings; None where none is set. Raises ConfigError where one is missing."""
    given = {f"{setting}_cert": cert, f"{setting}_key": key, f"{setting}_ca": ca}
    if not any(given.values()):
        return None
    for name, text in given.items():
        if not text:
            raise ConfigError(
                f"{name} is not set, but {', '.join(n for n, t in given.items() if t)} is; want all three"
            )
    return TlsFiles(Path(cert), Path(key), Path(ca), setting)


@dataclass(frozen=True)
class _Material:
    cert: bytes
    key: bytes
    ca: bytes | None

    @classmethod
    def read(cls, files: TlsFiles) -> _Material:
        """Raises OSError."""
        ca = files.ca.read_bytes() if files.ca is not None else None
        return cls(files.cert.read_bytes(), files.key.read_bytes(), ca)

    def for_server(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], root_certificates=self.ca)


def _server_credentials(files: TlsFiles, *, mutual: bool) -> grpc.ServerCredentials:
    """Raises OSError. gRPC asks for news at every handshake, from threads of its own."""
    changes = _Changes(files)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        found: list[grpc.ServerCertificateConfiguration] = []
        changes.take(lambda: found.append(_Material.read(files).for_server()))
        return found[0] if found else None

    first = _Material.read(files).for_server()
    return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=mutual)


class _Changes:
    """Notices that files changed, and keeps to what worked where the new ones cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = files.stamp()
        self._lock = threading.Lock()

    def take(self, use: Callable[[], object]) -> None:
        """Calls `use` where there is something new that fits together. Never raises for bad files."""
        with self._lock:
            try:
                stamp = self._files.stamp()
                if stamp == self._seen:
                    return
                self._files.check()
                use()
            except (OSError, ConfigError) as error:
                # Perhaps half of it is written; the next connection looks again.
                LOG.warning("the new certificate is not used: %s", error)
                return
            self._seen = stamp
        LOG.info("certificate read again from %s", self._files.cert)


class _Context(ssl.SSLContext):
    """An SSLContext that reads its files again when they changed, before the next connection."""

    _files: TlsFiles
    _changes: _Changes

    @classmethod
    def make(cls, protocol: int, files: TlsFiles) -> _Context:
        """Raises OSError, ssl.SSLError."""
        context = cls(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context._files, context._changes = files, _Changes(files)
        context._load()
        return context

    def _load(self) -> None:
        self.load_cert_chain(self._files.cert, self._files.key, password=_no_password)
        if self._files.ca is not None:
            self.load_verify_locations(self._files.ca)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """As asyncio and uvloop call it for every connection."""
        self._changes.take(self._load)
        return super().wrap_bio(*arguments, **options)


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted")


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={path}: cannot be read: {error.strerror}") from None


def _check_private(name: str, path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OTHERS:
        raise ConfigError(f"{name}={path}: every user can reach the private key (mode {mode:04o}); chmod 600 it")


def _check_valid(name: str, path: Path, certificate: Any, now: datetime) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    subject = certificate.subject.rfc4514_string()
    if now > ends:
        raise ConfigError(f"{name}={path}: the certificate of {subject} expired at {ends:%Y-%m-%d %H:%M} UTC")
    if now < begins:
        raise ConfigError(f"{name}={path}: the certificate of {subject} is valid from {begins:%Y-%m-%d %H:%M} UTC only")
