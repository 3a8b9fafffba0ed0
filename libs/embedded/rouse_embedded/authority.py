"""The certificates of a mesh on one machine: an authority of its own, and one certificate a service."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rouse_common.config import parse_address
from rouse_common.tls import MeshTls, TlsFiles
from rouse_embedded.ports import ANY_HOST
from rouse_embedded.stores.base import write_private

AUTHORITY_DAYS, SERVICE_DAYS = 3650, 365
# A certificate that ends sooner is made anew at the next start.
RENEW_DAYS = 30
# Clocks differ.
BEFORE = timedelta(hours=1)
# What supervises the services shows a certificate, too.
SUPERVISOR = "supervisor"
LOCAL = ("localhost", "127.0.0.1", "::1")


class Authority:
    """Keeps everything in one folder, for its owner alone.

    Args:
        folder: made if absent.
        listen: the gateway's host:port, whose host its certificate names as well.
    """

    def __init__(self, folder: Path, listen: str) -> None:
        self._folder = folder
        host = parse_address(listen, "--listen")[0]
        own = [] if host in ANY_HOST else [host.strip("[]")]
        self._names = list(dict.fromkeys([*LOCAL, socket.gethostname(), *own]))

    @property
    def ca(self) -> Path:
        """The authority's certificate, which clients believe."""
        return self._folder / "ca.crt"

    def files(self, service: str) -> TlsFiles:
        """What `prepare` made for a service."""
        return TlsFiles(self._folder / f"{service}.crt", self._folder / f"{service}.key", self.ca)

    def tls(self) -> MeshTls:
        """The supervisor's own."""
        return MeshTls(self.files(SUPERVISOR))

    def prepare(self, services: Iterable[str], now: datetime | None = None) -> list[str]:
        """Makes what is absent, expires within RENEW_DAYS or names other hosts; returns whose are new.

        Raises OSError, ValueError where what is in the folder cannot be read.
        """
        moment = now or datetime.now(UTC)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        made = []
        if not self._holds(self.ca, moment):
            self._make_authority(moment)
            made.append("ca")
        authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
        key = serialization.load_pem_private_key((self._folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        for service in (*services, SUPERVISOR):
            if made[:1] == ["ca"] or not self._fits(service, moment):
                self._make(service, authority, key, moment)
                made.append(service)
        return made

    def _holds(self, path: Path, now: datetime) -> bool:
        """Whether a certificate is there and good for a while."""
        if not path.exists() or not path.with_suffix(".key").exists():
            return False
        found = x509.load_pem_x509_certificate(path.read_bytes())
        return found.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)

    def _fits(self, service: str, now: datetime) -> bool:
        path = self.files(service).cert
        if not self._holds(path, now):
            return False
        found = x509.load_pem_x509_certificate(path.read_bytes())
        return found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == self._san(service)

    def _san(self, service: str) -> x509.SubjectAlternativeName:
        return x509.SubjectAlternativeName([_general_name(name) for name in (service, *self._names)])

    def _make_authority(self, now: datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Rouse mesh on this machine")
        builder = _builder(name, name, key, now, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(sign=True), critical=True)
        self._write("ca", key, builder.sign(key, hashes.SHA256()))

    def _make(
        self, service: str, authority: x509.Certificate, signer: ec.EllipticCurvePrivateKey, now: datetime
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(service), authority.subject, key, now, SERVICE_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(sign=False), critical=True)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(self._san(service), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(issuer, critical=False)
        self._write(service, key, builder.sign(signer, hashes.SHA256()))

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(self._folder / f"{name}.key", private.decode())
        write_private(self._folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM).decode())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - BEFORE).not_valid_after(now + timedelta(days=days))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=sign, crl_sign=sign, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def settings(files: TlsFiles | None) -> dict[str, str]:
    """The settings that give a service its files."""
    return {name: str(path) for name, path in files.paths().items()} if files is not None else {}


def services_of(names: Sequence[str]) -> list[str]:
    """Services of process names, `node-router@node0` once for all nodes."""
    return list(dict.fromkeys(name.partition("@")[0] for name in names))
