# SPDX-License-Identifier: Apache-2.0
"""TCP connections as bpf/sockets.c reports them: whose each is, from the moment at which it is made."""

import os
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from netmon.kernel import bpf_calls
from netmon.kernel.btf import KernelTypes
from netmon.kernel.meter import memory
from netmon.kernel.meter.memory import RingBuffer
from netmon.kernel.processes import machine_wide, namespace_of
from netmon.kernel.sock_diag import Endpoint, packed
from netmon.marks import printable
from netmon.rate_limiter import RateLimiter
from netmon.records import SOCKET_CONNECT, SOCKET_EVENT, Table

PROGRAM, MAP, EVENT_MAP, NAMESPACE_MAP = "socket_state", "socket_events", "socket_history", "socket_netns"
MAPS = (MAP, EVENT_MAP, NAMESPACE_MAP)
RING_BYTES = 1 << 18
EVENT_RING_BYTES = 1 << 20  # nobody is woken for it: it holds the events between two polls
_TRACEPOINT = "inet_sock_set_state"
_REMEMBERED = 32_768  # connections
_ENDS = 36  # bytes of addresses and ports, with which a record begins
_PER_SECOND, _AT_ONCE = 2_000, 8_000
"""Connections that are taken in one by one; beyond them one of each process, and those of processes that matter."""
_MOST_CHOSEN = 500  # at a time, beyond the rate limit

_OFFSETS = {
    "NETMON_SK_FAMILY": ("sock", "__sk_common.skc_family"),
    "NETMON_SK_LOCAL": ("sock", "__sk_common.skc_rcv_saddr"),
    "NETMON_SK_REMOTE": ("sock", "__sk_common.skc_daddr"),
    "NETMON_SK_LOCAL6": ("sock", "__sk_common.skc_v6_rcv_saddr"),
    "NETMON_SK_REMOTE6": ("sock", "__sk_common.skc_v6_daddr"),
    "NETMON_SK_LOCAL_PORT": ("sock", "__sk_common.skc_num"),
    "NETMON_SK_REMOTE_PORT": ("sock", "__sk_common.skc_dport"),
    "NETMON_SK_NET": ("sock", "__sk_common.skc_net.net"),
    "NETMON_SK_PROTOCOL": ("sock", "sk_protocol"),
    "NETMON_NET_INUM": ("net", "ns.inum"),
}


def definitions(types: KernelTypes) -> dict[str, int]:
    """What bpf/sockets.c is compiled with. Raises UnsupportedError where the kernel does not describe a field."""
    defined = {name: types.offset(*index) for name, index in _OFFSETS.items()}
    return defined | {
        "NETMON_SOCKET_EVENT_PAGES": RING_BYTES // memory.PAGE_BYTES,
        "NETMON_SOCKET_HISTORY_PAGES": EVENT_RING_BYTES // memory.PAGE_BYTES,
    }


def choose_namespace(descriptor: int) -> None:
    """Before the program is attached: whose connections it reports. descriptor: of NAMESPACE_MAP, closed here."""
    try:
        only = 0 if machine_wide() else namespace_of("self")
        bpf_calls.set_array_entry(descriptor, 0, struct.pack("=I", only))
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class SocketEvent:
    """A process and its connection.

    process: the name of the thread that made it; cgroup: id in cgroup v2; uid: the real one.
    """

    ends: bytes  # as `packed` gives its local end
    pid: int
    process: str
    cgroup: int
    source: str  # "connect", or "close" where the connection was accepted
    uid: int = 0


class SocketEventTable:
    """The connections of the last while. Never blocks."""

    def __init__(self, ring: int, size: int) -> None:
        """ring: descriptor of MAP or EVENT_MAP (not kept), of which this is the only reader; size: its, in bytes."""
        self._ring = RingBuffer(ring, size, SOCKET_EVENT)
        self._socket_events: dict[bytes, SocketEvent] = {}
        self._limiter = RateLimiter(_PER_SECOND, _AT_ONCE)

    @property
    def level(self) -> float:
        """How full the ring is, from 0 to 1."""
        return self._ring.level

    def take(self, wanted: Collection[int] = ()) -> list[SocketEvent]:
        """Reads the new events: the moment to look at the processes, as they may be short.

        wanted: processes of whose connections none is passed over in a storm.
        """
        table = self._ring.take()
        if not len(table):
            return []
        room = self._limiter.take(len(table), time.monotonic_ns())
        if room < len(table):
            table = np.concatenate([table[:room], _chosen(table[room:], wanted)])
        ends = table.view([("ends", f"V{_ENDS}"), ("rest", f"V{SOCKET_EVENT.itemsize - _ENDS}")])["ends"]
        columns = (table[name].tolist() for name in ("pid", "process", "cgroup", "kind", "uid"))
        socket_watch = []
        for index, pid, process, cgroup, kind, uid in zip(ends.tolist(), *columns, strict=True):
            known = self._socket_events.get(index)
            source = "connect" if kind == SOCKET_CONNECT else "close"
            socket_event = SocketEvent(index, pid, printable(process.decode(errors="replace")), cgroup, source, uid)
            if socket_event.source == "connect" or not known or known.source == "close":
                self._socket_events.pop(index, None)  # the newest stand last
                self._socket_events[index] = socket_event
                socket_watch.append(socket_event)
        for index in list(islice(self._socket_events, max(0, len(self._socket_events) - _REMEMBERED))):
            del self._socket_events[index]
        return socket_watch

    def maker(self, ends: bytes) -> int:
        """Pid of who made, or closed, the connection with this end; 0: not known."""
        socket_event = self._socket_events.get(ends)
        return socket_event.pid if socket_event else 0

    def find(self, endpoint: Endpoint) -> SocketEvent | None:
        """Who made, or closed, the connection with this end: in any network namespace of this host."""
        return self._socket_events.get(packed(endpoint)) if endpoint.protocol == socket.IPPROTO_TCP else None


def _chosen(table: Table, wanted: Collection[int]) -> Table:
    """Of a storm: one connection of each process, and all of the wanted ones, as many as there is time for."""
    chosen: npt.NDArray[np.bool_] = np.isin(table["pid"], np.fromiter(wanted, np.uint32, len(wanted)))
    chosen[np.unique(table["pid"], return_index=True)[1]] = True
    return table[chosen][:_MOST_CHOSEN]


class SocketEvents(SocketEventTable):
    """The same, with the program that reports them attached for as long as this lives."""

    def __init__(self, program: int, ring: int) -> None:
        """program, ring: descriptors of PROGRAM and MAP (not kept). Raises OSError where it cannot be attached."""
        super().__init__(ring, RING_BYTES)
        self.descriptor = os.dup(ring)
        """Readable when there is something to take."""
        self._link = bpf_calls.raw_tracepoint_open(program, _TRACEPOINT)

    def close(self) -> None:
        for descriptor in (self._link, self.descriptor):
            os.close(descriptor)
