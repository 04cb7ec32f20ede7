# SPDX-License-Identifier: Apache-2.0
"""What protects a connection: TLS with certificates at both ends, or nothing where nobody else can listen."""

import hashlib
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from netmon.errors import UsageError, WireError
from netmon.options import DIR, option
from netmon.wire.limits import MAX_HOST

RESOLVERS = ("dns:///", "dns:", "ipv4:", "ipv6:")
"""That an address may begin with, as gRPC takes it."""


@dataclass(frozen=True)
class Security:
    """What the user has said. The default reaches this machine only. The folder is read anew for each connection."""

    tls: Path | None = option(
        None,
        "folder with ca.crt, tls.crt and tls.key, to encrypt and to authenticate (see `netmon certificates`). Without "
        "it, connections stay on this machine",
        **DIR,
    )
    insecure: bool = option(
        False, "allow plaintext to other machines: only in a network where nobody else can listen or send"
    )

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.tls and self.insecure:
            raise UsageError("--tls and --insecure contradict each other: give one of them")

    def folder(self, address: str, action: str) -> Path | None:
        """The folder for a connection with this address; None: plaintext.

        action: what is attempted, for the error: "connect to". Raises UsageError where plaintext would leave the
        machine without an option that allows it.
        """
        if is_unix(address):  # who may use it is up to the file's mode
            return None
        if self.tls is None and not (self.insecure or is_local(address)):
            raise UsageError(
                f"cannot {action} {address} without encryption: give --tls DIR (`netmon certificates` makes one), or "
                "--insecure on a network where nobody else can listen or send"
            )
        return self.tls

    def exposed(self, *addresses: str) -> bool:
        """Whether one of these addresses is of another machine, and what goes there can be read by others."""
        return self.tls is None and not all(is_local(address) for address in addresses)


PLAIN = Security()


def is_unix(address: str) -> bool:
    """Whether an address as gRPC takes it is a Unix socket's."""
    return address.startswith(("unix:", "unix-abstract:"))


def is_local(address: str) -> bool:
    """Whether only this machine can be at the other end of unix:PATH, HOST:PORT or scheme://[USER@]HOST:PORT.

    A name other than localhost may be anybody's.
    """
    if is_unix(address):
        return True
    for start in RESOLVERS:
        address = address.removeprefix(start)
    index = address.rpartition("://")[2].rpartition("@")[2]
    host = index[1:].partition("]")[0] if index.startswith("[") else index.rpartition(":")[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_servers(text: str) -> tuple[str, ...]:
    """nats://HOST:PORT,…; the scheme and the port may be left out; of an empty text none. Raises UsageError."""
    servers = tuple(
        server if "://" in server else f"nats://{server}" for server in map(str.strip, text.split(",")) if server
    )
    for server in servers:
        parts = urlsplit(server)
        if parts.scheme not in ("nats", "tls") or not parts.hostname:
            raise UsageError(f"--bus {server} is no server's address; give nats://HOST:PORT, or tls://HOST:PORT")
    if text and not servers:
        raise UsageError("--bus names no server; give nats://HOST:PORT")
    return servers


# --- Who is at the other end of a connection, and what it may do: a URI among a certificate's alternative names.
#
#     netmon://agent/HOST            sends what belongs to this host, and nothing else
#     netmon://collector/NAME        takes it in; on a bus it takes in every host's
#     netmon://bus/NAME              a NATS server
#     netmon://viewer/full/NAME      sees everything, and may request full resolution
#     netmon://viewer/jobs/NAME      sees jobs, classes and rates: no addresses, no processes
#
# HOST and NAME are percent-encoded.

_PROVEN = "k"  # how the names of sessions begin that are made of a secret; older agents' do not
_DIGEST_BYTES = 12
MAX_PROOF = 64
_SCHEME = "netmon://"


class Role(Enum):
    """What an identity is for; the value is the way to its name in the URI."""

    AGENT = "agent"
    COLLECTOR = "collector"
    BUS = "bus"
    FULL = "viewer/full"
    JOBS = "viewer/jobs"

    @property
    def listens(self) -> bool:
        return self in (Role.COLLECTOR, Role.BUS)


@dataclass(frozen=True)
class Identity:
    """One who may connect. name: of an agent, its host."""

    role: Role
    name: str

    @property
    def uri(self) -> str:
        return f"{_SCHEME}{self.role.value}/{quote(self.name, safe='')}"

    def __str__(self) -> str:
        """For a sentence: agent h0."""
        words = {Role.FULL: "viewer", Role.JOBS: "viewer"}
        return f"{words.get(self.role, self.role.value)} {self.name}"


def checked(role: Role, name: str) -> Identity:
    """An identity of that name. Raises WireError where nobody can be called so."""
    if not name.isprintable() or name in ("", ".", "..") or "/" in name or len(quote(name, safe="")) > MAX_HOST:
        raise WireError(f"{name[:MAX_HOST]!r} cannot name {role.value}")
    return Identity(role, name)


def read_identity(names: Iterable[str]) -> Identity | None:
    """The identity among a certificate's alternative names; None: there is none, or more than one. Does not raise."""
    found = {identity for name in names if (identity := _read(name))}
    return found.pop() if len(found) == 1 else None


def _read(uri: str) -> Identity | None:
    for role in Role:
        start = f"{_SCHEME}{role.value}/"
        if uri.startswith(start):
            try:
                identity = checked(role, unquote(uri.removeprefix(start), errors="strict"))
            except (WireError, UnicodeDecodeError):
                return None
            return identity if identity.uri == uri else None
    return None


def new_session() -> tuple[str, str]:
    """A session's name, and what proves that it is ours."""
    proof = secrets.token_hex(16)
    return _name_of(proof), proof


def proves(session: str, proof: str) -> bool:
    """Whether it is the session's own agent that says so, as far as its name can show."""
    return not _is_proven(session) or secrets.compare_digest(_name_of(proof[:MAX_PROOF]), session)


def _is_proven(session: str) -> bool:
    return len(session) == 1 + 2 * _DIGEST_BYTES and session.startswith(_PROVEN)


def _name_of(proof: str) -> str:
    digest = hashlib.blake2b(proof.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES)
    return _PROVEN + digest.hexdigest()
