# SPDX-License-Identifier: Apache-2.0
"""A private authority in a directory: who may connect to whom, for installations that have none of their own.

DIR/ca.crt, ca.key               the authority; ca.key stays here
DIR/agent-HOST/ …                what netmon.wire.tls_files reads: ca.crt, tls.crt, tls.key
DIR/tokens                       the hashes of what viewers show who have no certificate, for the collector
"""

import contextlib
import hashlib
import ipaddress
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netmon.errors import CertificateError
from netmon.wire.security import Identity, Role
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY, SOON, TOKEN, Token, identity_of, read_tokens

AUTHORITY_KEY = "ca.key"
AUTHORITY_DAYS, DAYS = 3650, 365
_SKEW = timedelta(minutes=10)  # clocks that are late shall take a new certificate, too
_LONGEST_CN = 64


@dataclass(frozen=True)
class Issued:
    """A certificate and its folder."""

    folder: Path
    identity: Identity
    addresses: tuple[str, ...]
    begins: datetime
    ends: datetime

    def due(self, now: datetime) -> bool:
        """Whether it is to be renewed."""
        return self.ends - now < min(SOON, (self.ends - self.begins) / 3)


class Authority:
    """One directory."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        """`make` and `open` make one."""
        self.directory, self.certificate, self._key = directory, certificate, key

    @classmethod
    def make(cls, directory: Path, days: int = AUTHORITY_DAYS) -> "Authority":
        """A new one in a directory that has none. Raises CertificateError."""
        if (directory / AUTHORITY_KEY).exists() or (directory / AUTHORITY).exists():
            raise CertificateError(f"cannot make an authority in {directory}: there is one; choose another directory")
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"netmon authority {now:%Y-%m-%d %H:%M:%S}")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(name, name, key, now, now + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        certificate = builder.sign(key, hashes.SHA256())
        with _writing(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(directory / AUTHORITY_KEY, _pem(key), 0o600)
            _write(directory / AUTHORITY, certificate.public_bytes(Encoding.PEM), 0o644)
        return cls(directory, certificate, key)

    @classmethod
    def open(cls, directory: Path) -> "Authority":
        """One that exists. Raises CertificateError."""
        try:
            certificate = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
            key = load_pem_private_key((directory / AUTHORITY_KEY).read_bytes(), None)
        except OSError as error:
            raise CertificateError(
                f"{directory} is no authority: {error.filename}: {error.strerror}; `netmon certificates {directory} "
                "init` makes one"
            ) from None
        except (ValueError, TypeError):
            raise CertificateError(f"{directory} is no authority: its certificate or key cannot be read") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(f"{directory} is no authority of netmon's: its key is of another kind")
        if certificate.not_valid_after_utc <= datetime.now(timezone.utc):
            raise CertificateError(
                f"the authority in {directory} has expired on {certificate.not_valid_after_utc:%Y-%m-%d}: make "
                "another one, and issue all certificates anew"
            )
        return cls(directory, certificate, key)

    def folder(self, identity: Identity) -> Path:
        """Where its files are, or would be."""
        return self.directory / f"{identity.role.value.partition('/')[0]}-{quote(identity.name, safe='')}"

    def issue(self, identity: Identity, addresses: Sequence[str] = (), days: float = DAYS) -> Issued:
        """A certificate and a new key, in the place of those that are there. Raises CertificateError.

        addresses: names and IP addresses at which others connect to it.
        """
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
        ends = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(identity)[:_LONGEST_CN])])
        names = [x509.UniformResourceIdentifier(identity.uri), *map(_address, addresses)]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        purposes += [ExtendedKeyUsageOID.SERVER_AUTH] if identity.role.listens or addresses else []
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        begins = min(now, ends) - _SKEW
        certificate = (
            _builder(name, self.certificate.subject, key, begins, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder = self.folder(identity)
        with _writing(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            _write(folder / AUTHORITY, self.certificate.public_bytes(Encoding.PEM), 0o644)
            _write(folder / KEY, _pem(key), 0o600)
            _write(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM), 0o644)
        return Issued(folder, identity, tuple(addresses), begins, ends)

    def issued(self) -> Iterator[Issued]:
        """All that are in the directory, by folder. Raises CertificateError."""
        for path in sorted(self.directory.glob(f"*/{CERTIFICATE}")):
            try:
                certificate = x509.load_pem_x509_certificate(path.read_bytes())
            except (OSError, ValueError) as error:
                raise CertificateError(f"cannot read {path}: {error}") from None
            identity = identity_of(certificate)
            if identity is not None:
                begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
                yield Issued(path.parent, identity, _addresses(certificate), begins, ends)

    def renew(self, issued: Issued, days: float = DAYS) -> Issued:
        """The same with a new key and a new end. Raises CertificateError."""
        return self.issue(issued.identity, issued.addresses, days)


def write_secret(path: Path, text: str) -> None:
    """Into a file that only its owner can read. Raises CertificateError."""
    with _writing(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _write(path, text.encode(), 0o600)


def write_public(path: Path, data: bytes) -> None:
    """Into a file that others may read. Raises CertificateError."""
    with _writing(path):
        _write(path, data, 0o644)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise CertificateError(f"{text!r} is neither a name nor an address to connect to") from None


def _addresses(certificate: x509.Certificate) -> tuple[str, ...]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress)]
    return tuple(map(str, found))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by more than it is to be."""
    temporary = path.with_name(f".{path.name}.unfinished")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CertificateError(f"cannot write {error.filename or path}: {error.strerror}") from None


# --- Tokens.

TOKENS = "tokens"


def make_token(authority: Authority, identity: Identity, days: float) -> tuple[Path, datetime]:
    """A folder with a new token, which replaces that of the same name, and its end. Raises CertificateError."""
    if identity.name.split() != [identity.name]:
        raise CertificateError(f"a token cannot be called {identity.name!r}: there is a space in it")
    text, ends = secrets.token_urlsafe(32), datetime.now(timezone.utc) + timedelta(days=days)
    digest = hashlib.sha256(text.encode()).hexdigest()
    kept = [one for one in tokens(authority) if one.identity.name != identity.name]
    made = Token(digest, identity, int(ends.timestamp()))
    folder = authority.directory / f"token-{authority.folder(identity).name.partition('-')[2]}"
    write_secret(folder / TOKEN, f"{text}\n")
    write_public(folder / AUTHORITY, (authority.directory / AUTHORITY).read_bytes())
    write_secret(authority.directory / TOKENS, "".join(one.line for one in (*kept, made)))
    return folder, ends


def tokens(authority: Authority) -> Iterable[Token]:
    """All that there are. Raises CertificateError."""
    path = authority.directory / TOKENS
    return read_tokens(path).values() if path.exists() else ()


# --- What NATS servers have to know of the authority's identities: a part of their configuration.

_HEAD = """# Made by `netmon certificates`: make it anew when hosts come or go, then nats-server --signal reload.
# include it in the servers' configuration, next to jetstream and max_payload: 20MB.
tls {{
  ca_file: "{folder}/{authority}"
  cert_file: "{folder}/{certificate}"
  key_file: "{folder}/{key}"
  verify_and_map: true
  timeout: 5
}}
authorization {{
  users: [
"""


def nats_configuration(identities: Iterable[Identity], folder: Path) -> str:
    """For servers whose certificate is in a folder; of agents, and collectors, which may do everything."""
    users = []
    for identity in identities:
        if identity.role is Role.AGENT:
            users.append(_agent_rights(identity))
        elif identity.role is Role.COLLECTOR:
            users.append(f'    {{ user: "{identity.uri}" }}\n')
    head = _HEAD.format(folder=folder, authority=AUTHORITY, certificate=CERTIFICATE, key=KEY)
    return f"{head}{''.join(users)}  ]\n}}\n"


def _agent_rights(identity: Identity) -> str:
    from netmon.wire.bus import BATCHES, HELLOS, STREAM_BYTES, inbox, token, waiting_subject  # needs nats-py

    host = token(identity.name)
    refused = f"$KV.{HELLOS}.{host}.*.refused"
    publish = (
        f"{BATCHES}.{host}",
        f"$KV.{HELLOS}.{host}.*",
        f"netmon.v1.up.*.{host}.*",
        "netmon.v1.clock.*",
        waiting_subject(identity.name),
        f"$JS.API.DIRECT.GET.KV_{HELLOS}.{STREAM_BYTES}",
        f"$JS.API.DIRECT.GET.KV_{HELLOS}.{refused}",
    )
    subscribe = (f"{inbox(host)}.>", f"netmon.v1.down.{host}.*", refused)
    return (
        f'    {{ user: "{identity.uri}", permissions: {{\n'
        f"        publish: {{ allow: [{_quoted(publish)}] }}\n"
        f"        subscribe: {{ allow: [{_quoted(subscribe)}] }} }} }}\n"
    )


def _quoted(subjects: Iterable[str]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)
