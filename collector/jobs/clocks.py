# SPDX-License-Identifier: Apache-2.0
"""The clocks of all hosts against each other, by the traffic between them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collector.jobs.delays import Delays, HostLines
from collector.jobs.flow_matching import FlowMatching
from collector.messages import ClockUpdate, HostClock, HostNews
from netmon.dl.clocks import Present, fit_offsets
from netmon.dl.corrections import Comparison, Correction, combine
from netmon.dl.feasible_offsets import Points
from netmon.dl.onsets import MOST_DELAY_NS, REST_NS, coarse_lag
from netmon.records import Table

_INTERVAL_NS = 1_000_000_000
_MOST_LAG_NS = 10_000_000_000  # of hosts whose clocks nobody knows
_COARSE_NS = 5_000_000_000
_MOST_COARSE = 64  # pairs in one round, of those that are about to be brought near each other
_NEAR_NS = (REST_NS - MOST_DELAY_NS) // 4  # how well two clocks have to be known to match their onsets
_ROOM_NS = 100_000  # a comparison that is less exact says little: the traffic meets queues
_MOVED_NS = 1_000_000  # a clock that has moved so far is matched anew

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class Clocks:
    """Compares the hosts' clocks now and then, and answers what to add to each.

    A round costs as much as there are new onsets, and hosts that exchange traffic: those that do not are not compared.
    """

    def __init__(self) -> None:
        self._due_ns = 0
        self._ends = FlowMatching()
        self._delays = Delays(self._ends)
        self._coarse: dict[int, int] = {}  # by index: as the host stage will know it
        self._corrections: dict[int, Correction | None] = {}
        self._offsets: dict[int, int] = {}  # of the last round, as far as an exchange held the clock

    def due(self, now_ns: int) -> bool:
        """Whether it is time to compare again; at most once a second. now_ns: of any monotonic clock."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _INTERVAL_NS
        return True

    def add_news(self, news: HostNews) -> None:
        """Take in flows and onsets, and what is over."""
        for flow in news.flows:
            self._ends.add_flow(flow)
        self._delays.add_onsets(news.onsets)
        if len(news.over):
            self._ends.forget_flows(news.over.tolist())
        if news.ended:
            self._delays.keep_pairs(self._ends.forget_sessions(set(news.ended)))
            for known in (self._coarse, self._corrections, self._offsets):
                for session_index in news.ended:
                    known.pop(session_index, None)

    def compare(self, clocks: Sequence[HostClock]) -> list[ClockUpdate]:
        """Compare the clocks of all hosts, one session of each, by the flows that both ends of have been seen."""
        if not clocks:
            return []
        clocks = sorted(clocks, key=lambda clock: clock.session)
        hosts = _Hosts(clocks, self._coarse, self._corrections)
        pairs = hosts.lines.hosts(self._ends.sessions()).reshape(-1, 2)
        there = np.logical_and(pairs[:, 0] >= 0, pairs[:, 1] >= 0)
        usable = there & hosts.synchronized[pairs[:, 0]] & hosts.synchronized[pairs[:, 1]]
        moved = self._moved(hosts)
        anew = there & (~usable | moved[pairs[:, 0]] | moved[pairs[:, 1]])
        comparisons = self._compare(hosts, pairs, there, usable, anew)
        compared = {number for c in comparisons for number in (c.first, c.second)}
        lost = [number for number in np.flatnonzero(~hosts.synchronized).tolist() if number not in compared]
        for number, lag in self._coarse_lags(hosts, pairs, lost).items():
            hosts.coarse[number] += lag
        corrections = combine(hosts.lines.error_ns.tolist(), comparisons, hosts.latest_ns)
        own: dict[int, int] = {}
        for c in comparisons:
            for number in (c.first, c.second):
                own[number] = max(own.get(number, 0), c.error_ns)
        trusts = _trusts_hosts(clocks)
        found = []
        for number, (clock, computed) in enumerate(zip(clocks, corrections, strict=True)):
            correction = computed if number in compared else None
            if correction and not clock.synchronized:
                # Only the traffic holds it: it may drift away for good. The bound is of hosts against each other.
                hosts.coarse[number] += correction.ns
                correction = replace(correction, ns=0, error_ns=own[number])
            self._coarse[clock.session], self._corrections[clock.session] = hosts.coarse[number], correction
            found.append(ClockUpdate(clock.session, correction, hosts.coarse[number], trusts))
        return found

    def _moved(self, hosts: "_Hosts") -> _Flags:
        """Whether a clock's offset is another than in the last round, but for what it drifts."""
        before = np.array([self._offsets.get(clock.session, 0) for clock in hosts.clocks], np.int64)
        offsets = hosts.lines.offset_ns
        self._offsets = {
            clock.session: offset
            for clock, offset in zip(hosts.clocks, offsets.tolist(), strict=True)
            if clock.synchronized
        }
        moved: _Flags = np.abs(offsets - before) > _MOVED_NS + hosts.lines.error_ns
        return moved

    def _compare(self, hosts: "_Hosts", pairs: _Numbers, there: _Flags, held: _Flags, anew: _Flags) -> list[Comparison]:
        """Each two hosts that sent each other something: the first's correction minus the second's.

        What is sent by the first bounds it from above, what the second sends from below.
        """
        lines = hosts.lines
        kept = self._delays.match(lines, _NEAR_NS, anew)  # also without a pair: what has no other end is let go of
        if not len(pairs):
            return []
        kept = kept.compress(there[kept["way"] // 2])
        sent, took = self._delays.took(kept, lines)
        early = lines.error_ns[pairs].sum(axis=1)[kept["way"] // 2]
        near = (early <= _NEAR_NS) & (took >= -early) & (took <= early + MOST_DELAY_NS)
        kept, sent, took = kept.compress(near), sent[near], took[near]
        usable = there & self._agree(kept["way"], lines, there & ~held)
        counts = np.bincount(kept["way"], minlength=2 * len(pairs)).reshape(-1, 2)
        usable &= (counts[:, 0] > 0) & (counts[:, 1] > 0)
        chosen = np.flatnonzero(usable)
        if not len(chosen):
            return []
        of_synchronized = held[kept["way"] // 2] & usable[kept["way"] // 2]
        hosts.latest_ns = int((sent[of_synchronized] if of_synchronized.any() else sent).max())
        # A packet's time is the start of its bucket: it was received by the end of one of the receiver's.
        late = took + kept["bucket_ns"]
        by_first = kept["way"] % 2 == 0
        row = np.full(len(pairs), -1)
        row[chosen] = np.arange(len(chosen))
        at = row[kept["way"] // 2]
        up, down = by_first & (at >= 0), ~by_first & (at >= 0)
        above = Points.padded(at[up], sent[up] - hosts.latest_ns, late[up], len(chosen), np.inf)
        below = Points.padded(at[down], sent[down] - hosts.latest_ns, -late[down], len(chosen), -np.inf)
        first, second = pairs[chosen].T
        present = hosts.present(first, second)
        # Two clocks that are believed stay so until the traffic refutes them: a middle would only show its queues.
        share = np.where(hosts.unrefuted[first] & hosts.unrefuted[second], 0.0, 1.0)
        base = np.zeros(len(chosen), np.int64)
        fits = fit_offsets(above, below, base, hosts.latest_ns, present, share, _ROOM_NS)
        columns = (first, second, fits.offset_ns, fits.skew, fits.error_ns)
        rows = zip(*(column[fits.there].tolist() for column in columns), strict=True)
        return [Comparison(*row) for row in rows]

    def _agree(self, way: _Numbers, lines: HostLines, loose: _Flags) -> _Flags:
        """Of pairs of which nothing else holds a clock, whether most of what should match does: some meets by chance.

        True of all other pairs.
        """
        agree = np.ones(len(loose), np.bool_)
        if loose.any():
            matched, shared = np.bincount(way, minlength=2 * len(loose)), self._delays.shared(loose, lines)
            most = 2 * matched >= shared
            agree[loose] = (most[::2] & most[1::2])[loose]
        return agree

    def _coarse_lags(self, hosts: "_Hosts", pairs: _Numbers, lost: Iterable[int]) -> dict[int, int]:
        """What brings hosts of which nothing is known near those that they talk to: ns to add, where it is found."""
        adrift = np.zeros(len(hosts.clocks) + 1, np.bool_)  # the last one stands for hosts that are not there
        adrift[list(lost)] = True
        which = (adrift[pairs[:, 0]] | adrift[pairs[:, 1]]) & (pairs[:, 0] >= 0) & (pairs[:, 1] >= 0)
        which &= np.cumsum(which) <= _MOST_COARSE
        if not which.any():
            return {}
        sent, received = self._delays.of_pairs(which, hosts.lines)
        links = self._ends.links()
        comparisons = []
        for pair in np.flatnonzero(which).tolist():
            first, second = pairs[pair].tolist()
            own = [
                table[(links["pair"][table["key"]] == pair) & links["by_first"][table["key"]]]
                for table in (sent, received)
            ]
            lag = coarse_lag(_newest(own[0]), _newest(own[1]), _MOST_LAG_NS)
            if lag is not None:
                comparisons.append(Comparison(first, second, lag, 0.0, _NEAR_NS))
        found = {number for c in comparisons for number in (c.first, c.second) if adrift[number]}
        errors = np.where(adrift[:-1], _MOST_LAG_NS, _NEAR_NS).tolist()
        corrections = combine(errors, comparisons, hosts.latest_ns)
        return {number: corrections[number].ns for number in found}


class _Hosts:
    """The hosts of one round, by their number."""

    def __init__(
        self, clocks: Sequence[HostClock], coarse: dict[int, int], corrections: dict[int, Correction | None]
    ) -> None:
        """clocks: by index. coarse, corrections: what was answered before, where anything was."""
        self.clocks = clocks
        self.latest_ns = 0  # the time of the comparison
        self.coarse = [coarse.get(clock.session, clock.coarse_ns) for clock in clocks]
        self.synchronized = np.array([clock.synchronized for clock in clocks], np.bool_)
        self.unrefuted = np.array([clock.unrefuted for clock in clocks], np.bool_)
        lines = np.array(
            [
                (clock.session, clock.uncorrected.at_ns, clock.uncorrected.offset_ns, clock.uncorrected.error_ns)
                for clock in clocks
            ],
            np.int64,
        ).reshape(-1, 4)
        # What was answered and has not come back yet; where an exchange holds the clock, it is not used.
        missing = np.array(
            [own - clock.coarse_ns for own, clock in zip(self.coarse, clocks, strict=True)], np.int64
        ).reshape(-1)
        self.lines = HostLines(
            sessions=lines[:, 0],
            at_ns=lines[:, 1],
            offset_ns=lines[:, 2] + np.where(self.synchronized, 0, missing),
            skew=np.array([clock.uncorrected.skew for clock in clocks], np.float64),
            error_ns=np.where(self.synchronized, lines[:, 3], _NEAR_NS // 2),
        )
        known = [corrections.get(clock.session, clock.correction) for clock in clocks]
        self._corrected = self.synchronized | np.array([correction is not None for correction in known], np.bool_)
        self._correction = [(c.at_ns, c.ns, c.skew) if c else (0, 0, 0.0) for c in known]

    def present(self, first: _Numbers, second: _Numbers) -> Present:
        """The differences of hosts as they are corrected now; not there where nothing holds one of them."""
        at, ns, skew = (np.array(column) for column in zip(*self._correction, strict=True))
        now = ns + np.round(skew * (self.latest_ns - at)).astype(np.int64)
        there = self._corrected[first] & self._corrected[second]
        return Present(there, now[first] - now[second], skew[first] - skew[second])


def _trusts_hosts(clocks: Sequence[HostClock]) -> bool:
    """Hosts whose UTC is kept share an axis without us, but only all together."""
    return all(clock.synchronized and 0 < clock.own_error_ns < clock.uncorrected.error_ns for clock in clocks)


def _newest(table: Table) -> Table:
    """Of a few seconds: two clocks' skew must not blur the lag between them."""
    newest: Table = table[table["time_ns"] > table["time_ns"].max(initial=0) - _COARSE_NS]
    return newest
