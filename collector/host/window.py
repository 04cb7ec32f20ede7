# SPDX-License-Identifier: Apache-2.0
"""One host's rows between their arrival and their place in the dataset.

A row waits `settle` after its bucket, by the agent's horizon: until then its flow's owner and the marks of its
iteration may still arrive. Then rows of the same flow and bucket become one, get their class, job and iteration, and
never change again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collector.dataset.resume import Resume
from collector.host.align import Alignment
from collector.host.classes import Classifier
from collector.host.flows import FlowTable, Links
from collector.host.ledger import LedgerAccount, LedgerRow
from collector.host.onsets import HostOnsets, Onsets
from collector.host.rank import Resumed
from collector.host.ranks import DISTANT, Ranks
from collector.host.rows import ARRIVED, CARRIED, SETTLED, arrived, merge
from collector.host.series import FlowRates, LinkSeries
from collector.jobs.common_numbers import Numbers
from collector.jobs.rank_claims import Claims, Holder
from collector.settings import Settings
from netmon.dl.account import Tally, row_keys
from netmon.dl.classify import NS_PER_S, Windows, window_width
from netmon.dl.iterations import Iteration
from netmon.dl.numbering import Trust
from netmon.records import AgentCost, Batch, Class, Flow, Hello, Mark, Moment, Table, empty
from netmon.wire.limits import FURTHEST_NS

_MOST_OVER = 4_096  # iterations that full resolution which is asked for later can still be part of
_MOST_CARRIED = 300  # batches whose rows wait for the inference


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

    def __init__(
        self,
        hello: Hello,
        settings: Settings,
        resume: Resume,
        numbers: Numbers | None = None,
        claims: Claims | None = None,
    ) -> None:
        """Begin, or take up a session of which `resume` says what the dataset holds.

        numbers, claims: what the sessions of all hosts share.
        """
        self.hello = hello
        self.settings = settings
        self.window_ns = window_width(settings.share_window_ns, hello.streamed_ns)
        self.links = Links(hello)
        self.flows = FlowTable(self.links)
        self.alignment = Alignment(hello.clock, hello.bucket_ns, resume.clock)
        self.bucket_ns = hello.streamed_ns  # of the newest rows
        self.onsets = Onsets(hello.clock.mono_ns)
        holder = Holder(hello.host, hello.session, 0)
        self.ranks = Ranks(holder, self.window_ns, settings.parameters, numbers, claims)
        self.classifier = Classifier(self.flows, self.links, settings, self.window_ns)
        self.series = LinkSeries(len(self.links), settings.settle_ns)
        self.rates = FlowRates()
        self.cost = AgentCost()
        self.horizon_ns = hello.clock.mono_ns
        self.settled_ns = -1
        self._complete = resume.complete_sequence
        self._resume = resume
        self._pending = empty(ARRIVED)
        self._arrivals: deque[_Arrival] = deque()
        self._carried: deque[Table] = deque(maxlen=_MOST_CARRIED)
        self._over: deque[Iteration] = deque(maxlen=_MOST_OVER)
        self._introduced = [mark for mark in hello.marks if mark.moment != Moment.JOIN]
        self.renamed = 0  # processes
        self._resume_state(resume)
        self._introduce(hello)

    def _resume_state(self, resume: Resume) -> None:
        mono = self.alignment.map.mono
        self.ledger = LedgerAccount(
            self.links, {k: mono(t) for k, t in resume.ledger_until_utc.items()}, resume.ledger_totals
        )
        for stored in resume.flows:
            self.flows.restore(stored.flow, stored.last_ns, stored.shared)
        for rank in resume.ranks:
            known = Resumed(rank.size, rank.parameters, mono(rank.end_utc), rank.number)
            self.ranks.resume(rank.job, rank.rank, known, Trust(rank.trust), rank.shift)

    def _introduce(self, hello: Hello) -> None:
        """What is under way already: the flows that are alive, and the step that each rank is in."""
        for flow in hello.flows:
            self._describe(flow)
        for mark in hello.marks:
            if mark.moment == Moment.JOIN:
                self.ranks.mark(mark, self.settled_ns)

    def add(self, batch: Batch) -> Output:
        """Take in the next batch. Raises WireError, and changes nothing but flows, where a row's flow is unknown."""
        self.describe(batch)
        rows = self._arrived(batch)
        for sample in batch.ledger:
            self.links.number(sample.interface, sample.direction)
        self._align(batch)
        marks = self._mark(batch)
        for sample in batch.ledger:
            self.ledger.sample(sample, self.settled_ns)
        self.bucket_ns = batch.bucket_ns or self.hello.bucket_ns
        self.onsets.add(self.flows, rows["flow"], rows["start_ns"], self.bucket_ns)
        self.flows.seen(rows)
        self._carried.append(rows)
        self.horizon_ns = max(self.horizon_ns, batch.horizon_ns)
        self.rates.add(self.horizon_ns, rows["flow"], rows["wire_bytes"])
        self.cost = batch.cost
        self._pending = np.concatenate([self._pending, rows])
        last_row = int(rows["start_ns"].max(initial=-1))
        times = [batch.horizon_ns, last_row, *(m.time_ns for m in marks), *(s.time_ns for s in batch.ledger)]
        self._arrivals.append(_Arrival(batch.sequence, last_row, max(times)))
        grid = (self.horizon_ns - self.settings.settle_ns) // self.window_ns * self.window_ns
        return self._settle(grid)

    def _mark(self, batch: Batch) -> list[Mark]:
        """Take in the batch's marks; returns those that count for it."""
        # A mark's time is what a training process says: one from the future is left out, the batch is not to blame.
        marks = [mark for mark in batch.marks if mark.time_ns <= batch.horizon_ns + FURTHEST_NS]
        self.ranks.unusable[DISTANT] += len(batch.marks) - len(marks)
        for mark in marks:
            self.ranks.mark(mark, self.settled_ns)
        # The introduction tells of the step that is under way, which may be later than batches that are sent again.
        due = [mark for mark in self._introduced if mark.time_ns <= batch.horizon_ns]
        self._introduced = [mark for mark in self._introduced if mark.time_ns > batch.horizon_ns]
        for mark in due:
            if mark not in marks:
                self.ranks.mark(mark, self.settled_ns)
        self._rename()
        return marks

    def _rename(self) -> None:
        """Flows of a process that turned out to be of another job of the same name."""
        if len(self.ranks.renamed) == self.renamed:
            return
        self.renamed = len(self.ranks.renamed)
        for flow in list(self.flows.flows):
            self._describe(flow)

    def _align(self, batch: Batch) -> None:
        now_ns = max(self.horizon_ns, batch.horizon_ns)
        jump_ns = self.alignment.update(batch.clock, batch.exchanges, now_ns, self.settled_ns)
        self.ranks.offset_ns = self.alignment.offset_ns
        if jump_ns:
            by = f"{jump_ns / NS_PER_S:+.3f} s"
            self.ranks.warn(f"rows of {self.hello.host} move by {by}: its clock has jumped, or is only now known")

    def comparable(self) -> HostOnsets:
        """What the comparison of the hosts' clocks needs of this one."""
        return HostOnsets(self.alignment, self.onsets.bucket_ns, self.flows.flows, self.onsets.table())

    def describe(self, batch: Batch) -> None:
        """Take in only the flows of a batch, as of one that was processed before."""
        for flow in batch.flows:
            self._describe(flow)

    def _describe(self, flow: Flow) -> None:
        self.flows.describe(self.named(flow))

    def named(self, flow: Flow) -> Flow:
        """The flow with the name of its job that was given to it where two jobs have one name."""
        name = self.ranks.renamed.get((flow.owner.job, flow.owner.pid)) if flow.owner.job else None
        return replace(flow, owner=replace(flow.owner, job=name)) if name else flow

    def infer(self, marks: list[Mark]) -> Output:
        """Take in what the traffic tells about this host's ranks."""
        for mark in marks:
            self.ranks.mark(mark, self.settled_ns)
        return self._settle(self.settled_ns)

    def take_carried(self) -> Table:
        """Rows that have arrived since the last call, dtype ARRIVED, but times in UTC."""
        rows = np.concatenate([empty(ARRIVED), *self._carried])
        self._carried.clear()
        rows["start_ns"] = self.alignment.map.utcs(rows["start_ns"])
        return rows

    def settle_all(self, leaving: bool) -> Output:
        """Settle everything that has arrived; `leaving`: the session is over, no mark will follow."""
        if leaving:
            self.ranks.end_of_stream()
        times = [self.horizon_ns, int(self._pending["start_ns"].max(initial=-1)) + 1]
        times += [arrival.last_ns for arrival in self._arrivals]
        return self._settle(max(times))

    def _arrived(self, batch: Batch) -> Table:
        flow = self.flows.indices(batch.buckets["flow_id"])
        rows = arrived(batch.buckets, flow, batch.bucket_ns or self.hello.bucket_ns)
        rows["stored"] = self._resume.holds(batch.sequence, rows["start_ns"])
        return rows

    def _settle(self, until_ns: int) -> Output:
        due = self._pending["start_ns"] < until_ns
        rows = merge(self._pending[due], self.hello.bucket_ns)
        self._pending = self._pending[~due]
        self.settled_ns = max(self.settled_ns, until_ns)
        self.ranks.align(self.alignment.offset_ns, self.alignment.error_ns)
        self.flows.tell_traffic()
        windows, classes = self.classifier.classify(rows)
        self._account(rows, windows, classes)
        settled = self._stamped(rows, classes)
        ended = self.ranks.ended()  # with the common numbers, of which a rank that has gone has none
        iterations = self.ranks.settle(self.settled_ns, self.flows)
        self._over.extend(iteration for iteration, _ in iterations)
        return Output(settled[~rows["stored"]], iterations, self.ledger.rows(self.settled_ns), ended)

    def _account(self, rows: Table, windows: Windows, classes: npt.NDArray[np.uint8]) -> None:
        """Count settled rows wherever somebody will ask for sums of them."""
        start, state = rows["start_ns"], self.flows.state[rows["flow"]]
        self.flows.state["shared"][rows["flow"][classes == Class.DL_SHARED]] = True
        viewed = self.classifier.view(rows, windows, classes, keep=True)
        self.series.add(start, state["link"], viewed, rows["wire_bytes"])
        self.ledger.add(start, state["link"], rows["wire_bytes"])
        keys = row_keys(state["party"], classes, state["traffic"], state["link"] % 2)
        self.ranks.account.payload.add(start, keys, rows["payload_bytes"])
        self.ranks.account.windows.add(windows)

    def _stamped(self, rows: Table, classes: npt.NDArray[np.uint8]) -> Table:
        """Settled rows as the dataset has them, dtype SETTLED."""
        start, state = rows["start_ns"], self.flows.state[rows["flow"]]
        settled = np.empty(len(rows), SETTLED)
        settled["job"], settled["iteration"] = state["job"], -1
        for place, (job, rank) in enumerate(self.ranks.names()):
            own = (state["job"] == self.flows.job(job)) & (state["rank"] == rank)
            # One may have been this rank before another one, or before it joined anew.
            settled["iteration"][own] = np.maximum(settled["iteration"][own], self.ranks.numbers_at(place, start[own]))
        others = np.flatnonzero(state["job"] == 0)
        settled["job"][others], settled["iteration"][others] = self._met(start[others])
        for name in CARRIED:
            settled[name] = rows[name]
        settled["flow_id"], settled["link"], settled["class"] = state["flow_id"], state["link"], classes
        settled["bucket_start_ns"] = self.alignment.map.utcs(start)
        return settled

    def full(self, buckets: Table) -> Table:
        """Rows of full resolution that were asked for, dtype BUCKET, of whole share windows → rows of SETTLED.

        Classes are what is known now, iterations those of the last minutes, as they were stored. Rows of flows that
        are not known any more are left out.
        """
        rows = arrived(buckets, self.flows.known(buckets["flow_id"]), self.hello.bucket_ns)
        rows = merge(rows[rows["flow"] >= 0], self.hello.bucket_ns)
        settled, whose = self._stamped(rows, self.classifier.classify(rows)[1]), self.flows.state[rows["flow"]]
        start, first, last = rows["start_ns"], rows["start_ns"].min(initial=0), rows["start_ns"].max(initial=-1)
        for iteration in self._over:
            if iteration.start_ns <= last and iteration.end_ns > first:
                inside = (start >= iteration.start_ns) & (start < iteration.end_ns)
                inside &= settled["job"] == self.flows.job(iteration.job)
                inside &= (whose["job"] == 0) | (whose["rank"] == iteration.rank)
                settled["iteration"][inside] = iteration.number
        return settled

    def _met(self, start: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Whom traffic that is no rank's met at these times: job and iteration of the only rank that trained here then.

        No job where none or several did; iteration −1 also between two iterations of the rank.
        """
        jobs, numbers = np.zeros(len(start), np.int64), np.full(len(start), -1, np.int64)
        training = self.ranks.training(start)
        alone = training.sum(axis=0) == 1
        for place, (job, _) in enumerate(self.ranks.names()):
            own = alone & training[place]
            jobs[own], numbers[own] = self.flows.job(job), self.ranks.numbers_at(place, start[own])
        return jobs, numbers

    def provisional(self) -> Table:
        """Rows that have not settled, dtype SETTLED, but times in mono, flow_id a dense index, no iteration.

        Their class is the view's: with hysteresis.
        """
        rows = np.zeros(len(self._pending), SETTLED)
        for name in CARRIED:
            rows[name] = self._pending[name]
        rows["flow_id"], rows["bucket_start_ns"] = self._pending["flow"], self._pending["start_ns"]
        rows["link"] = self.flows.state["link"][self._pending["flow"]]
        rows["class"] = self.classifier.view(self._pending, *self.classifier.classify(self._pending), keep=False)
        return rows

    def mostly_shared(self, rows: Table) -> npt.NDArray[np.bool_]:
        """Per flow, whether most of its rows that have not settled (as `provisional` gives them) are DL-shared.

        With hysteresis: it changes where two thirds of the bytes say so, and stays where there are none.
        """
        flows = len(self.flows.flows)
        wire = np.bincount(rows["flow_id"], weights=rows["wire_bytes"], minlength=flows)
        of_shared = np.where(rows["class"] == Class.DL_SHARED, rows["wire_bytes"], 0)
        shared = np.bincount(rows["flow_id"], weights=of_shared, minlength=flows)
        state = self.flows.state
        state["seen_shared"] = np.where(state["seen_shared"], 3 * shared >= wire, 3 * shared > 2 * wire)
        seen: npt.NDArray[np.bool_] = state["seen_shared"].copy()
        return seen

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
