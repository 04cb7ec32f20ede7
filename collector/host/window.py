# SPDX-License-Identifier: Apache-2.0
"""One session's place in the stage: what is its own, and its part of the tables of all sessions."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from collector.dataset.manifest import Resume
from collector.host.align import Alignment, Update
from collector.host.flows import MOST_FLOWS, FlowTable, Links
from collector.host.rank import Resumed
from collector.host.ranks import Ranks
from collector.host.rows import arrived, merge
from collector.host.tables import Tables
from collector.messages import Holder
from netmon.dl.classify import NS_PER_S
from netmon.dl.numbering import Trust
from netmon.dl.timemap import TimeMap
from netmon.records import ITERATION, ClockExchange, ClockSample, Columns, Flow, Hello, Mark, Table


class _Arrival(NamedTuple):
    sequence: int
    last_row_ns: int  # start of its last row; −1: none
    last_ns: int  # the latest time in it


class HostWindow:
    """The moving window of one agent's session."""

    def __init__(self, hello: Hello, resume: Resume, tables: Tables) -> None:
        """Begin, or take up a session of which `resume` says what the dataset holds. tables: of all sessions."""
        self.hello, self.settings, self._tables = hello, tables.settings, tables
        self.links = Links(hello)
        self.session = tables.sessions.add(hello, self.links, tables.settings, resume)
        row = tables.sessions.table[self.session]
        self.window_ns, self.first_link = int(row["window_ns"]), int(row["first_link"])
        own = self.first_link, len(self.links)
        self.flows = FlowTable(self.links, tables.flows, self.session, hello.host)
        self.flows.now_ns = hello.clock.mono_ns
        self.alignment = Alignment(hello.clock, hello.bucket_ns, resume.clock)
        mono = self.alignment.map.mono
        until_ns = {link: mono(utc_ns) for link, utc_ns in resume.ledger_until_utc.items()}
        tables.ledger.open(*own, until_ns, resume.ledger_totals, resume.ledger_open)
        holder = Holder(hello.host, hello.session, 0)
        self.ranks = Ranks(
            self.session, holder, tables.settings.parameters, tables.rank_log, tables.rank_table, self.flows
        )
        self._complete = resume.complete_sequence
        self._arrivals: deque[_Arrival] = deque()
        self.introduced = hello.training.iterations
        """Under way at the introduction, maybe later than batches that are sent again: no batch has reached them."""
        self._inferred: list[Mark] = []  # that the traffic has shown, not added yet
        self.renamed = 0  # processes
        self._crowded = False  # that there were too many flows was said
        self._resume_state(resume)
        self.use_map()
        self._introduce(hello)

    def _resume_state(self, resume: Resume) -> None:
        for stored in resume.flows:
            self.flows.restore(stored)
        for rank in resume.ranks:
            known = Resumed(rank.size, rank.parameters, self.alignment.map.mono(rank.end_utc), rank.number)
            self.ranks.resume(rank.job, rank.rank, known, Trust(rank.trust), rank.shift)

    def _introduce(self, hello: Hello) -> None:
        """What is under way already: the flows that are alive, and the step that each rank is in."""
        for flow in hello.flows:
            self.describe(flow)
        for state in hello.training.ranks:
            self.ranks.update(state)

    @property
    def horizon_ns(self) -> int:
        """Every bucket that ended before it has arrived (mono)."""
        return int(self._tables.sessions.table["horizon_ns"][self.session])

    @property
    def settled_ns(self) -> int:
        """Every row that begins before it has settled (mono)."""
        return int(self._tables.sessions.table["settled_ns"][self.session])

    def align(
        self, sample: ClockSample, exchanges: Sequence[ClockExchange], horizon_ns: int, settled_ns: int
    ) -> Update | None:
        """Take in what batches report of the clock, up to the horizon; None where that does not change its map."""
        samples = self.alignment.add_sample(sample, exchanges, horizon_ns)
        return None if samples is None else Update(self.alignment, sample, samples, horizon_ns, settled_ns)

    def aligned(self, before: TimeMap, jump_ns: int | None) -> None:
        """The clock's map was updated. before: the one until now; jump_ns: as update_all tells."""
        if self.alignment.map is not before:
            self.use_map()
        if jump_ns:
            by = f"{jump_ns / NS_PER_S:+.3f} s"
            self.ranks.rejected.warn(
                f"rows of {self.hello.host} move by {by}: its clock has jumped, or is only now known"
            )

    def use_map(self) -> None:
        self._tables.sessions.use_map(self.session, self.alignment.map)

    def take_introduced(self) -> Table:
        """Those that batches have reached by now, of netmon.records.ITERATION."""
        due = self.introduced["start_ns"] <= self.horizon_ns
        found, self.introduced = self.introduced[due], self.introduced[~due]
        return found

    def rename(self) -> bool:
        """Flows of a process that turned out to be of another job of the same name; whether there were any."""
        if len(self.ranks.renamed) == self.renamed:
            return False
        self.renamed = len(self.ranks.renamed)
        for flow in list(self.flows):
            self.describe(flow)
        return True

    def describe(self, flow: Flow) -> None:
        self.flows.describe(self.named(flow))
        if self.flows.beyond and not self._crowded:
            self._crowded = True
            host = self.hello.host
            self.ranks.rejected.warn(
                f"{host} has {MOST_FLOWS} flows at a time: others are counted together, without owner"
            )

    def named(self, flow: Flow) -> Flow:
        """The flow with the name of its job that was given to it where two jobs have one name."""
        name = self.ranks.renamed.get((flow.owner.job, flow.owner.pid)) if flow.owner.job else None
        return replace(flow, owner=replace(flow.owner, job=name)) if name else flow

    def add_marks(self, marks: Iterable[Mark]) -> None:
        """What the traffic tells about this host's ranks; it counts from the next tick on."""
        self._inferred += marks

    def infer(self) -> Table:
        """What the traffic has shown of iterations, of netmon.records.ITERATION."""
        marks, self._inferred = self._inferred, []
        return np.array(self.ranks.infer(marks, self.settled_ns), ITERATION)

    def arrive(self, arrivals: Iterable[tuple[int, int, int]]) -> None:
        """Batches have come: number, last row and latest time of each."""
        self._arrivals.extend(map(_Arrival._make, arrivals))

    def latest_ns(self) -> int:
        """The latest time that anything has reported."""
        return max([self.horizon_ns, *(arrival.last_ns for arrival in self._arrivals)])

    def full(self, buckets: Table) -> Columns:
        """Rows of full resolution that were requested, dtype BUCKET, of whole share windows → rows of SETTLED.

        Classes are what is known now, iterations those of the last minutes, as they were stored. Rows of flows that
        are not known any more are left out.
        """
        rows = arrived(buckets, self.flows.known(buckets["flow_id"]), self.hello.bucket_ns, self.session)
        rows = merge(rows[rows["flow"] >= 0], self.hello.bucket_ns)
        settled = self._tables.stamped(rows, self._tables.classified(rows).classes, self._tables.steps())
        whose = self.flows.state[rows["flow"]]
        start, first, last = rows["start_ns"], rows["start_ns"].min(initial=0), rows["start_ns"].max(initial=-1)
        for over in self._tables.over.within(self.session, int(first), int(last)):
            inside = (start >= over.start_ns) & (start < over.end_ns) & (settled["job"] == over.job)
            inside &= (whose["job"] == 0) | (whose["rank"] == over.rank)
            settled["iteration"][inside] = over.number
        return settled

    def complete(self) -> int:
        """The last batch of which, as of all before it, every row has settled; 0: none."""
        settled_ns = self.settled_ns
        newest = self._last_of(lambda arrival: arrival.last_row_ns < settled_ns)
        self._complete = max(self._complete, newest or 0)
        return self._complete

    def acknowledgeable(self) -> int | None:
        """The last batch that nothing needs any more once all settled rows are stored; None: no new one."""
        settled_ns = self.settled_ns
        needed_ns = self._tables.needed_since(self.session)
        limit_ns = settled_ns + 1 if needed_ns is None else min(settled_ns + 1, needed_ns)
        return self._last_of(lambda arrival: arrival.last_row_ns < settled_ns and arrival.last_ns < limit_ns)

    def _last_of(self, done: Callable[[_Arrival], bool]) -> int | None:
        """Of the batches with which it is done, as with all before them."""
        last = None
        for arrival in self._arrivals:
            if not done(arrival):
                break
            last = arrival.sequence
        return last

    def acknowledged(self, sequence: int) -> None:
        """The agent forgets the batches up to here."""
        while self._arrivals and self._arrivals[0].sequence <= sequence:
            self._arrivals.popleft()
