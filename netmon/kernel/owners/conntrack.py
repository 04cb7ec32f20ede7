# SPDX-License-Identifier: Apache-2.0
"""What an address translation (NAT) on this host hides: the container's own end of a connection."""

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.kernel.owners.endpoint import Endpoint
from netmon.rate_limiter import TimeLimiter

if TYPE_CHECKING:  # 20 MB, needed only where addresses are translated
    from pyroute2.netlink.nfnetlink.nfctsocket import NFCTSocket

_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")


class Translations:
    """Asks the connection tracking of the caller's network namespace, where it is in use. Needs CAP_NET_ADMIN."""

    def __init__(self) -> None:
        self._socket: NFCTSocket | None = None
        self._limiter = TimeLimiter(share=0.01, burst_ns=500_000_000)  # a question takes about a millisecond

    def inside(self, endpoint: Endpoint) -> Endpoint | None:
        """The connection as its local socket behind the translation knows it; None where nothing is translated."""
        if not self._limiter.allows():
            return None
        with self._limiter, contextlib.suppress(OSError):  # no conntrack
            if int(_COUNT.read_text()):
                return _inside(endpoint, self._query(endpoint))
        return None

    def _query(self, endpoint: Endpoint) -> list[Any]:
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

        if self._socket is None:
            self._socket = NFCTSocket()
        family = socket.AF_INET6 if ":" in endpoint.local else socket.AF_INET
        # A packet that comes in; the kernel finds it in either direction of a connection.
        arriving = NFCTAttrTuple(
            family=family,
            saddr=endpoint.remote,
            daddr=endpoint.local,
            proto=endpoint.protocol,
            sport=endpoint.remote_port,
            dport=endpoint.local_port,
        )
        try:
            return list(self._socket.entry("get", tuple_orig=arriving))
        except NetlinkError:  # it has nothing of this connection
            return []


def _inside(endpoint: Endpoint, messages: list[Any]) -> Endpoint | None:
    if not messages:
        return None
    from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple

    family = socket.AF_INET6 if ":" in endpoint.local else socket.AF_INET
    for message in messages:
        original, reply = (message.get_attr(f"CTA_TUPLE_{name}") for name in ("ORIG", "REPLY"))
        if original is None or reply is None:
            continue
        begun, answered = (_endpoint(NFCTAttrTuple.from_netlink(family, part)) for part in (original, reply))
        # Begun here: the one that began it is inside. Begun elsewhere: the one that answers is.
        inside = begun if answered == endpoint.reversed() else answered
        return inside if inside != endpoint else None
    return None


def _endpoint(part: Any) -> Endpoint:
    """A tuple as its sender's end."""
    return Endpoint(int(part.proto), part.saddr, int(part.sport), part.daddr, int(part.dport))
