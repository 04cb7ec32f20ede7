# SPDX-License-Identifier: Apache-2.0
"""What the view hears of the host stage (rows of ARRIVED and FINAL), and what it reads there at a tick (HostState).

Everything is arrays over all hosts of the worker. A *host number*, *link number* and *flow number* is the index of a
row in those arrays; it is dense, and may be given out again once `View.forget_links` was reported its links. Times are
the host's mono unless they say else. Reading changes nothing, and what is handed out is not written while it is read:
the view reads on the thread that tells the news, copies what it keeps, and gives viewers only what it has frozen.

`collector/view/sessions.py` is the one module that makes all this of per-session objects; whoever keeps the state of
all hosts in arrays gives them to the view as they are, and that module goes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from netmon.records import Direction, Flow, Table
from netmon.views import SourceScore

ARRIVED = np.dtype(
    [("flow", "<i4"), ("link", "<i4"), ("start_ns", "<i8"), ("wire_bytes", "<i8"), ("payload_bytes", "<i8")]
)
"""A bucket row that has come, in any order, or several of one flow and share window: start_ns is the window's then."""

FINAL = np.dtype([("link", "<i4"), ("job", "<i4"), ("class", "u1"), ("start_ns", "<i8"), ("wire_bytes", "<i8")])
"""A bucket row whose class and job (as in FLOW) are final, or several of one share window; each comes once or never."""

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
"""One link; its names are in HostState.link_names."""

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


class FlowFacts(NamedTuple):
    """A flow that is shown."""

    flow: Flow
    link: int
    wire_bytes: int  # since its start
    traffic: str  # as in TRAFFIC_NAMES
    rtt_ns: float = math.nan  # as in FlowView
    rtt_min_ns: float = math.nan
    loss: float = math.nan


class HostState(Protocol):
    """What the view reads; every call returns what is known now, in time that does not grow with rows."""

    def host_names(self) -> Sequence[str]:
        """By host number. Another object where a host has come or gone, else the same one."""

    def agent_versions(self) -> Sequence[str]:
        """By host number, of the hosts of host_names."""

    def hosts(self) -> Table:
        """Dtype HOST, by host number, of the hosts of host_names."""

    def link_names(self) -> Sequence[LinkName]:
        """By link number. Another object where a link has come or gone, else the same one."""

    def links(self) -> Table:
        """Dtype LINK, by link number, of the links of link_names."""

    def flow_states(self) -> Table:
        """Dtype FLOW, by flow number."""

    def flow_facts(self, numbers: npt.NDArray[np.int64]) -> Sequence[FlowFacts | None]:
        """Of these few flows; None of one that is not known any more."""

    def scores(self) -> Sequence[tuple[str, SourceScore]]:
        """(job, how one rank's source of iterations does against its best one); the last ones of jobs that are gone."""

    def stepping_jobs(self) -> set[str]:
        """Jobs that have ranks now, so that no score means none."""

    def warnings(self) -> Sequence[str]:
        """One line each, of all hosts."""
