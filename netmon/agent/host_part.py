# SPDX-License-Identifier: Apache-2.0
"""The host's part in what holds training up: once a second while there is traffic, and of ranks more often."""

import re
import time
from collections.abc import Iterable

import numpy as np

from netmon.agent.nic import NicSamples
from netmon.agent.rank_rows import STALE_NS, STEP_NS, RankRows, Row
from netmon.evidence import HOST_PART, UNKNOWN
from netmon.kernel.host_load import PRESSURES, Pressure, Softnet, grown
from netmon.kernel.open_files import OpenFiles
from netmon.kernel.stops import MOST_WATCHED, RankStops
from netmon.rate_limiter import TimeLimiter
from netmon.records import Mark, Moment, Table, empty

INTERVAL_NS = 1_000_000_000
MOST_RANKS = MOST_WATCHED
_EARLY_NS = 5_000_000  # whoever looks may wake a little earlier than asked
_NAMES, _NOTHING = HOST_PART.names or (), empty(HOST_PART)
_PRESSURE = tuple(f"{name}_pressure_ns" for name in PRESSURES)
_MISSED = re.compile(r"rx_missed_errors")
_NO_BUFFER = re.compile(r"out_of_buffer|no_?buf|alloc_\w*(err|fail)|buff?_alloc_err")


class HostPart:
    """One per agent."""

    def __init__(self, nic: NicSamples, stops: RankStops, wanted: bool = True) -> None:
        """nic: of which the last samples' drops are told; wanted: looks at all."""
        self._nic, self._stops, self._files, self._wanted = nic, stops, OpenFiles(), wanted
        self._softnet, self._pressure = Softnet(self._files), Pressure.of_machine(self._files)
        self._drops = (UNKNOWN, UNKNOWN)
        self._looked_ns = 0
        self._ranks: dict[int, tuple[str, int]] = {}  # job and rank, by pid
        self._rows: dict[int, RankRows] = {}  # by pid
        self._watched_ns = 0
        self._limiter, self._rank_limiter = TimeLimiter(0.0005, 10_000_000), TimeLimiter(0.001, 10_000_000)

    def hear(self, marks: Iterable[Mark]) -> None:
        """Which process is which rank."""
        for mark in marks if self._wanted else ():
            if mark.moment is Moment.JOIN:
                self._ranks.pop(mark.pid, None)
                self._ranks[mark.pid] = mark.job, mark.rank
            elif mark.moment is Moment.LEAVE:
                self._forget(mark.pid)
        for pid in list(self._ranks)[: max(0, len(self._ranks) - MOST_RANKS)]:
            self._forget(pid)

    def watch(self, now_ns: int) -> None:
        """Look at the ranks, if it is time to: costs a tenth of a percent of a core at most, whatever they are."""
        if now_ns < self._watched_ns + STEP_NS - _EARLY_NS or not self._ranks or not self._rank_limiter.allows():
            return
        self._watched_ns, begun = now_ns, time.thread_time_ns()
        for pid in list(self._ranks):
            rows = self._rows.get(pid)
            if rows is None:
                self._rows[pid] = RankRows(pid, now_ns, self._stops)
            elif not rows.look(now_ns):
                self._forget(pid)
        self._rank_limiter.spend(time.thread_time_ns() - begun)

    def due(self, now_ns: int, idle: bool) -> tuple[Table, tuple[str, ...]]:
        """dtype HOST_PART of what is over: of the host once a second, of ranks what has been seen of them; and the jobs
        that it names. idle: there is no traffic.
        """
        rows, jobs = list[Row](), dict[str, int]()
        due = self._wanted and now_ns >= self._looked_ns + INTERVAL_NS - _EARLY_NS and (not idle or bool(self._ranks))
        for pid, of_rank in self._rows.items():
            job, rank = self._ranks[pid]
            for row in of_rank.take() if due or of_rank.telling else ():
                rows.append(row | {"job": jobs.setdefault(job, len(jobs)), "rank": rank, "pid": pid})
        if due and self._limiter.allows():
            begun = time.thread_time_ns()
            rows = [*self._of_host(now_ns), *rows]
            self._limiter.spend(time.thread_time_ns() - begun)
        if not rows:
            return _NOTHING, ()
        return np.array([tuple([row.get(name, UNKNOWN) for name in _NAMES]) for row in rows], HOST_PART), tuple(jobs)

    def _of_host(self, now_ns: int) -> list[Row]:
        """None where the last look was too long ago."""
        before_ns, self._looked_ns = self._looked_ns, now_ns
        dropped, squeezed = self._softnet.read()
        before, self._drops = self._drops, (self._nic.most(_MISSED), self._nic.most(_NO_BUFFER))
        missed, no_buffer = (grown(n, b) for n, b in zip(self._drops, before, strict=True))
        row = {
            "start_ns": before_ns,
            "end_ns": now_ns,
            "missed_packets": missed,
            "no_buffer_packets": no_buffer,
            "softnet_dropped": dropped,
            "softnet_squeezed": squeezed,
            **dict(zip(_PRESSURE, self._pressure.read(), strict=True)),
        }
        return [row] if now_ns - before_ns <= STALE_NS else []

    def _forget(self, pid: int) -> None:
        self._ranks.pop(pid, None)
        if pid in self._rows:
            self._rows.pop(pid).close()

    def close(self) -> None:
        """Closes its files."""
        for pid in list(self._rows):
            self._forget(pid)
        self._files.close()
