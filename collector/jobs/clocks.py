# SPDX-License-Identifier: Apache-2.0
"""The clocks of all hosts against each other, by the traffic between them."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collector.messages import ONSET_UPDATE, ClockUpdate, FlowUpdate, HostClock, HostNews, session_of
from netmon.dl.clocks import (
    MOST_DELAY_NS,
    REST_NS,
    Comparison,
    Correction,
    Points,
    Present,
    coarse_lag,
    combine,
    fit_offsets,
    match_onsets,
)
from netmon.dl.grouped import joined
from netmon.records import Direction, Table, empty

# --- Flows of which both ends are seen, each on a host of its own.

LINK = np.dtype([("sender", "<i8"), ("receiver", "<i8"), ("pair", "<i8"), ("by_first", "?")])
"""Numbers of one flow at its sender and at its receiver, index of their hosts in FlowMatching.pairs, and which of the
two sends."""

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Key = tuple[str, str, int, int, int]
_Pair = tuple[int, int]


class FlowMatching:
    """The links: one for each sender and receiver of a 5-tuple."""

    def __init__(self) -> None:
        self.pairs: list[_Pair] = []  # indices of two sessions, the lower one first
        self._pair_numbers: dict[_Pair, int] = {}
        self._sessions = np.empty(0, np.int64)  # of `pairs`, as far as they were requested
        self._keys: dict[int, _Key] = {}  # by flow
        self._ends: dict[_Key, tuple[list[int], list[int]]] = {}  # flows at senders, at receivers
        self._links = np.empty(0, LINK)  # by sender
        self._by_receiver = np.empty(0, np.int64)
        self._new: list[tuple[int, int, int, bool]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add_flow(self, flow: FlowUpdate) -> None:
        if flow.flow in self._keys:
            return
        key = flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol
        self._keys[flow.flow] = key
        ends = self._ends.setdefault(key, ([], []))
        sends = flow.direction == Direction.TX
        ends[0 if sends else 1].append(flow.flow)
        for other in ends[1 if sends else 0]:
            here, there = session_of(flow.flow), session_of(other)
            if here != there:
                sender, receiver = (flow.flow, other) if sends else (other, flow.flow)
                pair = min(here, there), max(here, there)
                self._new.append((sender, receiver, self._pair(pair), session_of(sender) == pair[0]))

    def forget_flows(self, flows: Iterable[int]) -> None:
        gone = [flow for flow in flows if flow in self._keys]
        for flow in gone:
            ends = self._ends[self._keys[flow]]
            for own in ends:
                if flow in own:
                    own.remove(flow)
            if not any(ends):
                del self._ends[self._keys[flow]]
            del self._keys[flow]
        if gone:
            links = self.links()
            over = np.isin(links["sender"], gone) | np.isin(links["receiver"], gone)
            self._keep(links.compress(~over))

    def forget_sessions(self, session_indices: set[int]) -> npt.NDArray[np.bool_]:
        """These sessions are over: so are their flows, and pairs of them. Says which pairs stay, in their old order."""
        self.forget_flows([flow for flow in self._keys if session_of(flow) in session_indices])
        stay = np.array([session_indices.isdisjoint(pair) for pair in self.pairs], np.bool_)
        self.pairs = [pair for pair in self.pairs if session_indices.isdisjoint(pair)]
        self._pair_numbers = {pair: number for number, pair in enumerate(self.pairs)}
        self._sessions = np.empty(0, np.int64)
        self._links["pair"] = (np.cumsum(stay) - 1)[self._links["pair"]]
        return stay

    def sessions(self) -> _Numbers:
        """Of both sessions of each pair, shape (2 · pairs,): the sender's of each way."""
        if len(self._sessions) != 2 * len(self.pairs):
            self._sessions = np.array(self.pairs, np.int64).reshape(-1)
        return self._sessions

    def links(self) -> Table:
        """All of them, dtype LINK, by sender."""
        if self._new:
            new, self._new = np.array(self._new, LINK), []
            self._keep(np.concatenate([self._links, new]))
        return self._links

    def sent(self, flow: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Of rows, by flow: (row, link) of each row that is a sender's, once per link."""
        return _find(flow, self.links()["sender"])

    def received(self, flow: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Of rows, by flow: (row, link) of each row that is a receiver's, once per link."""
        links = self.links()
        rows, at = _find(flow, links["receiver"][self._by_receiver])
        return rows, self._by_receiver[at]

    def _keep(self, links: Table) -> None:
        self._links = links.take(np.argsort(links["sender"], kind="stable"))
        self._by_receiver = np.argsort(self._links["receiver"], kind="stable")

    def _pair(self, pair: _Pair) -> int:
        number = self._pair_numbers.setdefault(pair, len(self.pairs))
        if number == len(self.pairs):
            self.pairs.append(pair)
        return number


def _find(flow: _Numbers, among: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Indices in `flow` and in `among` (ascending) of what is equal."""
    first = np.searchsorted(among, flow, "left")
    if not len(among) or (among[1:] != among[:-1]).all():  # hardly ever does one have two links
        found = np.zeros(len(flow), np.int64)
        inside = first < len(among)
        found[inside] = among[first[inside]] == flow[inside]
    else:
        found = np.searchsorted(among, flow, "right") - first
    rows = np.repeat(np.arange(len(flow)), found)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(found) - found, found)
    return rows, np.repeat(first, found) + within


# --- When each packet that begins a burst was sent and received, between each two hosts that exchange traffic.

WINDOW_NS = 16_000_000_000
"""Packets of so long are compared; within it a clock's rate may be taken as constant."""

DELAY = np.dtype([("way", "<i8"), ("sent_ns", "<i8"), ("received_ns", "<i8"), ("bucket_ns", "<i8")])
"""A packet between the hosts of a pair, sent and received in a bucket from then on (mono of each), the receiver's so
wide. way: twice the pair's number, and one more where the second of it sent."""

_MOST_ROUNDS = 16  # of a second at least
_WAIT_NS = 3_000_000_000  # in which the other end of a packet is reported
_SLOTS = 32
_SLOT_NS = WINDOW_NS // _SLOTS  # of all packets in it, one way between two hosts, the fastest is kept

_ONSET = np.dtype([("key", "<i8"), ("time_ns", "<i8")])
_LEAST, _MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class HostLines:
    """The clocks of the hosts of one round, by their number: UTC = mono + offset + skew·(mono − at), within error."""

    sessions: _Numbers  # ascending
    at_ns: _Numbers  # about now
    offset_ns: _Numbers
    skew: npt.NDArray[np.float64]
    error_ns: _Numbers

    def utc(self, host: _Numbers, mono_ns: _Numbers) -> _Numbers:
        """Times of hosts' clocks, uncorrected."""
        grown = np.round(self.skew[host] * (mono_ns - self.at_ns[host])).astype(np.int64)
        return mono_ns + self.offset_ns[host] + grown

    def hosts(self, session_index: _Numbers) -> _Numbers:
        """Numbers of the hosts at these indices; −1: none of this round's."""
        if not len(self.sessions):
            return np.full(len(session_index), -1, np.int64)
        found = np.searchsorted(self.sessions, session_index).clip(0, len(self.sessions) - 1)
        return np.where(self.sessions[found] == session_index, found, -1)


class Delays:
    """The packets of a window. A packet is looked for only until its other end is reported, and then remembered.

    But all of a pair's window is matched anew where the caller says so: where a clock has moved by which its packets
    were matched, and while nothing but the traffic holds one.
    """

    def __init__(self, ends: FlowMatching) -> None:
        """ends: of all flows that were reported; the caller's, which changes."""
        self._ends = ends
        self._new: list[Table] = []
        self._waiting = empty(ONSET_UPDATE)
        self._window: deque[Table] = deque(maxlen=_MOST_ROUNDS)  # of flows of which both ends are seen
        self._kept = empty(DELAY)  # by way
        self._senders_of: tuple[HostLines, _Numbers] | None = None  # of each way, in this round

    def add_onsets(self, onsets: Table) -> None:
        """Take in onsets, dtype ONSET_UPDATE, of flows that have been reported."""
        if len(onsets):
            self._new.append(onsets)

    def keep_pairs(self, stay: _Flags) -> None:
        """After FlowMatching.forget_sessions, which says which pairs stay."""
        kept = self._kept.compress(stay[self._kept["way"] // 2])
        kept["way"] = 2 * (np.cumsum(stay) - 1)[kept["way"] // 2] + kept["way"] % 2
        self._kept = kept

    def match(self, lines: HostLines, near_ns: int, anew: _Flags) -> Table:
        """All delays of the window, dtype DELAY, by way. near_ns: how well the clocks have to be known to each other.

        anew: which pairs to match from the beginning.
        """
        links_anew = anew[self._ends.links()["pair"]]
        new = joined([empty(ONSET_UPDATE), *self._new])
        self._new = []
        matched, self._waiting, linked = self._matched(joined([self._waiting, new]), lines, near_ns, ~links_anew)
        self._window.append(new.compress(linked[len(linked) - len(new) :]))
        found = [self._fastest(matched, lines)]
        if links_anew.any():
            again, _, _ = self._matched(joined([*self._window]), lines, near_ns, links_anew)
            found.append(again)
            self._kept = self._kept.compress(~anew[self._kept["way"] // 2])
        host = self._senders(lines, self._kept["way"])
        fresh = (host < 0) | (self._kept["sent_ns"] >= lines.at_ns[host] - WINDOW_NS)
        kept = joined([self._kept.compress(fresh), *found])
        self._kept = kept.take(np.argsort(kept["way"], kind="stable"))
        return self._kept

    def of_pairs(self, which: _Flags, lines: HostLines) -> tuple[Table, Table]:
        """What some pairs have sent and received in the window, dtypes of key (link) and time_ns (UTC)."""
        table, links = joined([empty(ONSET_UPDATE), *self._window]), self._ends.links()
        table = table.compress(lines.hosts(session_of(table["flow"])) >= 0)
        host = lines.hosts(session_of(table["flow"]))
        utc = lines.utc(host, table["time_ns"])
        fresh = table["time_ns"] >= lines.at_ns[host] - WINDOW_NS
        found = []
        for rows, link in (self._ends.sent(table["flow"]), self._ends.received(table["flow"])):
            wanted = which[links["pair"][link]] & fresh[rows]
            onsets = np.empty(int(wanted.sum()), _ONSET)
            onsets["key"], onsets["time_ns"] = link[wanted], utc[rows[wanted]]
            found.append(onsets)
        return found[0], found[1]

    def shared(self, which: _Flags, lines: HostLines) -> _Numbers:
        """By way: how many onsets of some pairs' windows the receiver should have seen, too.

        Of the flows of which it has seen any, and since it began to look.
        """
        sent, received = self.of_pairs(which, lines)
        links, count = self._ends.links(), 2 * len(which)
        way = 2 * links["pair"] + ~links["by_first"]
        begin, end, observed = np.full(count, _MOST), np.full(count, _LEAST), np.zeros(len(links), np.bool_)
        np.minimum.at(begin, way[received["key"]], received["time_ns"])
        np.maximum.at(end, way[received["key"]], received["time_ns"])
        observed[received["key"]] = True
        sent = sent.compress(observed[sent["key"]])
        at = way[sent["key"]]
        seen = (sent["time_ns"] >= begin[at] - REST_NS) & (sent["time_ns"] <= end[at] + REST_NS)
        return np.bincount(at[seen], minlength=count)

    def _matched(self, onsets: Table, lines: HostLines, near_ns: int, of_links: _Flags) -> tuple[Table, Table, _Flags]:
        """Delays along some links; the onsets that have found nothing and may yet; which of all belong to a link."""
        links, linked = self._ends.links(), np.zeros(len(onsets), np.bool_)
        host = lines.hosts(session_of(onsets["flow"]))
        utc = lines.utc(host, onsets["time_ns"]) if len(lines.sessions) else onsets["time_ns"]
        fresh = (host >= 0) & (onsets["time_ns"] >= lines.at_ns[host] - WINDOW_NS) if len(lines.sessions) else host >= 0
        ends = []
        for rows, link in (self._ends.sent(onsets["flow"]), self._ends.received(onsets["flow"])):
            linked[rows] = True
            wanted = of_links[link] & fresh[rows]
            rows, link = rows[wanted], link[wanted]
            table = np.empty(len(rows), _ONSET)
            table["key"], table["time_ns"] = link, utc[rows]
            ends.append((rows, link, table))
        (sent_row, sent_link, sent), (row, _, received) = ends
        other = lines.hosts(session_of(links["receiver"][sent_link]))
        near = other >= 0
        if near.any():
            early = lines.error_ns[host[sent_row]] + lines.error_ns[other]
            near &= early <= near_ns
            sent_row, sent_link, sent, early = sent_row[near], sent_link[near], sent.compress(near), early[near]
            i, j = match_onsets(sent, received, early)
        else:
            i = j = np.empty(0, np.int64)
        delays = np.empty(len(i), DELAY)
        delays["way"] = 2 * links["pair"][sent_link[i]] + ~links["by_first"][sent_link[i]]
        delays["sent_ns"], delays["received_ns"] = onsets["time_ns"][sent_row[i]], onsets["time_ns"][row[j]]
        delays["bucket_ns"] = onsets["bucket_ns"][row[j]]
        left = linked & fresh
        left[sent_row[i]] = left[row[j]] = False
        left[left] = onsets["time_ns"][left] > lines.at_ns[host[left]] - _WAIT_NS
        return delays, onsets.compress(left), linked

    def _senders(self, lines: HostLines, way: _Numbers) -> _Numbers:
        """Numbers of the hosts that send; −1: none of this round's."""
        sessions = self._ends.sessions()
        if self._senders_of is None or self._senders_of[0] is not lines or len(self._senders_of[1]) != len(sessions):
            self._senders_of = lines, lines.hosts(sessions)
        return self._senders_of[1][way] if len(sessions) else np.empty(0, np.int64)

    def took(self, delays: Table, lines: HostLines) -> tuple[_Numbers, _Numbers]:
        """When each was sent, and how much later it was received, by the uncorrected clocks; both are of this round."""
        sent = lines.utc(self._senders(lines, delays["way"]), delays["sent_ns"])
        return sent, lines.utc(self._senders(lines, delays["way"] ^ 1), delays["received_ns"]) - sent

    def _fastest(self, delays: Table, lines: HostLines) -> Table:
        """Of the packets of one way and slot, the one that took the shortest."""
        age = lines.at_ns[self._senders(lines, delays["way"])] - delays["sent_ns"]
        slot = (age // _SLOT_NS).clip(0, _SLOTS - 1) + _SLOTS * delays["way"]
        took = self.took(delays, lines)[1]
        order = np.lexsort((took, slot))
        first = np.concatenate(([True], np.diff(slot[order]) > 0))[: len(order)]
        least = took[order][first][np.cumsum(first) - 1]
        fastest: Table = delays.take(np.sort(order[took[order] == least]))
        return fastest


_INTERVAL_NS = 1_000_000_000
_MOST_LAG_NS = 10_000_000_000  # of hosts whose clocks nobody knows
_COARSE_NS = 5_000_000_000
_MOST_COARSE = 64  # pairs in one round, of those that are about to be brought near each other
_NEAR_NS = (REST_NS - MOST_DELAY_NS) // 4  # how well two clocks have to be known to match their onsets
_ROOM_NS = 100_000  # a comparison that is less exact says little: the traffic meets queues
_MOVED_NS = 1_000_000  # a clock that has moved so far is matched anew


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
        self._offsets: dict[int, int] = {}  # of the last round, as far as an exchange bounded the clock

    def due(self, now_ns: int) -> bool:
        """Whether it is time to compare again; at most once a second. now_ns: of any monotonic clock."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _INTERVAL_NS
        return True

    def add_news(self, news: HostNews) -> None:
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

    def _compare(
        self, hosts: "_Hosts", pairs: _Numbers, there: _Flags, synchronized: _Flags, anew: _Flags
    ) -> list[Comparison]:
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
        usable = there & self._agree(kept["way"], lines, there & ~synchronized)
        counts = np.bincount(kept["way"], minlength=2 * len(pairs)).reshape(-1, 2)
        usable &= (counts[:, 0] > 0) & (counts[:, 1] > 0)
        chosen = np.flatnonzero(usable)
        if not len(chosen):
            return []
        of_synchronized = synchronized[kept["way"] // 2] & usable[kept["way"] // 2]
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
