# SPDX-License-Identifier: Apache-2.0
"""One host's rows between their arrival and their place in the dataset.

A row waits `settle` after its bucket, by the agent's horizon: until then its flow's owner and the marks of its
iteration may still arrive. Then rows of the same flow and bucket become one, get their class, job and iteration, and
never change again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.align import Alignment
from collector.flows import FlowTable, Links
from collector.ledger import LedgerAccount, LedgerRow
from collector.ranks import Ranks
from collector.resume import Resume
from collector.series import FlowRates, LinkSeries
from collector.settings import Settings
from netmon.dl.account import Tally
from netmon.dl.classify import Windows, row_classes, share_windows, window_width
from netmon.dl.iterations import Iteration
from netmon.records import AgentCost, Batch, Class, Hello, Table, empty

FURTHEST_NS = 10_000_000_000
"""Nothing in a batch lies so long after its horizon."""

ARRIVED = np.dtype(
    [(name, "<i8") for name in ("flow", "start_ns", "packets", "wire_bytes", "payload_bytes")] + [("stored", "?")]
)
"""A row on its way: dense flow index, mono time, counts; stored: the dataset has it, it serves the state only."""

SETTLED = np.dtype(
    [("flow_id", "<u4"), ("link", "<i4"), ("class", "u1"), ("job", "<i4"), ("iteration", "<i8")]
    + [(name, "<i8") for name in ("bucket_start_ns", "packets", "wire_bytes", "payload_bytes")]
)
"""A row of the dataset: bucket_start_ns in UTC, job an index into the session's jobs."""


@dataclass(frozen=True)
class Output:
    """What one batch made final."""

    buckets: Table  # dtype SETTLED
    iterations: list[tuple[Iteration, Tally]]
    ledger: list[LedgerRow]
    ended: list[Iteration]  # just ended; their account follows when their rows have settled


@dataclass(frozen=True)
class _Arrival:
    sequence: int
    last_row_ns: int  # start of its last row; −1: none
    last_ns: int  # the latest time in it


class HostWindow:
    """The moving window of one agent's session."""

    def __init__(self, hello: Hello, settings: Settings, resume: Resume) -> None:
        """Begin, or take up a session of which `resume` says what the dataset holds."""
        self.hello = hello
        self.settings = settings
        self.window_ns = window_width(settings.share_window_ns, hello.bucket_ns)
        self.links = Links(hello)
        self.flows = FlowTable(self.links)
        self.alignment = Alignment(hello.clock, resume.clock_offset_ns)
        self.ranks = Ranks(hello.host, self.window_ns, settings.parameters)
        self.series = LinkSeries(len(self.links), settings.settle_ns)
        self.rates = FlowRates()
        self.cost = AgentCost()
        self.horizon_ns = hello.clock.mono_ns
        self.settled_ns = -1
        self._complete = resume.complete_sequence
        self._resume = resume
        self._pending = empty(ARRIVED)
        self._arrivals: deque[_Arrival] = deque()
        self._resume_state(resume)

    def _resume_state(self, resume: Resume) -> None:
        offset = self.alignment.offset_ns
        self.ledger = LedgerAccount(
            self.links, {k: t - offset for k, t in resume.ledger_until_utc.items()}, resume.ledger_totals
        )
        for stored in resume.flows:
            self.flows.restore(stored.flow, stored.part, stored.last_ns, stored.shared)
        for rank in resume.ranks:
            self.ranks.resume(rank.job, rank.rank, rank.size, rank.parameters, rank.end_utc - offset)

    def add(self, batch: Batch) -> Output:
        """Take in the next batch. Raises WireError, and changes nothing but flows, where a row's flow is unknown."""
        self.describe(batch)
        rows = self._arrived(batch)
        for sample in batch.ledger:
            self.links.number(sample.interface, sample.direction)
        if self.alignment.update(batch.clock):
            self.ranks.warn(f"the clock of {self.hello.host} has moved; its rows are aligned anew from here on")
        # A mark's time is what a training process says: one from the future is left out, the batch is not to blame.
        marks = [mark for mark in batch.marks if mark.time_ns <= batch.horizon_ns + FURTHEST_NS]
        self.ranks.unusable += len(batch.marks) - len(marks)
        ended = [done for mark in marks for done in self.ranks.mark(mark, self.settled_ns)]
        for sample in batch.ledger:
            self.ledger.sample(sample, self.settled_ns)
        self.flows.seen(rows["flow"], rows["start_ns"], rows["wire_bytes"])
        self.horizon_ns = max(self.horizon_ns, batch.horizon_ns)
        self.rates.add(self.horizon_ns, rows["flow"], rows["wire_bytes"])
        self.cost = batch.cost
        self._pending = np.concatenate([self._pending, rows])
        last_row = int(rows["start_ns"].max(initial=-1))
        times = [batch.horizon_ns, last_row, *(m.time_ns for m in marks), *(s.time_ns for s in batch.ledger)]
        self._arrivals.append(_Arrival(batch.sequence, last_row, max(times)))
        grid = (self.horizon_ns - self.settings.settle_ns) // self.window_ns * self.window_ns
        return self._settle(grid, ended)

    def describe(self, batch: Batch) -> None:
        """Take in only the flows of a batch, as of one that was processed before."""
        for flow in batch.flows:
            self.flows.describe(flow)

    def settle_all(self, leaving: bool) -> Output:
        """Settle everything that has arrived; `leaving`: the session is over, no mark will follow."""
        ended = self.ranks.end_of_stream() if leaving else []
        times = [self.horizon_ns, int(self._pending["start_ns"].max(initial=-1)) + 1]
        times += [arrival.last_ns for arrival in self._arrivals]
        return self._settle(max(times), ended)

    def _arrived(self, batch: Batch) -> Table:
        rows = np.empty(len(batch.buckets), ARRIVED)
        rows["flow"] = self.flows.indices(batch.buckets["flow_id"])
        rows["start_ns"] = batch.buckets["bucket_start_ns"]
        for name in ("packets", "wire_bytes", "payload_bytes"):
            rows[name] = batch.buckets[name]
        rows["stored"] = self._resume.holds(batch.sequence, rows["start_ns"])
        return rows

    def _settle(self, until_ns: int, ended: list[Iteration]) -> Output:
        due = self._pending["start_ns"] < until_ns
        rows = merge(self._pending[due])
        self._pending = self._pending[~due]
        self.settled_ns = max(self.settled_ns, until_ns)
        state = self.flows.state[rows["flow"]]
        windows, classes = self._classify(rows)
        start, link, wire = rows["start_ns"], state["link"], rows["wire_bytes"]
        self.flows.state["shared"][rows["flow"][classes == Class.DL_SHARED]] = True
        self.series.add(start, link, classes, wire)
        self.ledger.add(start, link, wire)
        names = self.ranks.names()
        owned = [(state["job"] == self.flows.job(job)) & (state["rank"] == rank) for job, rank in names]
        self.ranks.add(start, classes, link % 2, rows["payload_bytes"], owned, windows)
        settled = np.empty(len(rows), SETTLED)
        settled["job"], settled["iteration"] = state["job"], -1
        for place, (job, _) in enumerate(names):
            own = owned[place]
            if len(names) == 1:
                own = own | (state["job"] == 0)
                settled["job"][own] = self.flows.job(job)
            settled["iteration"][own] = self.ranks.numbers_at(place, start[own])
        for name in ("packets", "wire_bytes", "payload_bytes"):
            settled[name] = rows[name]
        settled["flow_id"], settled["link"], settled["class"] = state["flow_id"], link, classes
        settled["bucket_start_ns"] = start + self.alignment.offset_ns
        iterations = self.ranks.settle(self.settled_ns)
        return Output(settled[~rows["stored"]], iterations, self.ledger.rows(self.settled_ns), ended)

    def _classify(self, rows: Table) -> tuple[Windows, npt.NDArray[np.uint8]]:
        state = self.flows.state[rows["flow"]]
        windows = share_windows(
            *(rows["start_ns"], state["link"], state["class"], rows["wire_bytes"], rows["payload_bytes"]),
            *(self.links.capacity_bps, self.window_ns, self.settings.share_threshold),
        )
        return windows, row_classes(state["class"], windows)

    def provisional(self) -> Table:
        """The rows that have not settled, dtype SETTLED, but times in mono, flow_id a dense index, no iteration."""
        rows = np.zeros(len(self._pending), SETTLED)
        for name in ("packets", "wire_bytes", "payload_bytes"):
            rows[name] = self._pending[name]
        rows["flow_id"], rows["bucket_start_ns"] = self._pending["flow"], self._pending["start_ns"]
        rows["link"] = self.flows.state["link"][self._pending["flow"]]
        rows["class"] = self._classify(self._pending)[1]
        return rows

    def complete(self) -> int:
        """The last batch of which, as of all before it, every row has settled; 0: none."""
        newest = self._last_before(lambda arrival: arrival.last_row_ns, self.settled_ns)
        self._complete = max(self._complete, newest or 0)
        return self._complete

    def acknowledgeable(self) -> int | None:
        """The last batch that nothing needs any more once all settled rows are stored; None: no new one."""
        times = [self.settled_ns, self.ranks.needed_since(self.horizon_ns), self.ledger.needed_since()]
        return self._last_before(lambda arrival: arrival.last_ns, min(time for time in times if time is not None))

    def _last_before(self, time_of: Callable[[_Arrival], int], limit_ns: int) -> int | None:
        last = None
        for arrival in self._arrivals:
            if time_of(arrival) >= limit_ns:
                break
            last = arrival.sequence
        return last

    def acknowledged(self, sequence: int) -> None:
        """The agent forgets the batches up to here."""
        while self._arrivals and self._arrivals[0].sequence <= sequence:
            self._arrivals.popleft()


def merge(rows: Table) -> Table:
    """One row per (flow, bucket), sorted by time, counts added up; dtype ARRIVED in and out."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows["stored"], rows["flow"], rows["start_ns"]))]
    same = np.ones(len(rows) - 1, np.bool_)
    for name in ("stored", "flow", "start_ns"):
        same &= rows[name][1:] == rows[name][:-1]
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    merged = rows[first]
    for name in ("packets", "wire_bytes", "payload_bytes"):
        merged[name] = np.add.reduceat(rows[name], first)
    return merged
