# SPDX-License-Identifier: Apache-2.0
"""One end of a connection, as text and as the kernel's bytes."""

import socket
import struct
from functools import lru_cache
from typing import NamedTuple

MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address in IPv6's clothes


class Endpoint(NamedTuple):
    """A flow as its local end sees it."""

    protocol: int
    local: str
    local_port: int
    remote: str
    remote_port: int

    def reversed(self) -> "Endpoint":
        return Endpoint(self.protocol, self.remote, self.remote_port, self.local, self.local_port)

    def listening(self) -> "Endpoint":
        """As the kernel is asked who takes connections to the local end."""
        return self._replace(remote="::" if ":" in self.local else "0.0.0.0", remote_port=0)


@lru_cache(maxsize=4096)
def packed_address(text: str) -> bytes:
    """16 bytes; IPv4 as IPv4-mapped. Raises OSError for what is no address."""
    if ":" in text:
        return socket.inet_pton(socket.AF_INET6, text)
    return MAPPED + socket.inet_pton(socket.AF_INET, text)


def packed(endpoint: Endpoint) -> bytes:
    """Both addresses and ports as netmon_birth begins: 36 bytes."""
    ports = struct.pack(">HH", endpoint.local_port, endpoint.remote_port)
    return packed_address(endpoint.local) + packed_address(endpoint.remote) + ports


def address_text(raw: bytes) -> str:
    """4 or 16 bytes → text; an IPv4-mapped address as IPv4."""
    if len(raw) == 16 and raw.startswith(MAPPED):
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
