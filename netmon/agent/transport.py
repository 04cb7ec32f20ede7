# SPDX-License-Identifier: Apache-2.0
"""TCP's own view of the flows that matter: queried twice a second, reported as differences."""

import contextlib
import itertools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.agent.flow_owners import distinct_ids, local_end
from netmon.evidence import TRANSPORT, UNKNOWN
from netmon.kernel.sock_diag import ECN, RTT_UNKNOWN, TCP_INFO, TIMEOUTS_UNKNOWN, Endpoint, TcpInfo
from netmon.rate_limiter import TimeLimiter
from netmon.records import Direction, Flow, Table, empty

INTERVAL_NS = 500_000_000
MOST_RANKS, MOST_OTHERS = 96, 32
"""Connections of ranks, and of everybody else, that are looked at."""

SILENT_NS, FORGOTTEN_NS = 2_500_000_000, 20_000_000_000
"""How long after its last traffic a silent connection of a rank is looked at: from, and until."""

_SILENT_INTERVAL_NS = 2_000_000_000
_LARGE_BYTES = 125_000  # payload of an interval, from which a connection of no rank is worth its looks: 2 Mbit/s
_CONSIDERED = 1024  # flows, those with most payload
_REMEMBERED = 4096  # sockets
_MOST_ROWS = 50_000  # that are not added up
_NOTHING = empty(TRANSPORT)
_TCP = 6
_MOST = 2**50  # of a difference, in whatever unit: more is a counter that has been set back
_WIDEST = np.uint64(2**58)
_YOUNG_NS = (
    5_000_000_000  # a connection whose beginning the kernel reported may be small for so long before it is looked at
)
_LATE_BYTES = 1 << 20  # that a connection reported by the kernel may have sent before it is looked at
_WIDE = [name for name in TCP_INFO.names or () if TCP_INFO[name] == np.dtype("<u8")]
_COUNTERS = ("sent_bytes", "retransmitted_bytes", "out_of_order_packets")
_TIMES = ("busy", "receiver_limited", "sender_limited")
_FIELD = {name: place for place, name in enumerate((TCP_INFO.names or ())[2:])}  # rows of a matrix
_LOOKED = len(_FIELD)  # its last row: when that was
_NARROW = [place for name, place in _FIELD.items() if name not in _WIDE]  # counters that wrap at 32 bits
_COLUMN_OF = {name: place for place, name in enumerate(TRANSPORT.names or ())}
_GROWS = [_FIELD[name] for name in (*_COUNTERS, "timeouts", "busy_us")]  # while a connection does anything
_SAME, _SAME_COLUMNS = ([place[n] for n in _COUNTERS] for place in (_FIELD, _COLUMN_OF))
_US, _US_COLUMNS = [_FIELD[f"{n}_us"] for n in _TIMES], [_COLUMN_OF[f"{n}_ns"] for n in _TIMES]

_Numbers = npt.NDArray[np.int64]
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
        self._counted: list[tuple[npt.NDArray[np.uint32], npt.NDArray[Any]]] = []  # flows, and payload of them
        self._count = 0  # rows of it
        self._large = _Newest()
        self._plan = _Plan([], self._large)
        self._recent = _Recent()
        self._looked_silent_ns = 0
        self._cookies = np.zeros(0, np.uint64)  # of the sockets that were looked at
        self._before = np.zeros((_LOOKED + 1, 0), np.int64)  # what was seen, and when
        self._looked_ns = time.monotonic_ns()
        self._elsewhere: list[_Connection] = []  # that are not of our network namespace
        self._elsewhere_payload = np.zeros(0)
        self._elsewhere_since_ns, self._elsewhere_silent = 0, False
        self._able_elsewhere = True
        self._answered: list[Table] = []
        self.elsewhere: list[Endpoint] = []
        """Connections that the privileged part is to look up: they may be in other network namespaces."""
        self._limiter = TimeLimiter(share=0.003, burst_ns=20_000_000)

    def count(self, rows: Table) -> None:
        """rows: dtype BUCKET or COARSE, of a batch."""
        if self._wanted and len(rows):
            self._counted.append((rows["flow_id"].copy(), rows["payload_bytes"].copy()))
            self._count += len(rows)
            if self._count > _MOST_ROWS:
                self._add_up()

    def _add_up(self) -> tuple[npt.NDArray[np.uint32], _Counts]:
        """The flows with traffic since the last look, ascending, and their payload."""
        rows = np.concatenate([ids for ids, _ in self._counted])
        ids = distinct_ids(rows)
        counts = np.concatenate([counts for _, counts in self._counted])
        payload: _Counts = np.bincount(np.searchsorted(ids, rows), counts).astype(np.float64, copy=False)
        self._counted, self._count = [(ids, payload)], len(ids)
        return ids, payload

    def due(self, now_ns: int) -> Table:
        """dtype TRANSPORT, when an interval is over: of the connections with traffic in it.

        Of these the ranks', and of others' the largest, among those that were large once: the last segments of one are
        evidence, too. And, now and then, of ranks' connections that have fallen silent, whose sockets did something:
        what TCP sends again on a link that is down gets to no interface.
        """
        answered, self._answered = self._answered, []
        if now_ns < self._looked_ns + INTERVAL_NS or not self._limiter.allows():
            return np.concatenate(answered) if answered else _NOTHING
        begun = time.thread_time_ns()
        rows = self._look(*self._add_up(), now_ns) if self._counted and self._tcp else _NOTHING
        if now_ns >= self._looked_silent_ns + _SILENT_INTERVAL_NS and not self.elsewhere:
            self._looked_silent_ns = now_ns
            rows = np.concatenate([rows, self._look_silent(self._recent.silent(now_ns))])
        self._counted, self._count = [], 0
        self._limiter.spend(time.thread_time_ns() - begun)
        self._looked_ns = now_ns
        return np.concatenate([rows, *answered]) if answered else rows

    def answer(self, rows: bytes, able: bool) -> None:
        """Of what `elsewhere` was: rows of TCP_INFO. able: whether there is any sense in asking again."""
        found = np.frombuffer(rows, TCP_INFO)
        of = [self._elsewhere[number] for number in found["number"].tolist()]
        payload, since_ns = self._elsewhere_payload, self._elsewhere_since_ns
        self._answered.append(self._rows(found, of, payload, since_ns, time.monotonic_ns(), self._elsewhere_silent))
        self._able_elsewhere = able

    def _look(self, ids: npt.NDArray[np.uint32], payload: _Counts, now_ns: int) -> Table:
        """ids: of the flows with traffic; payload: of each."""
        if len(ids) > _CONSIDERED:
            most = np.sort(np.argsort(-payload, kind="stable")[:_CONSIDERED])
            ids, payload = ids[most], payload[most]
        flows = [self._flows.get(flow_id) for flow_id in ids.tolist()]
        if flows != self._plan.flows:  # most times the same ones train
            self._plan = _Plan(flows, self._large)
            self._recent.change(ids[self._plan.of_ranks], now_ns)
        self._recent.note(now_ns)
        return self._query(self._plan.worth_a_look(payload), payload)

    def _look_silent(self, ids: list[int]) -> Table:
        """ids: of ranks' flows that have been silent for a while."""
        flows = [self._flows.get(flow_id) for flow_id in ids]
        nothing = np.zeros(len(flows))
        return self._query(_Plan(flows, self._large).worth_a_look(nothing), nothing, silent=True) if ids else _NOTHING

    def _query(self, queried: list["_Connection"], payload: _Counts, silent: bool = False) -> Table:
        """payload: of all flows; silent: those of them are reported that did something."""
        if not queried or not self._tcp:
            return _NOTHING
        try:
            found = self._tcp.query([one.end for one in queried])
        except OSError:
            return _NOTHING
        numbers = found["number"].tolist()
        if self._able_elsewhere and len(numbers) < len(queried):
            there = set(numbers)
            self._elsewhere = [one for number, one in enumerate(queried) if number not in there]
            self.elsewhere, self._elsewhere_payload = [one.end for one in self._elsewhere], payload
            self._elsewhere_since_ns, self._elsewhere_silent = self._looked_ns, silent
        return self._rows(found, [queried[n] for n in numbers], payload, self._looked_ns, time.monotonic_ns(), silent)

    def _rows(
        self,
        found: Table,
        connections: list["_Connection"],
        payload: _Counts,
        since_ns: int,
        now_ns: int,
        silent: bool,
    ) -> Table:
        """found: dtype TCP_INFO; connections: of each of them; payload: of all flows; since_ns: the look before."""
        if not len(found):
            return _NOTHING
        now, cookies = _matrix(found), found["cookie"].copy()
        before, is_known = self._remembered(cookies)
        begin_ns = before[_LOOKED]
        for index in np.flatnonzero(~is_known).tolist():
            begin_ns[index] = connections[index].began_ns(found[index], since_ns, payload)
        grown = now - before[:_LOOKED]
        grown[_NARROW] &= 0xFFFFFFFF
        grown[(grown < 0) | (grown > _MOST)] = _MOST
        rows = np.full((len(found), len(TRANSPORT.names or ())), UNKNOWN, "<i8")
        rows[:, _COLUMN_OF["flow_id"] : _COLUMN_OF["reverse_flow_id"] + 1] = [of.ids for of in connections]
        rows[:, _COLUMN_OF["start_ns"]], rows[:, _COLUMN_OF["end_ns"]] = begin_ns, now_ns
        rows[:, _SAME_COLUMNS] = grown[_SAME].T
        rows[:, _US_COLUMNS] = grown[_US].T * 1000
        ecn = now[_FIELD["options"]] & ECN > 0
        rows[:, _COLUMN_OF["ecn_marked_packets"]] = np.where(ecn, grown[_FIELD["ecn_marked_packets"]], UNKNOWN)
        timeouts = now[_FIELD["timeouts"]]
        grown_timeouts = timeouts - before[_FIELD["timeouts"]] & 0xFFFF
        rows[:, _COLUMN_OF["timeouts"]] = np.where(timeouts == TIMEOUTS_UNKNOWN, UNKNOWN, grown_timeouts)
        rtt, least, rate = (now[_FIELD[name]] for name in ("rtt_us", "rtt_min_us", "delivery_rate"))
        rows[:, _COLUMN_OF["rtt_ns"]] = np.where(rtt > 0, rtt * 1000, UNKNOWN)
        rows[:, _COLUMN_OF["rtt_min_ns"]] = np.where((least > 0) & (least < RTT_UNKNOWN), least * 1000, UNKNOWN)
        rows[:, _COLUMN_OF["application_limited"]] = now[_FIELD["application_limited"]] & 1
        rows[:, _COLUMN_OF["congestion_window_bytes"]] = now[_FIELD["congestion_window"]] * now[_FIELD["segment_bytes"]]
        rows[:, _COLUMN_OF["delivery_bps"]] = np.where(rate > 0, rate * 8, UNKNOWN)
        kept = (is_known | (begin_ns >= 0)) & (begin_ns <= now_ns)
        if silent:
            kept &= (grown[_GROWS] > 0).any(axis=0)
            cookies, now = cookies[kept], now[:, kept]
        self._remember(cookies, now, now_ns)
        samples: Table = rows[kept].view(TRANSPORT)[:, 0]
        return samples

    def _remembered(self, cookies: npt.NDArray[np.uint64]) -> tuple[_Numbers, npt.NDArray[np.bool_]]:
        """The same sockets at the look before, 0 where there was none; which were looked at."""
        if self._same(cookies):
            return self._before[:, : len(cookies)].copy(), np.ones(len(cookies), np.bool_)
        before = np.zeros((_LOOKED + 1, len(cookies)), np.int64)
        index = {cookie: index for index, cookie in enumerate(self._cookies.tolist())}
        of = np.array([index.get(cookie, -1) for cookie in cookies.tolist()], np.int64)
        is_known = of >= 0
        before[:, is_known] = self._before[:, of[is_known]]
        return before, is_known

    def _remember(self, cookies: npt.NDArray[np.uint64], now: _Numbers, now_ns: int) -> None:
        """The newest ones come first."""
        if self._same(cookies):
            self._before[:_LOOKED, : len(cookies)] = now
            self._before[_LOOKED, : len(cookies)] = now_ns
            return
        news = np.concatenate([now, np.full((1, len(cookies)), now_ns)])
        kept = np.flatnonzero(~np.isin(self._cookies, cookies))[: max(0, _REMEMBERED - len(cookies))]
        self._before = np.concatenate([news, self._before[:, kept]], axis=1)
        self._cookies = np.concatenate([cookies, self._cookies[kept]])

    def _same(self, cookies: npt.NDArray[np.uint64]) -> bool:
        """Whether these were looked at last: most times the same ones train."""
        return np.array_equal(self._cookies[: len(cookies)], cookies)

    def close(self) -> None:
        """Not to be used any more."""
        if self._tcp:
            self._tcp.close()


class _Connection(NamedTuple):
    """A connection that may be looked at: its flows rx and tx, of which at least one had traffic."""

    end: Endpoint
    ids: tuple[int, int]  # of the flow of which the row is, and of the other one
    flows: Mapping[Direction, tuple[int, Flow]]  # and their indices among those with traffic

    @classmethod
    def of(cls, end: Endpoint, flows: Mapping[Direction, tuple[int, Flow]]) -> "_Connection":
        """flows: as in the fields."""
        ids = [flows[way][1].flow_id for way in (Direction.TX, Direction.RX) if way in flows]
        return cls(end, (ids[0], ids[1] if len(ids) > 1 else UNKNOWN), flows)

    def began_ns(self, info: np.void, looked_ns: int, payload: _Counts) -> int:
        """When it began, if that was since the last look; UNKNOWN where it may be older than what we have seen of it.

        info: of TCP_INFO. It is new where the kernel has reported its creation, lately if it was not worth a look
        at first, or all of its traffic passed since the last look.
        """
        first_ns = min(flow.first_ns for _, flow in self.flows.values())
        born = any(flow.owner.source == "connect" for _, flow in self.flows.values())
        if first_ns < looked_ns:
            return first_ns if born and first_ns >= looked_ns - _YOUNG_NS else UNKNOWN
        sent, received = int(info["sent_bytes"]), int(info["received_bytes"])
        late = _LATE_BYTES if born else 0
        seen = {way: float(payload[index]) for way, (index, _) in self.flows.items()}
        rx, tx = ((1 + born) * seen.get(way, 0.0) + late for way in (Direction.RX, Direction.TX))
        return first_ns if sent <= tx and received <= rx else UNKNOWN


class _Recent:
    """When the flows of ranks had traffic last."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint32)  # ascending
        self._last_ns = np.zeros(0, np.int64)
        self._now = np.zeros(0, np.int64)  # indices of those with traffic now

    def change(self, ids: npt.NDArray[np.uint32], now_ns: int) -> None:
        """ids: of the flows with traffic now, ascending."""
        kept = self._last_ns >= now_ns - FORGOTTEN_NS
        known, last_ns = self._ids[kept], self._last_ns[kept]
        self._ids = distinct_ids(np.concatenate([known, ids]))
        self._last_ns = np.full(len(self._ids), now_ns)
        self._last_ns[np.searchsorted(self._ids, known)] = last_ns
        self._now = np.searchsorted(self._ids, ids)

    def note(self, now_ns: int) -> None:
        """The flows of the last change have traffic again."""
        self._last_ns[self._now] = now_ns

    def silent(self, now_ns: int) -> list[int]:
        """Those that have been silent for a while, but had traffic not long before."""
        for_ns = now_ns - self._last_ns
        found: list[int] = self._ids[(for_ns >= SILENT_NS) & (for_ns < FORGOTTEN_NS)].tolist()
        return found


class _Newest:
    """Ends of connections, the newest that were put in."""

    def __init__(self) -> None:
        self._ends: dict[Endpoint, None] = {}

    def __contains__(self, end: Endpoint) -> bool:
        return end in self._ends

    def add(self, end: Endpoint) -> None:
        """Forget the oldest where there are too many."""
        self._ends[end] = None
        if len(self._ends) > _REMEMBERED:
            del self._ends[next(iter(self._ends))]


class _Plan:
    """Which flows make up which connections. Lives as long as the same flows carry something."""

    def __init__(self, flows: list[Flow | None], large: _Newest) -> None:
        """flows: None where one is not known; large: the connections that ever were."""
        self.flows, self._known_large = flows, large
        ends: dict[Endpoint, dict[Direction, list[tuple[int, Flow]]]] = {}
        for index, flow in enumerate(flows):
            if flow and flow.protocol == _TCP and not flow.members:
                ends.setdefault(local_end(flow), {}).setdefault(flow.direction, []).append((index, flow))
        self._ends = list(ends.items())
        self._of = np.full(len(flows), len(ends))  # by flow, the place of its connection
        self._trains = np.zeros(len(ends), np.bool_)
        for number, ways in enumerate(ends.values()):
            for index, flow in itertools.chain.from_iterable(ways.values()):
                self._of[index] = number
                self._trains[number] |= bool(flow.owner.job)
        self.of_ranks = np.append(self._trains, False)[self._of]
        """(flows,): whether a rank's connection."""
        single = [(end, {way: some[0] for way, some in ways.items() if len(some) == 1}) for end, ways in self._ends]
        # None: which of its flows counts depends on what they carry.
        self._known = [_Connection.of(end, flows) if len(flows) == len(ends[end]) else None for end, flows in single]
        self._all = bool(self._trains.all()) and len(ends) <= MOST_RANKS
        self._large = np.fromiter((end in large for end in ends), np.bool_, len(ends))

    def worth_a_look(self, payload: _Counts) -> list[_Connection]:
        """Of the ranks' connections and of the others those with most of it. payload: of each flow."""
        if self._all:
            return [one or self._connection(number, payload) for number, one in enumerate(self._known)]
        sent = np.bincount(self._of, payload, len(self._ends) + 1)[:-1]
        for index in np.flatnonzero((sent >= _LARGE_BYTES) & ~self._large).tolist():
            self._large[index] = True
            self._known_large.add(self._ends[index][0])
        ranks, others = (np.flatnonzero(of) for of in (self._trains, self._large & ~self._trains & (sent > 0)))
        chosen = [(ranks, MOST_RANKS), (others, MOST_OTHERS)]
        indices = [some if len(some) <= n else some[np.argsort(-sent[some])[:n]] for some, n in chosen]
        return [self._known[index] or self._connection(index, payload) for index in np.concatenate(indices).tolist()]

    def _connection(self, number: int, payload: _Counts) -> _Connection:
        """Of flows of one direction that with most payload: a connection may be seen on more than one interface."""
        end, ways = self._ends[number]
        return _Connection.of(end, {way: max(some, key=lambda one: payload[one[0]]) for way, some in ways.items()})


def _matrix(found: Table) -> _Numbers:
    """(fields, sockets): of TCP_INFO, in the order of _FIELD."""
    numbers = np.empty((_LOOKED, len(found)), np.int64)
    for name, index in _FIELD.items():
        numbers[index] = found[name] if name not in _WIDE else np.minimum(found[name], _WIDEST)
    return numbers
