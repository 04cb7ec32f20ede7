# SPDX-License-Identifier: Apache-2.0
"""Flows of which both ends are seen, each on a host of its own."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from collector.messages import FlowUpdate, session_of
from netmon.records import Direction, Table

LINK = np.dtype([("sender", "<i8"), ("receiver", "<i8"), ("pair", "<i8"), ("by_first", "?")])
"""Numbers of one flow at its sender and at its receiver, index of their hosts in FlowMatching.pairs, and which of the
two sends."""

_Numbers = npt.NDArray[np.int64]
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
        """Flows that are known."""
        return len(self._keys)

    def add_flow(self, flow: FlowUpdate) -> None:
        """Take in a flow that was reported."""
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
        """These flows are over."""
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
        rows, session_index = _find(flow, links["receiver"][self._by_receiver])
        return rows, self._by_receiver[session_index]

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
