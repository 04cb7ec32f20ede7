# SPDX-License-Identifier: Apache-2.0
"""When each packet that begins a burst was sent and received, between each two hosts that exchange traffic."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.jobs.flow_matching import FlowMatching
from collector.messages import ONSET_UPDATE, session_of
from netmon.dl.onsets import REST_NS, match_onsets
from netmon.dl.sums import joined
from netmon.records import Table, empty

WINDOW_NS = 16_000_000_000
"""Packets of so long are compared; within it a clock's rate may be taken as constant."""

DELAY = np.dtype([("way", "<i8"), ("sent_ns", "<i8"), ("received_ns", "<i8"), ("bucket_ns", "<i8")])
"""A packet between the hosts of a pair, sent and received in a bucket from then on (mono of each), the receiver's so
wide. way: twice the pair's number, and one more where the second of it sent."""

_MOST_ROUNDS = 16  # of a second at least
_WAIT_NS = 3_000_000_000  # in which the other end of a packet is reported
_SLOTS = 32
_SLOT_NS = WINDOW_NS // _SLOTS  # of all packets in it, one way between two hosts, the fastest is kept

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
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
