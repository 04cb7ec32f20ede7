# SPDX-License-Identifier: Apache-2.0
"""The state of all hosts as arrays (HostState), made of one object per session, and the sessions' rows as news."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from collector.host.session import Session
from collector.host.window import Output
from collector.view.state import ARRIVED, CLOCK_SOURCES, FINAL, FLOW, HOST, LINK, FlowFacts, LinkName
from collector.view.view import View
from netmon.dl.traffic import TRAFFIC_NAMES, Traffic
from netmon.records import Table
from netmon.views import SourceScore

_SOURCES = {name: number for number, name in enumerate(CLOCK_SOURCES)}


class Connected(Protocol):
    """A session and its connection."""

    session: Session
    connected: bool


@dataclass
class _Seat:
    """The numbers of one session."""

    session: Session
    first_link: int
    host: int = -1  # −1: not shown
    changed: bool = True  # since it was read last
    flows: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # number, by index
    scores: list[tuple[str, SourceScore]] = field(default_factory=list)
    stepping: set[str] = field(default_factory=set)

    @property
    def links(self) -> npt.NDArray[np.int32]:
        """Its link numbers."""
        return np.arange(self.first_link, self.first_link + len(self.session.window.links), dtype=np.int32)


class Sessions:
    """Gives numbers to what sessions have, and reads the sessions that have changed."""

    def __init__(self) -> None:
        """Begin without sessions."""
        self._seats: dict[str, _Seat] = {}
        self._shown: list[tuple[_Seat, Connected]] = []
        self._host_names: tuple[str, ...] = ()
        self._link_names: list[LinkName] = []
        self._hosts = np.zeros(0, HOST)
        self._links = np.zeros(0, LINK)
        self._flows = np.zeros(0, FLOW)
        self._flow_of: list[tuple[_Seat, int] | None] = []  # by flow number
        self._free_flows: list[int] = []
        self._free_links: dict[int, list[int]] = {}  # the first of so many

    def show(self, newest: Sequence[Connected]) -> None:
        """These sessions are what viewers see now, one of each host; those that are not known any more have gone."""
        self._shown = []
        for seat in self._seats.values():
            seat.host = -1
        for one in sorted(newest, key=lambda one: one.session.hello.host):
            seat = self._seat(one.session)
            seat.host, seat.changed = len(self._shown), True
            self._shown.append((seat, one))
        self._host_names = tuple(seat.session.hello.host for seat, _ in self._shown)
        self._hosts = np.zeros(len(self._shown), HOST)
        for seat in self._seats.values():
            self._links["host"][seat.links] = seat.host

    def hear(self, session: Session, output: Output, view: View) -> None:
        """A session has taken in a batch, or has settled."""
        seat = self._seat(session)
        seat.changed = True
        self._number_flows(seat)
        for rows, dtype, tell in ((output.arrived, ARRIVED, view.arrived), (output.final, FINAL, view.final)):
            if not len(rows):
                continue
            news = np.empty(len(rows), dtype)
            for name in set(dtype.names or ()) & set(rows.dtype.names or ()):
                news[name] = rows[name]
            if dtype == ARRIVED:
                news["link"] = session.window.flows.state["link"][rows["flow"]]
                news["flow"] = seat.flows[rows["flow"]]
            news["link"] += seat.first_link
            tell(news)

    def forget(self, session: Session, view: View) -> None:
        """A session has gone."""
        seat = self._seats.pop(session.hello.session, None)
        if seat is None or seat.session is not session:
            return
        view.forget_links(seat.links)
        self._links["host"][seat.links] = -1
        self._free_links.setdefault(len(seat.links), []).append(seat.first_link)
        for number in seat.flows.tolist():
            self._flow_of[number] = None
            self._free_flows.append(number)

    def _seat(self, session: Session) -> _Seat:
        seat = self._seats.get(session.hello.session)
        if seat is None:
            seat = self._seats[session.hello.session] = _Seat(session, self._take_links(session))
        return seat

    def _take_links(self, session: Session) -> int:
        links = session.window.links
        names = [
            LinkName(session.hello.host, links.interface(n).name, links.direction(n), links.hook(n))
            for n in range(len(links))
        ]
        free = self._free_links.get(len(links))
        first = free.pop() if free else len(self._link_names)
        self._link_names = [*self._link_names[:first], *names, *self._link_names[first + len(links) :]]
        self._links = np.concatenate([self._links, np.zeros(len(self._link_names) - len(self._links), LINK)])
        own = self._links[first : first + len(links)]
        own[:] = 0
        own["host"], own["capacity_bps"] = -1, links.capacity_bps
        return first

    def _number_flows(self, seat: _Seat) -> None:
        fresh = range(len(seat.flows), len(seat.session.window.flows.flows))
        if not fresh:
            return
        numbers = []
        for index in fresh:
            number = self._free_flows.pop() if self._free_flows else len(self._flow_of)
            if number == len(self._flow_of):
                self._flow_of.append(None)
            self._flow_of[number] = seat, index
            numbers.append(number)
        seat.flows = np.concatenate([seat.flows, np.array(numbers, np.int32)])
        if len(self._flow_of) > len(self._flows):
            self._flows = np.concatenate([self._flows, np.zeros(len(self._flow_of), FLOW)])

    def _read(self) -> None:
        """Read the sessions that are shown and have changed."""
        for seat, one in self._shown:
            if seat.changed:
                seat.changed = False
                self._number_flows(seat)
                self._read_seat(seat)
            self._hosts["connected"][seat.host] = one.connected

    def _read_seat(self, seat: _Seat) -> None:
        window, clock = seat.session.window, seat.session.window.alignment
        cost, hello = window.cost, seat.session.hello
        self._hosts[seat.host] = (
            *(False, hello.clock.mono_ns, window.horizon_ns, clock.utc(window.horizon_ns), window.settled_ns),
            *(window.window_ns, window.bucket_ns, hello.streamed_ns),
            *(_SOURCES.get(clock.source, 0), clock.error_ns, clock.host_offset_ns, clock.skew_ppm),
            *(cost.cpu_fraction, cost.rss_bytes, cost.spool_bytes, cost.warnings),
        )
        totals = ("nic_bytes", "attributed_bytes", "overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes")
        for column, name in enumerate(totals):
            self._links[name][seat.links] = window.ledger.totals[:, column]
        state = window.flows.state
        for name in ("class", "job"):
            self._flows[name][seat.flows] = state[name]
        self._flows["gradient"][seat.flows] = state["traffic"] == Traffic.GRADIENT
        seat.scores, seat.stepping = window.ranks.scores(), window.ranks.stepping_jobs()

    def host_names(self) -> Sequence[str]:
        """See HostState."""
        return self._host_names

    def hosts(self) -> Table:
        """See HostState."""
        self._read()
        return self._hosts

    def link_names(self) -> Sequence[LinkName]:
        """See HostState."""
        return self._link_names

    def links(self) -> Table:
        """See HostState."""
        self._read()
        return self._links

    def flow_states(self) -> Table:
        """See HostState."""
        self._read()
        return self._flows

    def flow_facts(self, numbers: npt.NDArray[np.int64]) -> Sequence[FlowFacts | None]:
        """See HostState."""
        return [self._facts(*whose) if (whose := self._flow_of[number]) else None for number in numbers.tolist()]

    @staticmethod
    def _facts(seat: _Seat, index: int) -> FlowFacts:
        table = seat.session.window.flows
        state = table.state[index]
        link = seat.first_link + int(state["link"])
        return FlowFacts(table.flows[index], link, int(state["wire_bytes"]), TRAFFIC_NAMES[state["traffic"]])

    def scores(self) -> Sequence[tuple[str, SourceScore]]:
        """See HostState."""
        return [score for seat, _ in self._shown for score in seat.scores]

    def stepping_jobs(self) -> set[str]:
        """See HostState."""
        return {job for seat, _ in self._shown for job in seat.stepping}

    def warnings(self) -> Sequence[str]:
        """See HostState."""
        return [line for seat, _ in self._shown for line in seat.session.window.ranks.warnings]
