# SPDX-License-Identifier: Apache-2.0
"""What protects a connection: TLS with certificates at both ends, or nothing where nobody else can listen."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import UsageError

_RESOLVERS = ("dns:///", "dns:", "ipv4:", "ipv6:")


@dataclass(frozen=True)
class Security:
    """What the user has said. The default reaches this machine only."""

    tls: Path | None = None
    """The folder of ca.crt, tls.crt and tls.key (or token), read anew for each connection."""

    insecure: bool = False
    """Plaintext to other machines is meant."""

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
    for start in _RESOLVERS:
        address = address.removeprefix(start)
    index = address.rpartition("://")[2].rpartition("@")[2]
    host = index[1:].partition("]")[0] if index.startswith("[") else index.rpartition(":")[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
