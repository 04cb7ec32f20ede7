# SPDX-License-Identifier: Apache-2.0
"""What the host stage and the job stage send each other; nothing else passes between the two.

A message is never changed once it has been made, holds no reference to the state of either stage, and can be pickled:
the two may live in processes of their own. A session is known by its place, a number that the host stage gives it and
gives to another one only after it has reported the session's end; a flow by `flow_numbers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from netmon.dl.clocks import Correction, OffsetFit
from netmon.dl.inference.types import TRAFFIC
from netmon.dl.numbering import Trust
from netmon.dl.step_alignment import Events, StepMoment
from netmon.records import Flow, Mark, Owner, Table, empty

BY_TRAFFIC = "traffic"
"""Owner.source of a flow that only the traffic shows about."""

GRAIN_NS = 1_000_000
"""Payload is reported in sums of a millisecond."""

ONSET_UPDATE = np.dtype([("flow", "<i8"), ("time_ns", "<i8"), ("bucket_ns", "<i8")])
"""A flow began to send after a rest: in the bucket from time_ns (mono, of its host) on, bucket_ns wide."""

_FLOW_ID_BITS = 32
_Number = TypeVar("_Number", int, npt.NDArray[np.int64])


def flow_numbers(session_index: int, flow_ids: _Number) -> _Number:
    """Numbers of a session's flows, over all sessions: below 2⁶³ for indices below 2³¹."""
    return flow_ids + (session_index << _FLOW_ID_BITS)


def session_of(flow: _Number) -> _Number:
    """The session's index, of a flow's number or of many."""
    return flow >> _FLOW_ID_BITS


def flow_id_of(flow: int) -> int:
    """The id that the session's agent gave to the flow."""
    return flow & ((1 << _FLOW_ID_BITS) - 1)


class FlowUpdate(NamedTuple):
    """A flow that carries payload or begins after rests; sent before its first row, and again when its owner changes.

    Aggregates of flows are not reported.
    """

    flow: int
    host: str
    link: str  # name of the interface
    direction: int  # records.Direction
    src: str
    dst: str
    src_port: int
    dst_port: int
    protocol: int
    job: str  # of its owner, but for what only the traffic showed
    rank: int
    known: bool  # whether anything but the traffic showed of its owner


class Holder(NamedTuple):
    """A process that trains, as an agent knows it; pid 0: only its traffic is known."""

    host: str
    session: str
    pid: int


class Step(NamedTuple):
    """What a process steps as, and when: UTC (ns)."""

    rank: int
    size: int  # of its job; 0: unknown
    since_ns: int  # its first step as this rank
    last_ns: int


class HostClock(NamedTuple):
    """How well one host's clock is known, without what the traffic corrects."""

    session: int
    host: str
    uncorrected: OffsetFit  # UTC = mono + this line, within its error; by the exchange, or as the host itself says
    synchronized: bool  # by an exchange
    unrefuted: bool  # the host's own UTC is what exchanges have not refuted so far
    own_error_ns: int  # of the host's own UTC; 0: it is not kept
    coarse_ns: int  # as it was sent last, part of `uncorrected`
    correction: Correction | None  # as it was sent last


@dataclass(frozen=True)
class HostNews:
    """All that the host stage has to report since the last time."""

    clocks: Sequence[HostClock] = ()  # of the newest session of each host that is connected
    flows: Sequence[FlowUpdate] = ()
    payload: Table = field(default_factory=lambda: empty(TRAFFIC))  # a row per flow and GRAIN_NS, any order
    onsets: Table = field(default_factory=lambda: empty(ONSET_UPDATE))
    over: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # flows that are forgotten
    ended: Sequence[int] = ()  # indices of sessions that are over, with all their flows
    horizon_ns: int = 0  # up to here (UTC) all hosts that are connected have reported everything; 0: not known
    pending_updates: int = 0  # rows that were left out because there were too many
    marked: frozenset[str] = frozenset()  # jobs that report their iterations themselves
    unclear: Mapping[str, bool] = field(default_factory=dict)  # jobs whose calls no steps explain, now or at all


class MarkUpdate(NamedTuple):
    """A moment of a rank on a host, by the traffic. The mark's time is UTC; 0: now, whatever the host's clock says."""

    session: int
    mark: Mark


class ClockUpdate(NamedTuple):
    """What the traffic says of one host's clock, from now on."""

    session: int
    correction: Correction | None
    coarse_ns: int  # what to add to the host's own UTC where there is no exchange
    trusts_host: bool  # every host's own UTC is kept, and better than the exchange


@dataclass(frozen=True)
class JobNews:
    """What the job stage answers to HostNews."""

    marks: Sequence[MarkUpdate] = ()
    owners: Mapping[int, Owner] = field(default_factory=dict)  # of flows, by the traffic
    clocks: Sequence[ClockUpdate] = ()
    patterns: Mapping[str, str] = field(default_factory=dict)  # by job, of all that the traffic shows
    mistaken: Sequence[str] = ()  # jobs by the traffic that turn out to be others', or none
    trouble: Sequence[str] = ()  # what viewers are to be reported, a line each
    cpu_s: float = 0.0  # that it took
    begins_anew: bool = False  # the job stage has lost all that it knew, this news included: report everything again


# --- Within a tick: one message each way, for all hosts.
#
# A rank is known by its serial, a number that no other one gets: it is one process as one rank of one job. A session is
# known by such a number too.

BY_PEER = "peer"
"""Owner.source of a flow that belongs to a job by its other end."""


class About(IntEnum):
    """What a row of RANK_UPDATE says."""

    CLAIM = 0  # it steps: under which name?
    LAST_CLAIM = 1  # the same, and there is no later
    RELEASE = 2  # it steps no more as this rank
    FRESH = 3  # its process counts from its own beginning
    GO_ON = 4  # its process was another rank of the job: it counts on, with this trust and shift
    REJOIN = 5  # it is set up anew, and counts on
    FORGET = 6  # it has left and all its rows have settled
    DROP = 7  # the same, and its process is the same rank again
    RESUME = 8  # the dataset has iterations of this rank of the job, with this trust and shift
    SILENT = 9  # the session is silent: others may take its ranks
    OVER = 10  # the session is over


RANK_UPDATE = np.dtype(
    [
        ("about", "u1"),
        ("session", "<i8"),
        ("serial", "<i8"),
        ("job", "<i4"),  # index into TickNews.jobs: as the process calls it
        ("rank", "<i8"),
        ("pid", "<i8"),  # 0: only its traffic is known
        ("size", "<i8"),  # of its job; 0: unknown
        ("since_ns", "<i8"),  # its first step as this rank, UTC
        ("last_ns", "<i8"),  # the latest that is known of its steps, UTC
        ("trust", "u1"),  # netmon.dl.numbering.Trust
        ("shift", "<i8"),
    ]
)

STEP_UPDATE = np.dtype([("serial", "<i8"), ("size", "<i8"), ("last_ns", "<i8")])
"""A rank has stepped on; before what the rows of RANK_UPDATE say."""


class StepEvents(NamedTuple):
    """A rank's latest events, by its own numbers; UTC, right to error_ns."""

    serial: int
    trust: Trust
    events: Mapping[StepMoment, Events]
    error_ns: int


@dataclass(frozen=True)
class TickNews:
    """What is new on all hosts."""

    opened: Sequence[tuple[int, Holder]] = ()  # sessions and whose they are, pid 0
    jobs: Sequence[str] = ()
    ranks: Table = field(default_factory=lambda: empty(RANK_UPDATE))  # in the order in which it came to be
    steps: Table = field(default_factory=lambda: empty(STEP_UPDATE))  # before all of that
    step_events: Sequence[StepEvents] = ()  # after all of that
    flows_over: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # no lookup more; before…
    flows: Sequence[tuple[int, Flow]] = ()  # …those whose other end is requested, or which are others' other end


class Count(NamedTuple):
    """How the job counts the iterations of a rank."""

    trust: Trust = Trust.RELATIVE
    shift: int = 0  # what to add to its own numbers
    relative: bool = True  # they count only from when somebody began to look
    compared: bool = False  # with those of the job's other ranks, as far as it has others


NO_NUMBERS = Count()
"""Of a rank of which nothing has been said."""


class PeerUpdate(NamedTuple):
    """The rank at the other end of a flow; an empty job: none is known there."""

    flow: int
    job: str
    rank: int


@dataclass(frozen=True)
class TickAnswer:
    """What the job stage says to that; of what it does not say nothing has changed."""

    names: Sequence[tuple[int, str]] = ()  # serials of ranks that have claimed, and the names of their jobs
    lost: Sequence[tuple[int, bool]] = ()  # whether another one is now what the traffic showed of this one
    counts: Sequence[tuple[int, Count]] = ()
    moved: Sequence[tuple[int, int]] = ()  # ranks whose numbers have moved that were used; what is added to them now
    peers: Sequence[PeerUpdate] = ()
