# SPDX-License-Identifier: Apache-2.0
"""What TCP itself says of the flows that matter: asked twice a second, told as differences between two looks."""

import contextlib
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from netmon.agent.flow_owners import local_end
from netmon.evidence import TRANSPORT, UNKNOWN
from netmon.kernel.owners.endpoint import Endpoint
from netmon.kernel.pace import Pace
from netmon.kernel.tcp_info import ECN, RTT_UNKNOWN, TCP_INFO, TcpInfo
from netmon.records import Direction, Flow, Table, empty

INTERVAL_NS = 500_000_000
MOST_RANKS, MOST_OTHERS = 96, 32
"""Connections of ranks, and of everybody else, that are looked at."""

_LARGE_BYTES = 125_000  # payload of an interval, from which a connection of no rank is worth a look: 1 Mbit/s
_CONSIDERED = 1024  # flows, those with most payload
_REMEMBERED = 4096  # sockets
_TCP = 6
_MOST = np.uint64(2**50)  # of a difference, in whatever unit: more is a counter that has been set back
_LATE_BYTES = 1 << 20  # that a connection told of by the kernel may have sent before it is looked at
_SAME = ("sent_bytes", "retransmitted_bytes", "out_of_order_packets")
_US = ("busy", "receiver_limited", "sender_limited")
_BEFORE = np.dtype([("looked_ns", "<i8"), *((name, TCP_INFO[name]) for name in TCP_INFO.names or ())])

_Counts = npt.NDArray[np.float64]


class TransportLooks:
    """One per agent. A socket's first look tells nothing unless its connection is known to have begun just now."""

    def __init__(self, flows: Mapping[int, Flow], tcp: TcpInfo | None = None, wanted: bool = True) -> None:
        """flows: all that are alive, by id, with their owners; tcp: made here unless it is given; wanted: looks at
        all."""
        self._flows, self._tcp = flows, tcp
        self._wanted = wanted
        if tcp is None:
            with contextlib.suppress(OSError):  # a kernel without sock_diag
                self._tcp = TcpInfo()
        self._counted: list[tuple[npt.NDArray[np.uint32], _Counts]] = []
        self._before = empty(_BEFORE)  # by cookie
        self._looked_ns = time.monotonic_ns()
        self._asked: dict[Endpoint, _Connection] = {}  # that are not of our network namespace
        self._asked_since_ns = 0
        self._able_elsewhere = True
        self._answered: list[Table] = []
        self.elsewhere: list[Endpoint] = []
        """Connections of which the privileged part is to be asked: they may be in other network namespaces."""
        self._pace = Pace(share=0.001, stock_ns=10_000_000)

    def count(self, rows: Table) -> None:
        """rows: dtype BUCKET or COARSE, of a batch."""
        if self._wanted and len(rows):
            ids, place = np.unique(rows["flow_id"], return_inverse=True)
            payload: _Counts = np.bincount(place, rows["payload_bytes"]).astype(np.float64)
            self._counted.append((ids, payload))

    def due(self, now_ns: int) -> Table:
        """dtype TRANSPORT, when an interval is over: of the ranks' connections that carried something meanwhile, and of
        the largest of others'.
        """
        answered, self._answered = self._answered, []
        if now_ns < self._looked_ns + INTERVAL_NS or not self._pace.allows():
            return np.concatenate([empty(TRANSPORT), *answered])
        counted, self._counted = self._counted, []
        begun = time.thread_time_ns()
        rows = self._look(counted) if counted and self._tcp else empty(TRANSPORT)
        self._pace.spend(time.thread_time_ns() - begun)
        self._looked_ns = now_ns
        return np.concatenate([rows, *answered])

    def answer(self, rows: bytes, able: bool) -> None:
        """Of what `elsewhere` was: rows of TCP_INFO. able: whether there is any sense in asking again."""
        found = np.frombuffer(rows, TCP_INFO)
        known = list(self._asked.values())
        of = [known[number] for number in found["number"].tolist()]
        self._answered.append(self._rows(found, of, self._asked_since_ns, time.monotonic_ns()))
        self._able_elsewhere = able

    def _look(self, counted: list[tuple[npt.NDArray[np.uint32], _Counts]]) -> Table:
        ids, place = np.unique(np.concatenate([ids for ids, _ in counted]), return_inverse=True)
        payload = np.bincount(place, np.concatenate([counts for _, counts in counted]))
        most = np.argsort(-payload, kind="stable")[:_CONSIDERED]
        connections = self._connections(dict(zip(ids[most].tolist(), payload[most].tolist(), strict=True)))
        if not connections or not self._tcp:
            return empty(TRANSPORT)
        try:
            found = self._tcp.look(list(connections))
        except OSError:
            return empty(TRANSPORT)
        known, numbers = list(connections.items()), found["number"].tolist()
        if self._able_elsewhere and len(numbers) < len(known):
            there = set(numbers)
            self._asked = dict(one for number, one in enumerate(known) if number not in there)
            self.elsewhere, self._asked_since_ns = list(self._asked), self._looked_ns
        return self._rows(found, [known[number][1] for number in numbers], self._looked_ns, time.monotonic_ns())

    def _connections(self, payload: dict[int, float]) -> dict[Endpoint, "_Connection"]:
        """payload: by flow, in descending order."""
        found: dict[Endpoint, _Connection] = {}
        for flow_id, carried in payload.items():
            flow = self._flows.get(flow_id)
            if flow and flow.protocol == _TCP and not flow.members:
                found.setdefault(local_end(flow), _Connection()).add(flow, carried)
        ranks = [end for end, of in found.items() if of.trains][:MOST_RANKS]
        large = [end for end, of in found.items() if not of.trains and sum(of.payload) >= _LARGE_BYTES]
        return {end: found[end] for end in (*ranks, *large[:MOST_OTHERS])}

    def _rows(self, found: Table, connections: list["_Connection"], since_ns: int, now_ns: int) -> Table:
        """found: dtype TCP_INFO; connections: of each of them; since_ns: the look before."""
        before, is_known = self._remembered(found)
        began = [of.began_ns(row, since_ns) for of, row in zip(connections, found, strict=True)]
        begin_ns = np.where(is_known, before["looked_ns"], began)
        rows = np.full(len(found), UNKNOWN, TRANSPORT)
        rows["flow_id"], rows["reverse_flow_id"] = np.array([of.ids for of in connections]).reshape(-1, 2).T
        rows["start_ns"], rows["end_ns"] = begin_ns, now_ns
        for name in _SAME:
            rows[name] = _grown(before, found, name)
        for name in _US:
            rows[f"{name}_ns"] = _grown(before, found, f"{name}_us") * 1000
        ecn = (found["options"] & ECN) > 0
        rows["ecn_marked_packets"] = np.where(ecn, _grown(before, found, "ecn_marked_packets"), UNKNOWN)
        rtt, least = found["rtt_us"].astype(np.int64), found["rtt_min_us"].astype(np.int64)
        rows["rtt_ns"] = np.where(rtt > 0, rtt * 1000, UNKNOWN)
        rows["rtt_min_ns"] = np.where((least > 0) & (least < RTT_UNKNOWN), least * 1000, UNKNOWN)
        rows["application_limited"] = found["application_limited"] & 1
        rows["congestion_window_bytes"] = found["congestion_window"].astype(np.int64) * found["segment_bytes"]
        rate = np.minimum(found["delivery_rate"], np.uint64(2**58)).astype(np.int64)
        rows["delivery_bps"] = np.where(rate > 0, rate * 8, UNKNOWN)
        self._remember(found, now_ns)
        told: Table = rows[(is_known | (begin_ns >= 0)) & (begin_ns <= now_ns)]
        return told

    def _remembered(self, found: Table) -> tuple[Table, npt.NDArray[np.bool_]]:
        """The same sockets at the look before, 0 where there was none; which were looked at."""
        before = np.zeros(len(found), _BEFORE)
        if not len(self._before):
            return before, np.zeros(len(found), bool)
        place = np.searchsorted(self._before["cookie"], found["cookie"]).clip(0, len(self._before) - 1)
        is_known = self._before["cookie"][place] == found["cookie"]
        before[is_known] = self._before[place[is_known]]
        return before, is_known

    def _remember(self, found: Table, now_ns: int) -> None:
        news = np.zeros(len(found), _BEFORE)
        news["looked_ns"] = now_ns
        for name in TCP_INFO.names or ():
            news[name] = found[name]
        old = self._before[~np.isin(self._before["cookie"], found["cookie"])]
        if len(old) > _REMEMBERED - len(news):
            old = old[np.argsort(old["looked_ns"])[len(news) - _REMEMBERED :]]
        together = np.concatenate([old, news])
        self._before = together[np.argsort(together["cookie"])]

    def close(self) -> None:
        """Not to be used any more."""
        if self._tcp:
            self._tcp.close()


class _Connection:
    """The flows of a connection, rx and tx, of which at least one carried something."""

    def __init__(self) -> None:
        self._flow: dict[Direction, Flow] = {}
        self.payload = [0.0, 0.0]  # by direction
        self.trains = False

    def add(self, flow: Flow, payload: float) -> None:
        """The one with most payload comes first: a connection may be seen on several interfaces."""
        if flow.direction not in self._flow:
            self._flow[flow.direction] = flow
            self.payload[flow.direction] = payload
            self.trains |= bool(flow.owner.job)

    @property
    def ids(self) -> tuple[int, int]:
        """The flow of which the row is, and the other one."""
        ids = [flow.flow_id for way in (Direction.TX, Direction.RX) if (flow := self._flow.get(way))]
        return ids[0], ids[1] if len(ids) > 1 else UNKNOWN

    def began_ns(self, info: np.void, looked_ns: int) -> int:
        """When it began, if that was since the last look; UNKNOWN where it may be older than what we have seen of it.

        info: of TCP_INFO. It is new where the kernel has told of its birth, or all that it ever carried passed since.
        """
        first_ns = min(flow.first_ns for flow in self._flow.values())
        if first_ns < looked_ns:
            return UNKNOWN
        sent, received = int(info["sent_bytes"]), int(info["received_bytes"])
        born = any(flow.owner.source == "birth" for flow in self._flow.values())
        late = _LATE_BYTES if born else 0
        rx, tx = ((1 + born) * self.payload[way] + late for way in (Direction.RX, Direction.TX))
        return first_ns if sent <= tx and received <= rx else UNKNOWN


def _grown(before: Table, now: Table, name: str) -> npt.NDArray[np.int64]:
    """By how much a counter has grown; it wraps at its width."""
    difference: npt.NDArray[np.int64] = np.minimum((now[name] - before[name]).astype(np.uint64), _MOST).astype(np.int64)
    return difference
