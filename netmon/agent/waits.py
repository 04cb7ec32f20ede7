# SPDX-License-Identifier: Apache-2.0
"""What ranks that call nothing any more are in the midst of: rows of netmon.evidence.WAIT, now and then.

Of a rank that makes progress nothing is computed: its last call is looked at once a batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from netmon.dl.rank_activity import QUIET_NS, RankActivity, Work
from netmon.evidence import UNKNOWN, WAIT, ProcessState, WaitsFor
from netmon.kernel.processes import Look, look
from netmon.marks import RankIdentity
from netmon.records import Table, empty

_DUE_NS = (1 * QUIET_NS, 2 * QUIET_NS, 3 * QUIET_NS, 5 * QUIET_NS)  # after the last call
_LATER_NS = 8 * QUIET_NS
_ANSWER_NS = 2_000_000_000  # who does not answer within that is not waited for
_CHECKED = (ProcessState.SLEEPS, ProcessState.DISK)  # of these it counts whether something is read or written
_MOST_ROWS = 512  # of a batch
_GROUPS_NS = 1_000_000_000  # between two looks for new groups, which are few
_NOTHING = empty(WAIT)
_GONE = Look(ProcessState.GONE, WaitsFor.UNKNOWN, UNKNOWN, UNKNOWN)
_NOBODY = Work(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 0, 0)


class Active(NamedTuple):
    """A rank and what it calls."""

    pid: int
    identity: RankIdentity
    activity: RankActivity


@dataclass
class _Reported:
    """What has been reported of a rank."""

    since_ns: int = 0  # of the pause of which it was; 0: of none that goes on
    rows: int = 0  # how often, of that one
    cpu_ns: int = UNKNOWN
    io_bytes: int = UNKNOWN
    waited: list[Work] = field(default_factory=list)
    groups: set[int] = field(default_factory=set)
    groups_ns: int = 0
    activity: RankActivity | None = None


class Waits:
    """One per agent."""

    def __init__(self, look_at: Callable[[int], Look] = look, helped: bool = False) -> None:
        """look_at: as netmon.kernel.processes.look; helped: a process that may see more is queried first."""
        self._look_at, self._helped = look_at, helped
        self._looks: dict[int, Look] = {}  # of an answer
        self._answered_ns = 0
        self.asks = False
        """Whether `answer` is waited for."""
        self._reported: dict[tuple[int, RankIdentity], _Reported] = {}

    def answer(self, looks: Iterable[Sequence[int]], now_ns: int) -> None:
        """looks: a pid and the fields of a Look, of every rank that may be looked at."""
        self._looks = {
            pid: Look(ProcessState(state), WaitsFor(waits_for), *grown) for pid, state, waits_for, *grown in looks
        }
        self._answered_ns = now_ns

    def _seen(self, pid: int, since_ns: int, due_ns: int, now_ns: int) -> Look | None:
        """What a rank does, of which is to be reported since due_ns; None: that is being queried."""
        if self._answered_ns >= since_ns + due_ns and pid in self._looks:
            return self._looks[pid]
        seen = self._look_at(pid)
        if not self._helped or seen.state not in _CHECKED or now_ns >= since_ns + due_ns + _ANSWER_NS:
            return seen
        self.asks = True
        return None

    def due(self, ranks: Iterable[Active], now_ns: int, jobs: dict[str, int]) -> Table:
        """dtype WAIT of what is to be reported now. jobs: index of each name, which grows."""
        rows = list[tuple[int, ...]]()
        before, self._reported = self._reported, {}
        for pid, identity, activity in ranks:
            reported = self._reported[pid, identity] = before.get((pid, identity)) or _Reported()
            reported.activity = activity
            if not activity.last_ns or len(rows) > _MOST_ROWS:
                continue
            whose = (lambda identity=identity: jobs.setdefault(identity.job, len(jobs))), identity, pid
            if reported.since_ns and activity.last_ns != reported.since_ns:
                end_ns = activity.rested[1] if activity.rested[0] == reported.since_ns else activity.last_ns
                rows += _rows(*whose, reported.since_ns, end_ns, None, reported, reported.waited)
                reported.since_ns = reported.rows = 0
            quiet_ns = now_ns - activity.last_ns
            if quiet_ns >= QUIET_NS:
                due_ns = _due_ns(reported.rows)
                if quiet_ns < due_ns or not (seen := self._seen(pid, activity.last_ns, due_ns, now_ns)):
                    continue
                works = activity.works(identity.rank, identity.size)
                reported.since_ns, reported.rows, reported.waited = activity.last_ns, reported.rows + 1, works
                rows += _rows(*whose, activity.last_ns, now_ns, seen, reported, works)
                reported.groups |= {work.group for work in works}
            elif now_ns >= reported.groups_ns + _GROUPS_NS:
                reported.groups_ns = now_ns
                if new := activity.groups(identity.rank, identity.size) - reported.groups:
                    reported.groups |= new
                    works = [one for one in activity.works(identity.rank, identity.size) if one.group in new]
                    rows += _rows(*whose, activity.last_ns, activity.last_ns, None, reported, works)
        for (pid, identity), reported in before.items():
            left = reported.activity if (pid, identity) not in self._reported else None
            if left and left.last_ns and len(rows) <= _MOST_ROWS:  # what it was in when it ended
                place = jobs.setdefault(identity.job, len(jobs))
                works = left.works(identity.rank, identity.size)
                ended_ns = max(now_ns, left.last_ns)  # it may have called since, as another rank
                rows += _rows(partial(int, place), identity, pid, left.last_ns, ended_ns, _GONE, reported, works)
        return np.array(rows[: 2 * _MOST_ROWS], WAIT) if rows else _NOTHING


def _due_ns(rows: int) -> int:
    """How long a rank is quiet when it is reported again."""
    return _DUE_NS[rows] if rows < len(_DUE_NS) else _LATER_NS * (rows - len(_DUE_NS) + 1)


def _rows(
    job: Callable[[], int],
    identity: RankIdentity,
    pid: int,
    since_ns: int,
    end_ns: int,
    seen: Look | None,
    reported: _Reported,
    works: list[Work],
) -> list[tuple[int, ...]]:
    """seen: of a rank that is quiet."""
    cpu_ns = io_bytes = UNKNOWN
    if seen:
        if reported.rows > 1:
            cpu_ns, io_bytes = _grown(seen.cpu_ns, reported.cpu_ns), _grown(seen.io_bytes, reported.io_bytes)
        reported.cpu_ns = seen.cpu_ns
        if reported.rows == 1 or seen.io_bytes != UNKNOWN:
            reported.io_bytes = seen.io_bytes
    state, waits_for = (seen.state, seen.waits_for) if seen else (ProcessState.UNKNOWN, WaitsFor.UNKNOWN)
    whose = since_ns, end_ns, job(), identity.rank, pid, identity.size
    begin = (*whose, int(seen is not None), int(state), int(waits_for), cpu_ns, io_bytes)
    return [
        (
            *begin,
            *(work.group, work.group_rank, work.group_size, work.operation, work.sequence, work.position, work.peer),
            *(work.bytes, max(0, end_ns - work.begun_ns) if work.begun_ns else UNKNOWN, work.state),
        )
        for work in works or [_NOBODY]
    ]


def _grown(now: int, before: int) -> int:
    return now - before if now >= before >= 0 else UNKNOWN
