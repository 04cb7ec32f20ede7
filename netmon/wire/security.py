# SPDX-License-Identifier: Apache-2.0
"""What protects a connection: TLS with certificates at both ends, or nothing where nobody else can listen."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from netmon.errors import UsageError
from netmon.options import DIR, option

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
        machine and nobody has asked for it.
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
