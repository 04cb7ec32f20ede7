# SPDX-License-Identifier: Apache-2.0
"""A page of a collector: its snapshots of the last hour; full resolution of a moment by the agents' recorders."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from netmon.dl.grouped import last_versions
from netmon.dl.sharing.advice_text import called
from netmon.dl.verdict.baseline import baseline_of_job
from netmon.dl.verdict.verdict_text import from_columns, renamed
from netmon.errors import DataError, NetmonError
from netmon.records import CLASS_NAMES, Direction
from netmon.views import HOUR_NS, JobView, LinkView, RankTimes, RowQuery, Rows, Selection, Snapshot, Verdict
from netmon.web.source import (
    JOB,
    RANK,
    ROW_COLUMNS,
    SERIES,
    STEP,
    Catalogue,
    Floats,
    Lane,
    Lanes,
    Rates,
    RowReader,
    State,
    arranged,
    by_lane,
    in_bins,
    nearest,
    resampled,
)
from netmon.web.stored import STEP_COLUMNS, step_rows
from netmon.wire.questions import CollectorRows, get_advice, get_full
from netmon.wire.security import Security
from netmon.wire.watch import Outage, follow, split

# --- Iterations that keep coming: in pieces of some minutes, so that what is new costs no more as the hour fills.

_ROWS = 50_000  # of a piece
_AGAIN_NS = 20_000_000_000  # an iteration may be sent again for so long
_MOST_ROWS = 4_000_000
_ITERATION = ("start_ns", "job", "rank", "number")


@dataclass
class _Piece:
    rows: npt.NDArray[np.void]
    lanes: Lanes | None = None


class StepPieces:
    """Not for concurrent threads."""

    def __init__(self) -> None:
        self._lanes: Sequence[tuple[int, int]] = ()
        self._pieces = [_Piece(np.zeros(0, STEP))]  # the last one grows
        self._from_ns = 0  # begin of what it holds
        self._first_ns = 1 << 62  # begin of what came first

    def arrange(self, lanes: Sequence[tuple[int, int]]) -> None:
        """There are other lanes."""
        self._lanes = lanes
        for piece in self._pieces:
            piece.lanes = None

    def add(self, steps: npt.NDArray[np.void], since_ns: int) -> None:
        """steps: dtype STEP, some of them known already; since_ns: what ended before is let go."""
        last = self._pieces[-1]
        if len(steps) and self._first_ns == 1 << 62:
            self._first_ns = int(steps["start_ns"].min())
        rows = last_versions(np.concatenate([last.rows, steps[steps["start_ns"] >= self._from_ns]]), *_ITERATION)
        if np.array_equal(rows, last.rows):
            return
        last.rows, last.lanes = rows, None
        edge = int(rows["start_ns"].max()) - _AGAIN_NS
        if len(rows) > _ROWS and (rows["start_ns"] < edge).any():
            last.rows, self._from_ns = rows[rows["start_ns"] < edge], edge
            self._pieces.append(_Piece(rows[rows["start_ns"] >= edge]))
        while len(self._pieces) > 1 and (
            self._pieces[0].rows["end_ns"].max() < since_ns
            or sum(len(piece.rows) for piece in self._pieces) > _MOST_ROWS
        ):
            del self._pieces[0]

    def add_before(self, steps: npt.NDArray[np.void]) -> None:
        """Those that began before the first that was added; of later ones what is known stays."""
        rows = last_versions(steps[steps["start_ns"] < self._first_ns], *_ITERATION)
        if len(rows) and sum(len(piece.rows) for piece in self._pieces) + len(rows) <= _MOST_ROWS:
            begin = rows["start_ns"].min()
            index = sum(piece.rows["start_ns"].min() < begin for piece in self._pieces[:-1])
            self._pieces.insert(index, _Piece(rows))

    def of(self, begin_ns: int, end_ns: int) -> list[Lanes]:
        """Those that may begin in a time, by lane."""
        found = []
        for piece in self._pieces:
            starts = piece.rows["start_ns"]
            if len(starts) and starts.min() < end_ns and starts.max() >= begin_ns:
                piece.lanes = piece.lanes or by_lane(piece.rows, self._lanes)
                found.append(piece.lanes)
        return found


# --- the last hour


_FINE_NS, _FINE_CELLS = 100_000_000, 3_600  # six minutes
_COARSE_NS, _COARSE_CELLS = 1_000_000_000, 3_600
_MOST_VERDICTS = 5_000
_SHOWN_NS = 10_000_000_000  # a snapshot's rates reach back so far
_NONE = (-1, 0)


class _Ring:
    """Bytes of hosts on a grid whose oldest cells give way."""

    def __init__(self, width_ns: int, cells: int) -> None:
        self.width_ns, self.cells = width_ns, cells
        self.newest = 0  # number of the newest cell
        self.values = np.zeros((0, SERIES, cells), np.float32)

    def grow(self, hosts: int) -> None:
        more = np.zeros((hosts - len(self.values), SERIES, self.cells), np.float32)
        self.values = np.concatenate([self.values, more])

    def put(
        self,
        hosts: npt.NDArray[np.int64],
        cell: npt.NDArray[np.int64],
        values: npt.NDArray[np.float64],
        known: npt.NDArray[np.bool_],
    ) -> None:
        """values: (hosts, SERIES, columns) bytes; cell, known: (hosts, columns); what is not known changes nothing."""
        if not cell.size:
            return
        newest = int(cell.max())
        if newest > self.newest:
            gone = np.arange(max(self.newest + 1, newest - self.cells + 1), newest + 1) % self.cells
            self.values[:, :, gone] = 0
            self.newest = newest
        host, column = np.nonzero((cell > self.newest - self.cells) & known)
        self.values[hosts[host], :, cell[host, column] % self.cells] = values[host, :, column]

    def of(self, hosts: Sequence[int]) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
        """In the order of time, and the grid."""
        first = self.newest - self.cells + 1
        return np.roll(self.values[list(hosts)], -(first % self.cells), axis=2), (first * self.width_ns, self.width_ns)


def _known_from(links: Sequence[LinkView], rates: Floats) -> int:
    """From when on a snapshot has rates (ns, UTC), as _series gives them; 0: it has none."""
    if not links:
        return 0
    known = (~np.isnan(rates).any(axis=2)).sum(axis=1)
    return int((np.array([link.series_end_ns for link in links], np.int64) - known * links[0].interval_ns).min())


def _series(snapshot: Snapshot) -> tuple[list[LinkView], Floats]:
    """The links that have rates, and these: (links, columns, classes) bit/s, nan: not known."""
    links = [link for link in snapshot.links if link.series_end_ns and len(link.wire_bps)]
    columns = min((len(link.wire_bps) for link in links), default=0)
    return links, np.stack([link.wire_bps[-columns:] for link in links]) if links else np.empty((0, 0, 0))


def _unheard(known: Catalogue, known_from_ns: int, oldest_ns: int) -> tuple[tuple[int, int], ...]:
    """The times of which no snapshot has had the rates, now that one has them from a moment on."""
    if not known.unheard_ns:
        return ((0, known_from_ns),)
    first, *others = known.unheard_ns
    if known_from_ns > known.end_ns:
        others.append((known.end_ns, known_from_ns))
    return (first, *(time for time in others if time[1] > oldest_ns))


class LiveHistory:
    """Snapshots are added by one thread; any thread may query."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self.end_ns = 0
        self.verdict_count = 0  # verdicts
        self._hosts: dict[str, int] = {}
        self._jobs: dict[str, int] = {}
        self._ranks: dict[tuple[str, int], str] = {}
        self._rings = _Ring(_FINE_NS, _FINE_CELLS), _Ring(_COARSE_NS, _COARSE_CELLS)
        self._steps = StepPieces()
        self._verdicts: dict[tuple[str, int, int], Verdict] = {}
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot, now_ns: int) -> None:
        """Take in what is new in it. now_ns: UTC."""
        with self._lock:
            links, rates = _series(snapshot)
            self._learn(snapshot, _known_from(links, rates), now_ns)
            self._add_rates(links, rates)
            self._add_steps(snapshot)
            for job in snapshot.jobs:
                self._add_verdicts(reversed(job.verdicts))

    def remember(self, batch: pa.RecordBatch) -> None:
        """Rows of the table iterations of before. What is not known of them gets lanes with the next snapshot."""
        distinct = pa.Table.from_batches([batch]).group_by(["job", "rank", "host"]).aggregate([])
        with self._lock:
            for one in distinct.to_pylist():
                self._jobs.setdefault(one["job"], len(self._jobs))
                self._hosts.setdefault(one["host"], len(self._hosts))
                self._ranks.setdefault((one["job"], one["rank"]), one["host"])
            rows = step_rows(batch, list(self._hosts), list(self._jobs))
            rows = rows[rows["start_ns"] >= self.end_ns - HOUR_NS]
            if not len(rows):
                return
            self._steps.add_before(rows)
            begin = min(self.catalogue.begin_ns, int(rows["start_ns"].min()))
            self.catalogue = replace(self.catalogue, begin_ns=begin, generation=self.catalogue.generation + 1)

    def remember_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Of before; jobs called what people call them."""
        with self._lock:
            self._add_verdicts(verdicts)

    def _add_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            key = verdict.job, verdict.iteration, verdict.start_ns
            self.verdict_count += key not in self._verdicts
            self._verdicts[key] = verdict
        while len(self._verdicts) > _MOST_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Rates:
        """On the finer grid where that reaches so far back."""
        with self._lock:
            fine, coarse = self._rings
            reaches = begin_ns >= (fine.newest - fine.cells + 1) * fine.width_ns
            ring = fine if reaches and width_ns < coarse.width_ns else coarse
            values, grid = ring.of([self._hosts[host] for host in hosts])
        return Rates(resampled(values, grid, begin_ns, width_ns, bins), ring.width_ns)

    def steps(self, begin_ns: int, end_ns: int) -> list[Lanes]:
        """Iterations that may begin in a time, by the catalogue's lanes."""
        with self._lock:
            return self._steps.of(begin_ns, end_ns)

    def verdicts(self) -> list[Verdict]:
        """Those that were received, by time."""
        with self._lock:
            return sorted(self._verdicts.values(), key=lambda verdict: verdict.end_ns)

    def _learn(self, snapshot: Snapshot, known_from: int, now_ns: int) -> None:
        capacity = dict(self.catalogue.capacity_bps)
        own: dict[str, float] = {}
        for link in snapshot.links:
            if link.direction is Direction.TX:
                own[link.host] = own.get(link.host, 0.0) + link.capacity_bps
        capacity |= {host: own.get(host, capacity.get(host, 0.0)) for host in (view.host for view in snapshot.hosts)}
        for host in sorted({*capacity, *(link.host for link in snapshot.links)}):
            self._hosts.setdefault(host, len(self._hosts))
        for job in snapshot.jobs:
            self._jobs.setdefault(job.job, len(self._jobs))
            for rank in job.ranks:
                self._ranks[job.job, rank.rank] = rank.host
                self._hosts.setdefault(rank.host, len(self._hosts))
        for ring in self._rings:
            if len(ring.values) < len(self._hosts):
                ring.grow(len(self._hosts))
        lanes = arranged([(job, rank, host) for (job, rank), host in self._ranks.items()], self._hosts)
        known = self.catalogue
        theory = {job.job: (job.measured_bytes, job.theory_bytes) for job in snapshot.jobs}
        self.end_ns = max([self.end_ns, *(link.series_end_ns for link in snapshot.links)])
        known_from = known_from or (self.end_ns or now_ns) - _SHOWN_NS
        unclear = tuple(job.name or job.job for job in snapshot.jobs if job.not_understood)
        unheard = _unheard(known, known_from, self.end_ns - HOUR_NS)
        self.catalogue = Catalogue(
            lanes=lanes,
            begin_ns=max(known.begin_ns or known_from, self.end_ns - HOUR_NS),
            end_ns=self.end_ns,
            capacity_bps=capacity,
            job_names={**known.job_names, **{job.job: job.name or job.job for job in snapshot.jobs}},
            baseline_ns={**known.baseline_ns, **{job.job: baseline_of_job(job) for job in snapshot.jobs}},
            theory={**known.theory, **theory},
            not_understood=unclear,
            unheard_ns=unheard,
            generation=known.generation
            + ((lanes, unheard, unclear) != (known.lanes, known.unheard_ns, known.not_understood)),
        )
        if lanes != known.lanes:
            self._steps.arrange([self._lane(lane) for lane in lanes])

    def _lane(self, lane: Lane) -> tuple[int, int]:
        if lane.kind not in (JOB, RANK):
            return _NONE
        return self._jobs[lane.job], lane.rank if lane.kind == RANK else -1

    def _add_rates(self, links: Sequence[LinkView], new_rates: Floats) -> None:
        if not links:
            return
        columns = new_rates.shape[1]
        rates = np.nan_to_num(new_rates) * (links[0].interval_ns / 8e9)
        host = np.array([self._hosts[link.host] for link in links])
        hosts, index = np.unique(host, return_inverse=True)
        by_way = np.zeros((len(hosts), len(Direction), len(CLASS_NAMES), columns))
        np.add.at(by_way, (index, np.array([int(link.direction) for link in links])), rates.transpose(0, 2, 1))
        total = by_way.reshape(len(hosts), SERIES, columns)
        known = np.zeros((len(hosts), columns), bool)
        np.logical_or.at(known, index, ~np.isnan(new_rates).any(axis=2))
        ends = np.zeros(len(hosts), np.int64)
        np.maximum.at(ends, index, np.array([link.series_end_ns for link in links], np.int64))
        fine, coarse = self._rings
        # The hosts' own columns lie anywhere on the grid: to half a column.
        last = (ends + fine.width_ns // 2) // fine.width_ns - 1
        cell = last[:, None] + np.arange(-columns + 1, 1)
        fine.put(hosts, cell, total, known)
        whole = coarse.width_ns // fine.width_ns
        seconds = last // whole  # of the newest column: not over yet
        count = columns // whole - 2  # the oldest one is not whole
        of = (seconds[:, None] + np.arange(-count, 1))[:, :, None] * whole + np.arange(whole)
        at = np.clip(of - cell[:, :1, None], 0, columns - 1)
        there = (of >= cell[:, :1, None]) & (of <= last[:, None, None])
        in_seconds = at.reshape(len(hosts), 1, -1)
        picked = np.take_along_axis(total, in_seconds, axis=2) * there.reshape(len(hosts), 1, -1)
        sums = picked.reshape(len(hosts), SERIES, count + 1, whole).sum(axis=3)
        known_there = np.take_along_axis(known[:, None], in_seconds, axis=2).reshape(there.shape)
        whole_known = np.all(known_there | ~there, axis=2)
        coarse.put(hosts, seconds[:, None] + np.arange(-count, 1), sums, whole_known)

    def _add_steps(self, snapshot: Snapshot) -> None:
        fresh = []
        for job in snapshot.jobs:
            rows = np.zeros(len(job.steps), STEP)
            for name in job.steps.dtype.names or ():
                rows[name] = job.steps[name]
            rows["job"], rows["shared"] = self._jobs[job.job], True
            fresh.append(rows)
        if fresh:
            self._steps.add(np.concatenate(fresh), self.end_ns - HOUR_NS)


# --- A moment of a collector's past at full resolution: from the agents' recorders, else from the dataset's rows.

_log = logging.getLogger(__name__)
MOMENT_NS = 2_100_000_000
"""The longest time that is requested."""

_MOST_HOSTS_NS = 8_000_000_000  # a time × hosts that are requested
_REST_S = 5.0  # after nobody could be queried


class RecorderQueries:
    """Of one collector, or of multiple workers. Its threads may be concurrent."""

    def __init__(self, addresses: str, security: Security) -> None:
        self._addresses, self._security = addresses, security
        self._rows = CollectorRows(addresses, security)
        self._rest_until_s = 0.0

    def within(self, hosts: int, length_ns: int) -> bool:
        """Whether so much can be requested."""
        return length_ns <= MOMENT_NS and length_ns * hosts <= _MOST_HOSTS_NS

    def rates(
        self, known: Rates, hosts: Sequence[str], connected: Iterable[str], begin_ns: int, width_ns: int, bins: int
    ) -> Rates:
        """The traffic of hosts, as fine as it is available; blocks. known: without a query; connected: with an agent.

        Of a host whose agent has no answer it is what the dataset has, else what is known.
        """
        if time.monotonic() < self._rest_until_s:
            return Rates(known.wire_bytes, known.resolution_ns, pending=True)
        found = _Found(known, hosts, begin_ns, width_ns, bins)
        end_ns = begin_ns + width_ns * bins
        try:
            with_recorder = sorted({*connected} & {*hosts})
            for part in (
                get_full(self._addresses, with_recorder, begin_ns, end_ns, self._security) if with_recorder else ()
            ):
                if part.rows.num_rows or not part.gap:
                    found.take([part.host], part.rows)
            if rest := found.missing():
                wanted = RowQuery("buckets", ROW_COLUMNS, begin_ns, end_ns, {"host": rest})
                batches = list(self._rows.batches(wanted))
                if batches:
                    found.take(rest, pa.Table.from_batches(batches))
        except NetmonError as error:  # an agent has gone, or the role does not reach: what is known is shown
            _log.info("no full resolution: %s", error)
            self._rest_until_s = time.monotonic() + _REST_S
            return found.rates(pending=True)
        return found.rates(pending=False)


class _Found:
    """What has come so far."""

    def __init__(self, known: Rates, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> None:
        self._known, self._hosts = known, list(hosts)
        self._of = len(hosts) * SERIES, begin_ns, width_ns, bins
        self._total = known.wire_bytes.copy()
        self._missing = dict.fromkeys(hosts)
        self._widest = width_ns

    def take(self, hosts: Iterable[str], rows: pa.Table) -> None:
        own = Rates.nothing(len(self._hosts), self._of[3]).wire_bytes.reshape(self._of[0], -1)
        reader = RowReader(self._hosts)
        for batch in rows.select(ROW_COLUMNS).to_batches():
            series, start, length, wire = reader.read(batch)
            own += in_bins(series, start, length, wire, self._of)
            self._widest = max(self._widest, int(length.max(initial=0)))
        of_host = own.reshape(self._total.shape)
        for host in hosts:
            if host in self._missing:
                del self._missing[host]
                self._total[self._hosts.index(host)] = of_host[self._hosts.index(host)]

    def missing(self) -> list[str]:
        return list(self._missing)

    def rates(self, pending: bool) -> Rates:
        """All of it; as coarse as the coarsest."""
        busy = self._known.wire_bytes.sum(axis=(1, 2)) > 0
        coarse = any(busy[self._hosts.index(host)] for host in self._missing)
        widest = max(self._widest, self._known.resolution_ns) if coarse else self._widest
        return Rates(self._total, widest, pending)


_STEPS_NS = 8_000_000_000  # of iterations in each snapshot; its series are of ten seconds
_FEW_HOSTS, _INTERVAL_MS, _SLOW_MS = 64, 1_000, 3_000
_LOOKS_S = 10.0  # for so long after a browser has queried the state, which it does every second or two
_RETRY_S = 1.0
_AROUND_NS = 300_000_000_000  # an iteration is not longer


class Live:
    """One collector, or multiple workers. A thread of its own follows it, also when it goes away and comes back."""

    synthetic = False

    def __init__(self, addresses: str, security: Security, title: str = "") -> None:
        """Begin to follow; does not wait for an answer. title: on the page; else the address.

        Raises UsageError for no address.
        """
        split(addresses)
        self.title = title or addresses
        self._addresses, self._security = addresses, security
        self._rows = CollectorRows(addresses, security)
        self._history = LiveHistory()
        self._snapshot: Snapshot | None = None
        self._moments = RecorderQueries(addresses, security)
        self._looked_back = False
        self._requested_s = time.monotonic()
        self._trouble = f"connecting to {addresses}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"snapshots of {addresses}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow no more; the thread ends with the process."""
        self._over.set()

    def state(self) -> State:
        self._requested_s = time.monotonic()
        seen = self._snapshot
        return State(
            generation=self._history.catalogue.generation,
            end_ns=self._history.end_ns,
            live=True,
            verdicts=self._history.verdict_count,
            trouble=self._trouble,
            warnings=seen.warnings if seen else (),
            hangs=tuple(
                replace(hang, job=job.name or job.job)
                for job in (seen.jobs if seen else ())
                for hang in job.hangs
                if not hang.until_ns
            ),
            pairs={job.name or job.job: job.pairs for job in (seen.jobs if seen else ()) if job.pairs},
        )

    def catalogue(self) -> Catalogue:
        return self._history.catalogue

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        """What the last hour has; of a moment, where agents may be queried, what their recorders have."""
        known = self._history.rates(hosts, begin_ns, width_ns, bins)
        end_ns = begin_ns + width_ns * bins
        unheard = any(begin_ns < end and begin < end_ns for begin, end in self._history.catalogue.unheard_ns)
        something = unheard or known.wire_bytes.any()  # else there is nothing to query
        few = self._moments.within(len(hosts), end_ns - begin_ns)
        if not (full and few and something and end_ns < self._history.end_ns):
            return known
        seen = self._snapshot
        connected = [view.host for view in seen.hosts if view.connected] if seen else []
        return self._moments.rates(known, hosts, connected, begin_ns, width_ns, bins)

    def totals(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Floats:
        found: Floats = self._history.rates(hosts, begin_ns, width_ns, bins).wire_bytes.sum(axis=0)
        return found

    def steps(self, begin_ns: int, end_ns: int) -> tuple[list[Lanes], bool]:
        """All of the last hour."""
        return self._history.steps(begin_ns - _AROUND_NS, end_ns), False

    def verdicts(self) -> list[Verdict]:
        return self._history.verdicts()

    def explain(self, job: str, iteration: int, end_ns: int) -> tuple[Verdict, Sequence[RankTimes]]:
        """The verdict on an iteration, if the collector has published one. Raises DataError."""
        found = nearest(self.verdicts(), self.catalogue().job_names.get(job, job), iteration, end_ns)
        if found is None:
            raise DataError("it did not stand out; a collector's dataset (--data) explains every iteration")
        return found, found.ranks

    def advice(self) -> dict[str, Any]:
        """The collector's. Raises UnreachableError."""
        return called(get_advice(self._addresses, "", self._security))

    def rows(self) -> Rows:
        return self._rows

    def _selection(self) -> Selection:
        return Selection(steps_ns=_STEPS_NS)

    def _interval_ms(self) -> int:
        """Often where a browser looks; else only so that nothing of the hour is missing."""
        looks = time.monotonic() - self._requested_s < _LOOKS_S
        return _INTERVAL_MS if looks and len(self.catalogue().capacity_bps) <= _FEW_HOSTS else _SLOW_MS

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                interval = self._interval_ms()
                for update in follow(self._addresses, interval, self._selection, _RETRY_S, self._security):
                    if self._over.is_set():
                        return
                    if isinstance(update, Outage):
                        self._trouble = update.reason
                        continue
                    self._take(update)
                    if interval != self._interval_ms():
                        break
            except NetmonError as error:  # it does not answer yet
                self._trouble = str(error)
            except Exception as error:
                _log.exception("what the collector tells")
                self._trouble = f"{type(error).__name__}: {error}"
            self._over.wait(_RETRY_S)

    def _take(self, snapshot: Snapshot) -> None:
        self._trouble = ""
        self._snapshot = snapshot
        names = {job.job: job.name or job.job for job in snapshot.jobs}
        self._history.add(replace(snapshot, jobs=tuple(_named(job, names) for job in snapshot.jobs)), time.time_ns())
        if not self._looked_back and self._history.end_ns:
            self._looked_back = True
            back = threading.Thread(target=self._look_back, args=(names,), name="the hour before", daemon=True)
            back.start()

    def _look_back(self, names: dict[str, str]) -> None:
        """Iterations and verdicts of the hour before the first snapshot, where the collector reports its dataset."""
        rows, end = self._rows, self._history.end_ns
        try:
            for batch in rows.batches(RowQuery("iterations", STEP_COLUMNS, end - HOUR_NS, end)):
                self._history.remember(batch)
            for batch in rows.batches(RowQuery("verdicts", (), end - HOUR_NS, end)):
                self._history.remember_verdicts([renamed(from_columns(row), names) for row in batch.to_pylist()])
        except NetmonError as error:  # of an earlier version, or of a viewer who sees jobs only
            _log.info("nothing of the hour before: %s", error)


def _named(job: JobView, names: dict[str, str]) -> JobView:
    return replace(job, verdicts=tuple(renamed(verdict, names) for verdict in job.verdicts))
