# SPDX-License-Identifier: Apache-2.0
"""The clocks of all hosts against each other, by the traffic between them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collector.host.align import Alignment
from collector.host.onsets import HostOnsets
from netmon.dl.clocks import Bounds, OffsetFit, fit_offset
from netmon.dl.corrections import Comparison, combine
from netmon.dl.onsets import MOST_DELAY_NS, ONSET, REST_NS, coarse_lag, match_onsets
from netmon.records import Direction, Flow, Table, empty

_INTERVAL_NS = 1_000_000_000
_MOST_LAG_NS = 10_000_000_000  # of hosts whose clocks nobody knows
_COARSE_NS = 5_000_000_000
_NEAR_NS = (REST_NS - MOST_DELAY_NS) // 4  # how well two clocks have to be known to match their onsets
_ROOM_NS = 100_000  # a comparison that is less exact says little: the traffic meets queues

_Numbers = npt.NDArray[np.int64]


class Clocks:
    """Compares the hosts' clocks now and then and tells each alignment what to add."""

    def __init__(self) -> None:
        """Begin without hosts."""
        self._due_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether it is time to compare again; at most once a second. now_ns: of any steady clock."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _INTERVAL_NS
        return True

    def compare(self, hosts: Iterable[HostOnsets]) -> None:
        """Compare all hosts, one session of each, by the flows that both ends of have been seen."""
        hosts = list(hosts)
        alignments = [host.alignment for host in hosts]
        _choose_utc(alignments)
        errors = [alignment.fit.error_ns if alignment.fit else _NEAR_NS // 2 for alignment in alignments]
        traffic = Traffic(hosts)
        comparisons = traffic.compare(errors)
        compared = {number for c in comparisons for number in (c.first, c.second)}
        lost = {number for number, a in enumerate(alignments) if a.fit is None and number not in compared}
        for number, lag in traffic.coarse(lost).items():
            alignments[number].coarse_ns += lag
        corrections = combine(errors, comparisons, traffic.latest_ns)
        for number, (alignment, correction) in enumerate(zip(alignments, corrections, strict=True)):
            alignment.correction = correction if number in compared else None
            if alignment.fit is None and number in compared:
                # Only the traffic holds it: it may drift away for good. The bound is of hosts against each other.
                alignment.coarse_ns += correction.ns
                own = max(c.error_ns for c in comparisons if number in (c.first, c.second))
                alignment.correction = replace(correction, ns=0, error_ns=own)


def _choose_utc(alignments: Sequence[Alignment]) -> None:
    """Hosts whose UTC is kept share an axis without us, but only all together."""
    own = [a.sample.utc_error_ns + a.sample.error_ns for a in alignments]
    kept = all(a.fit and a.sample.utc_error_ns and e < a.fit.error_ns for a, e in zip(alignments, own, strict=True))
    for alignment in alignments:
        alignment.trusts_host = kept


class Traffic:
    """The onsets of all hosts' flows, each on its host's uncorrected UTC."""

    def __init__(self, hosts: Sequence[HostOnsets]) -> None:
        """Take them as they are now; hosts are numbered in this order."""
        self._hosts = hosts
        keys: dict[tuple[object, ...], int] = {}
        tables = [_onsets(number, host, keys) for number, host in enumerate(hosts)]
        self._sent, self._received = (np.concatenate([empty(ONSET), *(t[way] for t in tables)]) for way in ("tx", "rx"))
        self.latest_ns = int(self._sent["time_ns"].max(initial=0))

    def compare(self, errors_ns: Sequence[int]) -> list[Comparison]:
        """Each two hosts that sent each other something, at latest_ns. errors_ns: of the hosts' clocks."""
        found = [self._compare(first, second, errors_ns) for first, second in self._pairs()]
        return [comparison for comparison in found if comparison]

    def coarse(self, lost: Collection[int]) -> dict[int, int]:
        """What brings hosts of which nothing is known near those that they talk to: ns to add, where it is found."""
        comparisons = []
        for first, second in self._pairs():
            if first in lost or second in lost:
                lag = coarse_lag(
                    _newest(self._of(self._sent, first)), _newest(self._of(self._received, second)), _MOST_LAG_NS
                )
                if lag is not None:
                    comparisons.append(Comparison(first, second, lag, 0.0, _NEAR_NS))
        found = {number for c in comparisons for number in (c.first, c.second)} & set(lost)
        errors = [_MOST_LAG_NS if number in lost else _NEAR_NS for number in range(len(self._hosts))]
        corrections = combine(errors, comparisons, self.latest_ns)
        return {number: corrections[number].ns for number in found}

    def _pairs(self) -> list[tuple[int, int]]:
        ends: dict[int, tuple[set[int], set[int]]] = {}
        for side, table in enumerate((self._sent, self._received)):
            for key, host in np.unique(table[["key", "host"]]).tolist():
                ends.setdefault(key, (set(), set()))[side].add(host)
        across = ((a, b) for senders, receivers in ends.values() for a in senders for b in receivers if a != b)
        return sorted({(min(pair), max(pair)) for pair in across})

    def _compare(self, first: int, second: int, errors_ns: Sequence[int]) -> Comparison | None:
        """What is sent by the first bounds (first's − second's correction) from above, what the second from below."""
        early = errors_ns[first] + errors_ns[second]
        if early > _NEAR_NS:
            return None
        at, late = self._delays(first, second, early)
        back_at, back_late = self._delays(second, first, early)
        held = all(self._hosts[number].alignment.fit for number in (first, second))
        matched = len(at) >= self._shared(first, second) / 2 and len(back_at) >= self._shared(second, first) / 2
        if not held and not matched:  # some onsets meet by chance, whatever the clocks are
            return None
        # A packet's time is the start of its bucket: it was received by the end of one of the receiver's.
        width, back_width = self._hosts[second].bucket_ns, self._hosts[first].bucket_ns
        bounds = Bounds(at, late + width, back_at, -back_late - back_width)
        # Two clocks that are believed stay so until the traffic refutes them: a middle would only tell of its queues.
        believed = all(self._hosts[number].alignment.unrefuted for number in (first, second))
        present, share = self._present(first, second), 0.0 if believed else 1.0
        fit = fit_offset(bounds, self.latest_ns, present, share, _ROOM_NS)
        return Comparison(first, second, fit.offset_ns, fit.skew, fit.error_ns) if fit else None

    def _present(self, first: int, second: int) -> OffsetFit | None:
        """The difference as the hosts are corrected now; None where nothing holds one of them."""
        alignments = [self._hosts[number].alignment for number in (first, second)]
        if not all(alignment.fit or alignment.correction for alignment in alignments):
            return None
        ns, skew = zip(*(_correction(alignment, self.latest_ns) for alignment in alignments), strict=True)
        return OffsetFit(self.latest_ns, ns[0] - ns[1], skew[0] - skew[1], 0, 0)

    def _delays(self, sender: int, receiver: int, early_ns: int) -> tuple[_Numbers, _Numbers]:
        """When each packet was sent, and how much later it was received; times to the start of a bucket."""
        sent, received = self._of(self._sent, sender), self._of(self._received, receiver)
        i, j = match_onsets(sent, received, early_ns)
        return sent["time_ns"][i], received["time_ns"][j] - sent["time_ns"][i]

    def _shared(self, sender: int, receiver: int) -> int:
        """How many onsets the receiver should have seen, too: of its flows, and since it began to look."""
        sent, received = self._of(self._sent, sender), self._of(self._received, receiver)
        if not len(received):
            return 0
        begin, end = received["time_ns"].min() - REST_NS, received["time_ns"].max() + REST_NS
        seen = (sent["time_ns"] >= begin) & (sent["time_ns"] <= end) & np.isin(sent["key"], received["key"])
        return int(seen.sum())

    @staticmethod
    def _of(table: Table, host: int) -> Table:
        own: Table = table[table["host"] == host]
        return own


def _correction(alignment: Alignment, utc_ns: int) -> tuple[int, float]:
    """What is added to a host's clock at a time, and its growth."""
    correction = alignment.correction
    return (correction.ns_at(utc_ns), correction.skew) if correction else (0, 0.0)


def _newest(table: Table) -> Table:
    """Of a few seconds: two clocks' skew must not blur the lag between them."""
    newest: Table = table[table["time_ns"] > table["time_ns"].max(initial=0) - _COARSE_NS]
    return newest


def _onsets(number: int, host: HostOnsets, keys: dict[tuple[object, ...], int]) -> dict[str, Table]:
    """One host's onsets, by direction; keys: a number for each 5-tuple, extended."""
    indices, of_row = np.unique(host.onsets["flow"], return_inverse=True)
    flows = [host.flows[index] for index in indices.tolist()]
    numbers = np.array([keys.setdefault(_key(flow, number), len(keys)) for flow in flows], np.int64)
    transmitted = np.array([flow.direction == Direction.TX for flow in flows], np.bool_)
    table = np.empty(len(of_row), ONSET)
    table["key"], table["host"] = numbers[of_row], number
    mono, offset = host.onsets["time_ns"], host.alignment.uncorrected
    table["time_ns"] = mono + offset.offset_ns + np.round(offset.skew * (mono - offset.at_ns)).astype(np.int64)
    return {"tx": table[transmitted[of_row]], "rx": table[~transmitted[of_row]]}


def _key(flow: Flow, host: int) -> tuple[object, ...]:
    if flow.members:  # what two hosts aggregate is not the same
        return host, flow.flow_id
    return flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol
