# SPDX-License-Identifier: Apache-2.0
"""The host's part in what holds training up: once a second while there is traffic, and of ranks more often."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netmon.evidence import HOST_PART, UNKNOWN
from netmon.kernel.load import PRESSURES, Load, OpenFiles, Pressure, ProcessLoad, Softnet, grown
from netmon.kernel.nic import NicCounters
from netmon.kernel.stops import MOST_WATCHED, RankStops
from netmon.rate_limiter import TimeLimiter
from netmon.records import Mark, Moment, NicSample, Table, empty

# --- The watched interfaces by numbers of our own, and the NICs' own counters.

log = logging.getLogger(__name__)


class Links:
    """Numbers are 1, 2, … in the order in which the interfaces were named; they stay when one is made again."""

    def __init__(self, indices: Sequence[int], names: Sequence[str]) -> None:
        """indices, names: of the interfaces as they are at the start."""
        self._names = tuple(names)
        self._now: list[tuple[int, str]] = list(zip(indices, names, strict=True))

    def name(self, number: int) -> str:
        """What it is called now; empty while it is not there."""
        return self._now[number - 1][1]

    def index(self, number: int) -> int:
        """Its ifindex; 0 while it is not there."""
        return self._now[number - 1][0]

    def follow(self, now: Sequence[tuple[int, str]]) -> None:
        """now: (ifindex, name) of each; (0, "") where it is not there. Says what has changed."""
        for number, ((index, name), (old_index, old_name)) in enumerate(zip(now, self._now, strict=True), 1):
            interfaces = self._names[number - 1]
            if old_index and not index:
                log.warning("%s is gone; waiting for it to come back", interfaces)
            elif index and not old_index:
                log.info("%s is back", interfaces)
            elif name != old_name:
                log.info("%s is called %s now; it stays %s in the dataset", old_name, name, interfaces)
        self._now = [(index, name) for index, name in now]


_WHOLE_NS = 60_000_000_000
_STILL = 4  # intervals between samples of counters that stand still, on a host without traffic


class NicSamples:
    """Counters, as often as they are wanted and as they are cheap to read. One per agent."""

    def __init__(self, links: Links, count: int, interval_ns: int) -> None:
        """count: of the interfaces; interval_ns: between samples, 0 for none at all."""
        self._links, self._numbers, self.interval_ns = links, range(1, count + 1), interval_ns
        self._counters = NicCounters()
        # Some drivers query their firmware, and take milliseconds for it: samples then come less often.
        self._limiter = TimeLimiter(share=0.005, burst_ns=20_000_000)
        self._due_ns = time.monotonic_ns()
        self._sent: dict[tuple[str, str, str], int] = {}
        self._whole_ns, self._still = 0, False
        self._latest: list[NicSample] = []

    def due(self, now_ns: int, idle: bool = False, last: bool = False) -> list[NicSample]:
        """A sample per device when an interval is over, or if it is the last one: of what has changed, now and then of
        everything.

        idle: there is no traffic that we see; as long as the counters show none either, they are read less often.
        """
        more_ns = (_STILL - 1) * self.interval_ns if idle and self._still else 0
        early = now_ns < self._due_ns + more_ns or not self._limiter.allows()
        if not self.interval_ns or (early and not last):
            return []
        self._due_ns = now_ns + self.interval_ns
        if now_ns >= self._whole_ns:
            self._sent.clear()
            self._whole_ns = now_ns + _WHOLE_NS
        with self._limiter:
            samples = self._counters.read(filter(None, map(self._links.name, self._numbers)))
        self._latest = samples
        changed = [news for sample in samples if (news := self._changed(sample)).names]
        self._still = not changed
        return changed

    def sum(self, counter: re.Pattern[str], of_device: Callable[[list[int]], int] = max, rdma: bool = False) -> int:
        """Of the last samples, over interfaces, or RDMA ports: each one's counters that match; −1: none does.

        of_device: what those of one come to; drivers call the same packets by different names.
        """
        found: dict[str, list[int]] = {}
        for sample in self._latest:
            for name, value in zip(sample.names, sample.values, strict=True):
                if (sample.source == "rdma") == rdma and counter.search(name):
                    found.setdefault(sample.device, []).append(value)
        return sum(map(of_device, found.values())) if found else -1

    def _changed(self, sample: NicSample) -> NicSample:
        """Only the counters that are not as they were sent last: most of a driver's count what never happens."""
        changed = {
            (sample.device, sample.source, name): value for name, value in zip(sample.names, sample.values, strict=True)
        }
        news = {key: value for key, value in changed.items() if self._sent.get(key) != value}
        self._sent |= news
        return replace(sample, names=tuple(name for _, _, name in news), values=tuple(news.values()))


# --- The host's part in what holds training up: once a second while there is traffic, and of ranks more often.

# --- What kept one rank from running: a row a second, and one of each step of a tenth of one in which something did.

STEP_NS = 100_000_000
"""Between two looks at a rank. What keeps it from running for longer is seen."""

LONGEST_NS = 1_000_000_000
"""Of a row."""

STALE_NS = 3_000_000_000
"""What has grown over a longer time is nobody's interval: the next look begins anew."""

_KEPT = 0.1  # of a step: a wait for a CPU that is a row of its own
_PRESSURES = tuple(f"{name}_pressure_ns" for name in PRESSURES)

Row = dict[str, int]
"""Columns of netmon.evidence.HOST_PART that are known."""


class RankRows:
    """One rank's process."""

    def __init__(self, pid: int, now_ns: int, stops: RankStops) -> None:
        self._pid, self._stops = pid, stops
        stops.watch(pid)
        self._process, self._looked_ns = ProcessLoad(pid), now_ns
        self._was_stopped = False
        self._open: Row | None = None
        self._over: list[Row] = []
        self.telling = False
        """Whether something that kept the rank is among what is over: nobody waits with that."""

    def sample(self, now_ns: int) -> bool:
        """Whether the process is still there."""
        before_ns, self._looked_ns = self._looked_ns, now_ns
        begin_ns = self._open["start_ns"] if self._open else before_ns
        load = self._process.sample(self._is_long(begin_ns, now_ns) or not self._stops.watches(self._pid))
        if load is None:
            return False
        last, earlier_ns = self._stops.since(self._pid, before_ns, now_ns)
        stopped = load.stopped + self._was_stopped  # one of both: it began or ended somewhere between the two looks
        self._was_stopped = load.stopped
        if now_ns - before_ns > STALE_NS:
            self._close()
            self._process.pressure_ns()
            return True
        step = {"start_ns": before_ns, "end_ns": now_ns, "stopped_ns": 0, **_columns(load)}
        if last and not earlier_ns:
            for part in _parted(step, *last):
                self._take(part)
            return True
        step["stopped_ns"] = earlier_ns + last[1] - last[0] if last else (now_ns - before_ns) * stopped // 2
        self._take(step)
        return True

    def _take(self, step: Row) -> None:
        length = step["end_ns"] - step["start_ns"]
        kept = step["stopped_ns"] > 0 or step["throttled_ns"] > 0 or step["run_delay_ns"] > _KEPT * length
        if kept:
            self._close()
            self.telling = True
        self._open = _joined(self._open, step) if self._open else step
        if kept or self._is_long(self._open["start_ns"], self._open["end_ns"]):
            self._close()

    @staticmethod
    def _is_long(begin_ns: int, end_ns: int) -> bool:
        """Whether a row ends here."""
        return end_ns - begin_ns + STEP_NS // 2 >= LONGEST_NS

    def _close(self) -> None:
        if self._open:
            self._over.append(self._open)
            self._open = None

    def take(self) -> list[Row]:
        """Those that are over, with what was under pressure meanwhile: the kernel adds that up every other second."""
        if not self._over:
            return []
        over, self._over, self.telling = self._over, [], False
        whole_ns, pressures = sum(row["end_ns"] - row["start_ns"] for row in over), self._process.pressure_ns()
        for row in over:
            length = row["end_ns"] - row["start_ns"]
            shares = (ns * length // max(whole_ns, 1) if ns > 0 else ns for ns in pressures)
            row.update(zip(_PRESSURES, shares, strict=True))
        return over

    def close(self) -> None:
        self._stops.forget(self._pid)
        self._process.close()


def _columns(load: Load) -> Row:
    return {name: value for name, value in load._asdict().items() if name in _NAMES}


def _parted(step: Row, begin_ns: int, end_ns: int) -> list[Row]:
    """A step as before, while and after the rank was stopped, while it neither ran nor waited."""
    start_ns, until_ns = step["start_ns"], step["end_ns"]
    awake_ns = until_ns - start_ns - (end_ns - begin_ns)
    if not awake_ns:
        return [step | {"stopped_ns": end_ns - begin_ns}]
    grown = {name: each for name, each in step.items() if name not in ("start_ns", "end_ns", "stopped_ns")}
    parts, ran = list[Row](), 0
    for begin, end, stopped in ((start_ns, begin_ns, 0), (begin_ns, end_ns, 1), (end_ns, until_ns, 0)):
        before, ran = ran, ran + (0 if stopped else end - begin)
        if end > begin:
            own = {n: v if v < 0 else v * ran // awake_ns - v * before // awake_ns for n, v in grown.items()}
            parts.append(own | {"start_ns": begin, "end_ns": end, "stopped_ns": (end - begin) * stopped})
    return parts


def _joined(one: Row, other: Row) -> Row:
    """Of two times, the first right before the other."""
    both = {name: one[name] + other[name] if min(one[name], other[name]) >= 0 else UNKNOWN for name in one}
    return both | {"start_ns": one["start_ns"], "end_ns": other["end_ns"]}


# --- host part


INTERVAL_NS = 1_000_000_000
MOST_RANKS = MOST_WATCHED
_EARLY_NS = 5_000_000  # the reader may wake a little earlier than requested
_NAMES, _NOTHING = HOST_PART.names or (), empty(HOST_PART)
_PRESSURE = tuple(f"{name}_pressure_ns" for name in PRESSURES)
_NIC: dict[str, tuple[Any, ...]] = {
    "missed_packets": (re.compile(r"rx_missed_errors"),),
    "no_buffer_packets": (re.compile(r"out_of_buffer|no_?buf|alloc_\w*(err|fail)|buff?_alloc_err"),),
    "limited_packets": (re.compile(r"allowance_exceeded"), sum),
    "pause_packets": (re.compile(r"^(?!.*(duration|transition|storm)).*rx_.*(pause|xoff|pfc)|xoff_rx"), sum),
    "congestion_packets": (re.compile(r"cnp_?handled|rx_cnp", re.IGNORECASE), sum, True),
}
"""What the NICs count, by column: as NicSamples.sum takes it."""


class HostPart:
    """One per agent."""

    def __init__(self, nic: NicSamples, stops: RankStops, wanted: bool = True) -> None:
        """nic: of whose last samples _NIC is reported; wanted: looks at all."""
        self._nic, self._stops, self._files, self._wanted = nic, stops, OpenFiles(), wanted
        self._softnet, self._pressure = Softnet(self._files), Pressure.of_machine(self._files)
        self._counted = dict.fromkeys(_NIC, UNKNOWN)
        self._looked_ns = 0
        self._ranks: dict[int, tuple[str, int]] = {}  # job and rank, by pid
        self._rows: dict[int, RankRows] = {}  # by pid
        self._watched_ns = 0
        self._limiter, self._rank_limiter = TimeLimiter(0.0005, 10_000_000), TimeLimiter(0.001, 10_000_000)

    def add_marks(self, marks: Iterable[Mark]) -> None:
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
            elif not rows.sample(now_ns):
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
        before, self._counted = self._counted, {name: self._nic.sum(*which) for name, which in _NIC.items()}
        row = {
            "start_ns": before_ns,
            "end_ns": now_ns,
            **{name: grown(self._counted[name], before[name]) for name in _NIC},
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
        for pid in list(self._rows):
            self._forget(pid)
        self._files.close()
