# SPDX-License-Identifier: Apache-2.0
"""The host stage as the view reads it: its tables, and of each session what is no column there.

Everything is arrays over all hosts of the worker. A *host number*, *link number* and *flow number* is the index of a
row in those arrays; it is dense, and may be given out again once `View.forget_links` was reported its links. Times are
the host's mono unless they say else. Reading changes nothing, and what is handed out is not written while it is read:
the view copies what it keeps, and gives viewers only what it has frozen.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.align import Alignment
from collector.host.flows import TOTALS
from collector.host.ledger import TOTALS as LEDGER_TOTALS
from collector.host.rank import Rejected
from collector.host.session import Session
from collector.host.tables import Classified, Tables
from netmon.dl.classify import BULK, TRAFFIC_NAMES
from netmon.dl.grouped import starts
from netmon.records import Class, Columns, Direction, Table
from netmon.views import FlowView, SourceScore

ARRIVED = np.dtype([(name, "<i8") for name in ("flow", "link", "start_ns", "wire_bytes", "payload_bytes")])
"""A bucket row that has come, in any order, or the sum of some of one flow and share window, whose start_ns it has."""

FINAL = np.dtype([("link", "<i8"), ("job", "<i8"), ("class", "u1"), ("start_ns", "<i8"), ("wire_bytes", "<i8")])
"""A bucket row whose class and job (as in FLOW) are final, or a sum of one share window; each comes once or never."""

HOST = np.dtype(
    [
        ("connected", "?"),
        ("begin_ns", "<i8"),  # the agent's start: before it nobody knows
        ("horizon_ns", "<i8"),  # every row that ended before it has arrived
        ("horizon_utc_ns", "<i8"),  # the same moment
        ("settled_ns", "<i8"),  # every row that began before it is final
        ("window_ns", "<i8"),  # width of a share window
        ("bucket_ns", "<i8"),  # of the rows that it streams now
        ("stream_ns", "<i8"),  # of those that it streams unless it is under pressure
        ("clock_source", "u1"),  # index into CLOCK_SOURCES
        ("clock_error_ns", "<i8"),
        ("clock_offset_ns", "<i8"),
        ("clock_skew_ppm", "<f8"),
        ("cpu_fraction", "<f8"),
        ("rss_bytes", "<i8"),
        ("spool_bytes", "<i8"),
        ("warnings", "<i8"),
    ]
)
"""One host, as its newest session has it."""

CLOCK_SOURCES = ("", "exchange", "traffic", "ptp", "ntp")

LINK = np.dtype(
    [
        ("host", "<i4"),  # host number; -1: the link is not shown (its session was replaced, or has gone)
        ("capacity_bps", "<i8"),  # 0: unknown
        ("nic_bytes", "<i8"),  # the ledger since the agent's start, in wire bytes
        ("attributed_bytes", "<i8"),
        ("overflow_bytes", "<i8"),
        ("lost_kernel_bytes", "<i8"),
        ("lost_agent_bytes", "<i8"),
    ]
)
"""One link; its names are in Sessions.link_names."""

FLOW = np.dtype(
    [
        ("class", "u1"),  # the flow's own: never DL_SHARED
        ("job", "<i4"),  # any number ≥ 0 that is the same for two flows of a host where their jobs are
        ("gradient", "?"),  # a DL flow that carries gradients
    ]
)


class LinkName(NamedTuple):
    """What of a link does not change."""

    host: str
    interface: str
    direction: Direction
    hook: str


_SOURCES = {name: number for number, name in enumerate(CLOCK_SOURCES)}
_CLOCKS_EVERY_S = 2.0  # they are estimates over seconds
_OF_SESSION = (
    "horizon_ns",
    "settled_ns",
    "window_ns",
    "bucket_ns",
    "cpu_fraction",
    "rss_bytes",
    "spool_bytes",
    "warnings",
)
_REFRESHED_AT_ONCE = 32  # hosts
_TOTALS_SHOWN = tuple(name for name in TOTALS if name in FlowView.__dataclass_fields__)
_TCP = ("rtt_ns", "rtt_min_ns", "loss")
_NO_LINK = LinkName("", "", Direction.RX, "")


class _Ranks(NamedTuple):
    session: Session
    scores: list[tuple[str, SourceScore]]
    past_scores: list[tuple[str, SourceScore]]  # the last ones of ranks that have gone
    stepping: set[str]


def _ranks_of(session: Session) -> _Ranks:
    return _Ranks(session, *session.window.ranks.scores(), session.window.ranks.stepping_jobs())


class Sessions:
    """The sessions that viewers see, one of each host; links and flows have the numbers of the stage's tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._shown: list[Session] = []
        self._rejected: list[Rejected] = []  # these two of the sessions that are shown
        self._alignments: list[Alignment] = []
        self._indices: npt.NDArray[np.int32] = np.empty(0, np.int32)  # of the sessions that are shown
        self._is_shown = np.zeros(0, np.bool_)  # by index of the session
        self.host_names: tuple[str, ...] = ()
        self.agent_versions: tuple[str, ...] = ()
        self.link_names: list[LinkName] = []
        self._hosts = np.zeros(0, HOST)
        self._clocks_s = -np.inf
        self._ranks: list[_Ranks] = []  # of the sessions that are shown, as they were read last
        self._refresh_next = 0

    def show(self, newest: Sequence[Session]) -> None:
        """These sessions are what viewers see from now on, one of each host."""
        self._shown = sorted(newest, key=lambda session: session.hello.host)
        sessions = self._shown
        self._rejected = [session.window.ranks.rejected for session in sessions]
        self._alignments = [session.window.alignment for session in sessions]
        self._indices = np.array([session.index for session in sessions], np.int32)
        self._is_shown = np.zeros(len(self._tables.sessions.table), np.bool_)
        self._is_shown[self._indices] = True
        self.host_names = tuple(session.hello.host for session in sessions)
        self.agent_versions = tuple(session.hello.agent_version for session in sessions)
        self._hosts = np.zeros(len(sessions), HOST)
        self._hosts["begin_ns"] = [session.hello.clock.mono_ns for session in sessions]
        self._hosts["stream_ns"] = [session.hello.streamed_ns for session in sessions]
        self.link_names = [_NO_LINK] * len(self._tables.sessions.links)
        for session in sessions:
            links, first = session.window.links, session.window.first_link
            for number in range(len(links)):
                about = session.hello.host, links.names[number], links.direction(number), links.hooks[number]
                self.link_names[first + number] = LinkName(*about)
        self._clocks_s = -np.inf
        known = {id(ranks.session): ranks for ranks in self._ranks}
        self._ranks = [known.get(id(session)) or _ranks_of(session) for session in sessions]

    def arrived(self, rows: Columns) -> Columns:
        """Rows of ARRIVED (collector.host.rows); those of one flow and share window that follow each other as one."""
        width = self._tables.sessions.table["window_ns"]
        known = width[width > 0]
        alike = len(known) and (known == known[0]).all()
        window = rows["start_ns"] // (known[0] if alike else width[rows["session"]])
        first = starts(rows["flow"], window)
        firsts = rows.take(first)
        news = {"flow": firsts["flow"], "link": self._tables.link(firsts)}
        news["start_ns"] = window.take(first) * self._tables.sessions.each("window_ns", firsts["session"])
        for name in ("wire_bytes", "payload_bytes"):
            amounts = rows[name]
            news[name] = np.add.reduceat(amounts, first, dtype=np.int64) if len(first) else amounts.astype(np.int64)
        return Columns(news)

    def final(self, found: Classified) -> Columns:
        """Final rows; those of one link, share window, class and job as one."""
        windows, wire = found.windows, found.rows["wire_bytes"]
        dl = (found.classes == Class.DL_ONLY) | (found.classes == Class.DL_SHARED)
        of_dl, others = np.flatnonzero(dl), np.flatnonzero(~dl)
        of_pair = np.bincount(windows.pair_of_row, weights=wire[of_dl], minlength=len(windows.pair_entry))
        cells = windows.of_row[others] * len(Class) + found.classes[others]
        of_cell = np.bincount(cells, weights=wire[others], minlength=len(windows.number) * len(Class))
        cell = np.flatnonzero(of_cell)
        entry = np.append(windows.pair_entry, cell // len(Class))
        link = windows.link.take(entry)
        shared = np.where(windows.pair_shared, np.uint8(Class.DL_SHARED), np.uint8(Class.DL_ONLY))
        return Columns(
            {
                "link": link,
                "job": np.append(windows.pair_job, np.zeros(len(cell), np.int64)),
                "class": np.append(shared, (cell % len(Class)).astype(np.uint8)),
                "start_ns": windows.number.take(entry) * self._tables.sessions.links["window_ns"].take(link),
                "wire_bytes": np.append(of_pair, of_cell[cell]).astype(np.int64),
            }
        )

    def are_shown(self, session: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether viewers see these sessions."""
        return self._is_shown.take(session)

    @staticmethod
    def links_of(session: Session) -> npt.NDArray[np.int64]:
        first = session.window.first_link
        return np.arange(first, first + len(session.window.links))

    def _read_clocks(self) -> None:
        """What is known of each host's clock, read now and then from every session."""
        now_s = time.monotonic()
        if now_s - self._clocks_s < _CLOCKS_EVERY_S:
            return
        self._clocks_s = now_s
        clocks = self._alignments
        self._hosts["clock_source"] = [_SOURCES.get(clock.source, 0) for clock in clocks]
        self._hosts["clock_error_ns"] = [clock.error_ns for clock in clocks]
        self._hosts["clock_offset_ns"] = [clock.host_offset_ns for clock in clocks]
        self._hosts["clock_skew_ppm"] = [clock.skew_ppm for clock in clocks]

    def hosts(self) -> Table:
        sessions = self._tables.sessions
        for name in _OF_SESSION:
            self._hosts[name] = sessions.each(name, self._indices)
        self._hosts["horizon_utc_ns"] = sessions.utc(self._indices, self._hosts["horizon_ns"])
        self._hosts["connected"] = [one.connected for one in self._shown]
        self._read_clocks()
        return self._hosts

    def links(self) -> Table:
        own = self._tables.sessions.links[: len(self.link_names)]
        host_of = np.full(len(self._tables.sessions.table) + 1, -1, np.int32)  # the last one: of no session
        host_of[self._indices] = np.arange(len(self._indices))
        links = np.zeros(len(own), LINK)
        links["host"], links["capacity_bps"] = host_of[own["session"]], own["capacity_bps"]
        for column, name in enumerate(LEDGER_TOTALS):
            links[name] = self._tables.ledger.totals[: len(own), column]
        return links

    def flow_states(self) -> Table:
        state = self._tables.flows.state
        flows = np.empty(len(state), FLOW)
        flows["class"], flows["job"] = state["class"], state["job"]
        flows["gradient"] = np.isin(state["traffic"], BULK)
        return flows

    def flow_facts(self, numbers: npt.NDArray[np.int64]) -> Sequence[Mapping[str, Any] | None]:
        """Of each flow fields of FlowView, by their names; None: it is not known any more."""
        return [self._facts(number) for number in numbers.tolist()]

    def _facts(self, number: int) -> dict[str, Any] | None:
        table = self._tables.flows
        flow = table.flows[number] if number < len(table.flows) else None
        if flow is None:
            return None
        row = table.state[number]
        said = dict(zip(_TCP, self._tables.evidence.latest_tcp(number, flow.direction), strict=True))
        totals = {name: int(row[name]) for name in _TOTALS_SHOWN}
        return {"flow": flow, "traffic": TRAFFIC_NAMES[row["traffic"]], **totals, **said}

    def scores(self) -> Sequence[tuple[str, SourceScore]]:
        self._refresh_some()
        present, stepping = [score for ranks in self._ranks for score in ranks.scores], self.stepping_jobs()
        past = (score for ranks in self._ranks for score in ranks.past_scores if score[0] not in stepping)
        return [*present, *past]

    def stepping_jobs(self) -> set[str]:
        return {job for ranks in self._ranks for job in ranks.stepping}

    def _refresh_some(self) -> None:
        """The scores of the sources of iterations are read of some hosts at a time: it takes long."""
        for _ in range(min(_REFRESHED_AT_ONCE, len(self._shown))):
            self._refresh_next = (self._refresh_next + 1) % len(self._shown)
            self._ranks[self._refresh_next] = _ranks_of(self._shown[self._refresh_next])

    def warnings(self) -> Sequence[str]:
        return [line for rejected in self._rejected if rejected for line in rejected.warnings]
