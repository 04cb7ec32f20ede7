# SPDX-License-Identifier: Apache-2.0
"""What the host stage and the job stage tell each other within a tick: one message each way, for all hosts.

As in collector.messages, a message is never changed once it has been made, holds no reference to the state of either
stage, and can be pickled. A rank is known by its serial, a number that no other one gets: it is one process as one
rank of one job. A session is known by such a number too; a flow by `messages.flow_numbers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.messages import Holder
from netmon.dl.numbering import Trust
from netmon.dl.step_alignment import Events, StepMoment
from netmon.records import Flow, Table, empty

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
    SILENT = 9  # nothing is heard of the session: others may take its ranks
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
        ("last_ns", "<i8"),  # its latest mark of a step, UTC
        ("trust", "u1"),  # netmon.dl.numbering.Trust
        ("shift", "<i8"),
    ]
)

STEP_UPDATE = np.dtype([("after", "<i8"), ("serial", "<i8"), ("size", "<i8"), ("last_ns", "<i8")])
"""A rank has stepped on, after so many rows of RANK_UPDATE."""


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
    steps: Table = field(default_factory=lambda: empty(STEP_UPDATE))  # the same
    step_events: Sequence[StepEvents] = ()  # after all of that
    flows_over: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # ask no more; before…
    flows: Sequence[tuple[int, Flow]] = ()  # …those whose other end is requested, or which are others' other end


class Count(NamedTuple):
    """How the job counts the iterations of a rank."""

    trust: Trust = Trust.RELATIVE
    shift: int = 0  # what to add to its own numbers
    relative: bool = True  # they count only from when somebody began to look


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
