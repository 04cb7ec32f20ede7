# SPDX-License-Identifier: Apache-2.0
"""The host's part in what holds training up: once a second while there is traffic, or a rank."""

import re
import time
from collections.abc import Iterable

import numpy as np

from netmon.agent.nic import NicSamples
from netmon.evidence import HOST_PART, UNKNOWN
from netmon.kernel.host_load import PRESSURES, Pressure, Softnet, grown
from netmon.kernel.open_files import OpenFiles
from netmon.kernel.pace import Pace
from netmon.kernel.rank_load import ProcessLoad
from netmon.records import Mark, Moment, Table, empty

INTERVAL_NS = 1_000_000_000
MOST_RANKS = 64
_STALE_NS = 3_000_000_000  # what has grown over a longer time is nobody's interval: the next look begins anew
_PRESSURE = tuple(f"{name}_pressure_ns" for name in PRESSURES)
_MISSED = re.compile(r"rx_missed_errors")
_NO_BUFFER = re.compile(r"out_of_buffer|no_?buf|alloc_\w*(err|fail)|buff?_alloc_err")


class HostPart:
    """One per agent."""

    def __init__(self, nic: NicSamples) -> None:
        """nic: of which the last samples' drops are told."""
        self._nic, self._files = nic, OpenFiles()
        self._softnet, self._pressure = Softnet(self._files), Pressure.of_machine(self._files)
        self._drops = (UNKNOWN, UNKNOWN)
        self._looked_ns = 0
        self._ranks: dict[int, tuple[str, int]] = {}  # job and rank, by pid
        self._loads: dict[int, tuple[int, ProcessLoad]] = {}  # with the time of the last look
        self._pace = Pace(share=0.0005, stock_ns=10_000_000)

    def hear(self, marks: Iterable[Mark]) -> None:
        """Which process is which rank."""
        for mark in marks:
            if mark.moment is Moment.JOIN:
                self._ranks.pop(mark.pid, None)
                self._ranks[mark.pid] = mark.job, mark.rank
            elif mark.moment is Moment.LEAVE:
                self._forget(mark.pid)
        for pid in list(self._ranks)[: len(self._ranks) - MOST_RANKS]:
            self._forget(pid)

    def due(self, now_ns: int, idle: bool) -> tuple[Table, tuple[str, ...]]:
        """dtype HOST_PART when an interval is over, and the jobs that it names. idle: there is no traffic."""
        nothing = empty(HOST_PART), ()
        if now_ns < self._looked_ns + INTERVAL_NS or (idle and not self._ranks) or not self._pace.allows():
            return nothing
        begun = time.thread_time_ns()
        rows, jobs = self._look(now_ns)
        self._pace.spend(time.thread_time_ns() - begun)
        return rows, jobs

    def _look(self, now_ns: int) -> tuple[Table, tuple[str, ...]]:
        before_ns, self._looked_ns = self._looked_ns, now_ns
        rows = [self._of_host(before_ns, now_ns)]
        jobs: dict[str, int] = {}
        for pid, (job, rank) in list(self._ranks.items()):
            row = self._of_rank(pid, now_ns)
            if row:
                row |= {"job": jobs.setdefault(job, len(jobs)), "rank": rank, "pid": pid}
                rows.append(row)
        kept = [row for row in rows if now_ns - row["start_ns"] <= _STALE_NS]
        table = np.full(len(kept), UNKNOWN, HOST_PART)
        for place, row in enumerate(kept):
            for name, value in row.items():
                table[place][name] = value
        table["end_ns"] = now_ns
        return table, tuple(jobs)

    def _of_host(self, before_ns: int, now_ns: int) -> dict[str, int]:
        dropped, squeezed = self._softnet.read()
        before, self._drops = self._drops, (self._nic.most(_MISSED), self._nic.most(_NO_BUFFER))
        missed, no_buffer = (grown(n, b) for n, b in zip(self._drops, before, strict=True))
        return {
            "start_ns": before_ns,
            "missed_packets": missed,
            "no_buffer_packets": no_buffer,
            "softnet_dropped": dropped,
            "softnet_squeezed": squeezed,
            **dict(zip(_PRESSURE, self._pressure.read(), strict=True)),
        }

    def _of_rank(self, pid: int, now_ns: int) -> dict[str, int] | None:
        """None at the first look, and where the process is gone."""
        if pid not in self._loads:
            self._loads[pid] = now_ns, ProcessLoad(pid)
            return None
        before_ns, process = self._loads[pid]
        self._loads[pid] = now_ns, process
        load = process.look()
        if load is None:
            self._forget(pid)
            return None
        return {
            "start_ns": before_ns,
            "throttled_ns": load.throttled_ns,
            "run_delay_ns": load.run_delay_ns,
            "cpu_ns": load.cpu_ns,
            **dict(zip(_PRESSURE, load.pressure_ns, strict=True)),
        }

    def _forget(self, pid: int) -> None:
        self._ranks.pop(pid, None)
        if pid in self._loads:
            self._loads.pop(pid)[1].close()

    def close(self) -> None:
        """Closes its files."""
        for pid in list(self._loads):
            self._forget(pid)
        self._files.close()
