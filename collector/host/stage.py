# SPDX-License-Identifier: Apache-2.0
"""All hosts' rows between their arrival and their place in the dataset, in one table, at every tick.

A row waits `settle` after its bucket, by the agent's horizon: until then its flow's owner and the marks of its
iteration may still arrive. Then rows of the same flow and bucket become one, get their class, job and iteration, and
never change again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collector.dataset.resume import Resume
from collector.host.align import SET_NS, Update, update_all
from collector.host.flows import unknown_flow
from collector.host.iteration_rows import Accounted, IterationRows, iteration_rows
from collector.host.ledger import COUNTERS, SAMPLE, LedgerRow
from collector.host.rows import STARTING_NS, rows_of
from collector.host.session import Session
from collector.host.steps import AllSteps
from collector.host.tables import Classified, Tables
from collector.host.window import News, Output
from collector.messages import TickAnswer, TickNews, flow_id_of, session_of
from collector.settings import Settings
from netmon.columnar import Columns
from netmon.dl.grouped import distinct, edges, latest_of, starts
from netmon.dl.iterations import IterationTracker
from netmon.errors import WireError
from netmon.mark_runs import MarkRun, MarkTable, mark_table
from netmon.records import ClockExchange, ClockSample, Flow, Hello, Mark, NicSample, Table
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import ManyBatches, decode_many
from netmon.wire.limits import FURTHEST_NS

# --- The batches of one tick of the host stage, and what the tick has made of them.

_Indices = npt.NDArray[np.int64]


@dataclass
class Settled:
    """What a tick has made final, and what it could not take in."""

    outputs: dict[int, list[Output]] = field(default_factory=dict)  # by index, where something has become final
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)  # by index: batch, and why it breaks the contract
    failed: dict[int, tuple[int, Exception]] = field(default_factory=dict)  # by index: batch, 0: none; how it failed
    arrived: list[Columns] = field(default_factory=list)  # rows that have come, of ARRIVED
    final: list[Classified] = field(default_factory=list)  # rows that have settled
    ended: list[IterationRows] = field(default_factory=list)  # iterations that have; their accounts follow
    unclear: dict[str, IterationTracker] = field(default_factory=dict)  # jobs that are not understood, a rank of each
    accounted: list[Accounted] = field(default_factory=list)  # iterations whose rows have settled


@dataclass
class Batches:
    """The batches of one tick, those that are refused marked as such."""

    many: ManyBatches
    session: _Indices  # of each batch
    sequences: Sequence[int]  # of each batch
    settled: Settled
    flows: dict[int, list[Flow]] = field(default_factory=dict)  # these four by batch
    marks: dict[int, list[MarkRun]] = field(default_factory=dict)  # of ranks outside the rank table
    table_marks: MarkTable = field(default_factory=lambda: mark_table(()))  # those of the others that are taken in
    exchanges: dict[int, list[ClockExchange]] = field(default_factory=dict)
    nic: dict[int, list[NicSample]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort what comes alongside rows by its batch."""
        self.good = np.ones(len(self.session), np.bool_)
        for name in ("flows", "exchanges", "nic"):
            found: dict[int, list[object]] = getattr(self, name)
            for batch, one in getattr(self.many, name):
                found.setdefault(batch, []).append(one)
        for batch, reason in self.many.refused.items():
            self.refuse(batch, reason)

    def refuse(self, batch: int, reason: str) -> None:
        """It breaks the contract; what follows it on its session comes again."""
        session_index, sequence = int(self.session[batch]), self.sequences[batch]
        known = self.settled.refused.get(session_index)
        if known is None or sequence < known[0]:
            self.settled.refused[session_index] = sequence, reason
        self.good[batch:][self.session[batch:] == session_index] = False

    def fail(self, batch: int, error: Exception) -> None:
        """The stage fails at it: nothing of its session is what it should be."""
        self.fail_session(int(self.session[batch]), error, self.sequences[batch])

    def fail_session(self, session_index: int, error: Exception, sequence: int = 0) -> None:
        """The stage fails at it; sequence: at which batch."""
        self.settled.failed.setdefault(session_index, (sequence, error))
        self.good[self.session == session_index] = False


def failing(work: Callable[[list[int]], object], session_indices: list[int]) -> list[tuple[int, Exception]]:
    """The sessions at which work(indices) fails, and how. Where it fails for many at once, it is tried on each half."""
    if not session_indices:
        return []
    try:
        work(session_indices)
    except Exception as error:
        if len(session_indices) == 1:
            return [(session_indices[0], error)]
        middle = len(session_indices) // 2
        return failing(work, session_indices[:middle]) + failing(work, session_indices[middle:])
    return []


# --- What a tick's batches report of all hosts' clocks.


def align_clocks(tables: Tables, sessions: Mapping[int, Session], batches: Batches, last: Mapping[int, int]) -> None:
    """Take it in; last: of each session, its last batch. Where that fails at a session, its batch fails."""
    exchanges: dict[int, list[ClockExchange]] = {}
    for batch, some in batches.exchanges.items():
        exchanges.setdefault(int(batches.session[batch]), []).extend(some)
    horizon_ns, settled_ns = (tables.sessions.table[name].tolist() for name in ("horizon_ns", "settled_ns"))
    clock_of: list[Any] = batches.many.heads[["mono_ns", "utc_ns", "error_ns", "utc_error_ns"]].tolist()
    disciplines, updates = batches.many.disciplines, dict[int, Update]()
    for session_index, batch in last.items():
        sample = ClockSample(*(*clock_of[batch], disciplines.get(batch, "")))
        try:
            known_ns = sessions[session_index].window.alignment.sample.offset_ns
            if abs(sample.offset_ns - known_ns) >= SET_NS:
                sessions[session_index].window.alignment.add_clock_set(*_set(batches, session_index, known_ns))
            update = sessions[session_index].window.align(
                sample, exchanges.get(session_index, ()), horizon_ns[session_index], settled_ns[session_index]
            )
        except Exception as error:
            batches.fail(batch, error)
        else:
            if update:
                updates[session_index] = update
    before = {session_index: update.alignment.map for session_index, update in updates.items()}
    try:
        jumps = dict(zip(updates, update_all(list(updates.values())), strict=True))
    except Exception:  # at one of them: each by itself
        jumps = {}
        for session_index, update in updates.items():
            try:
                jumps[session_index] = update_all([update])[0]
            except Exception as error:
                batches.fail(last[session_index], error)
    for session_index, jump_ns in jumps.items():
        sessions[session_index].window.aligned(before[session_index], jump_ns)


def _set(batches: Batches, session_index: int, known_ns: int) -> tuple[int, int]:
    """The first of a session's samples by which its own UTC has moved (mono), and how far."""
    clocks = batches.many.heads[batches.session == session_index]
    moved_ns = clocks["utc_ns"] - clocks["mono_ns"] - known_ns
    first = int(np.argmax(np.abs(moved_ns) >= SET_NS))
    return int(clocks["mono_ns"][first]), int(moved_ns[first])


# --- The way of the rank table's marks through a tick, for all hosts at once.


def add_table_marks(tables: Tables, batches: Batches) -> None:
    """Add the marks of ranks in the table; all others are handed on, by batch."""
    marks, session_index, heads = batches.many.marks, batches.session, batches.many.heads
    marks = marks.take(batches.good[marks.batch])
    row = tables.rank_table.find(marks, session_index)
    known = np.flatnonzero(row >= 0)
    taken = np.zeros(len(marks), np.bool_)
    if len(known):
        settled_ns = tables.sessions.table["settled_ns"]
        own = marks.take(known)
        latest_ns = heads["horizon_ns"][own.batch] + FURTHEST_NS
        taken[known] = tables.rank_table.add_marks(own, row[known], settled_ns[session_index[own.batch]], latest_ns)
        batches.table_marks = marks.take(taken)
        tables.accounts.payload.cut_in_order(session_index[batches.table_marks.batch], batches.table_marks.time_ns)
    for batch, run in marks.take(~taken).runs():
        batches.marks.setdefault(batch, []).append(run)


# --- What is new goes to the rank registry within a tick, and its answer is applied.

Answer = Callable[[TickNews], TickAnswer]
"""What the rank registry says to what is new."""

Fail = Callable[[int, Exception], None]
"""Something has failed at the session at a place."""


def exchange(tables: Tables, sessions: Mapping[int, Session], answer: Answer, fail: Fail) -> None:
    """Tell all that is new, if anything is, and take over what is answered; sessions: by index."""
    log, flows = tables.rank_log, tables.flows
    over, ends = flows.ends.take(flows.flows, flows.state)
    if not (log or len(over) or ends):
        return
    said = answer(TickNews(**log.take(), flows_over=over, flows=ends))
    log.apply_answer(said.counts, said.lost)
    for serial, name in said.names:
        if serial in log.ranks:
            ranks, rank = log.ranks[serial]
            try:
                ranks.named(rank, name)
                sessions[ranks.session].window.rename()
            except Exception as error:
                fail(ranks.session, error)
    for serial, shift in said.moved:
        if serial in log.ranks:
            ranks, rank = log.ranks[serial]
            ranks.renumbered(rank, shift)
    for flow, job, number in said.peers:
        session = sessions.get(session_of(flow))
        if session:
            session.set_peer(flow_id_of(flow), job, number)


_T = TypeVar("_T")


class HostStage:
    """The host stage of a worker. Sessions are known by their indices."""

    def __init__(self, settings: Settings, answer: Answer) -> None:
        """answer: of the rank registry, to what is new within a tick."""
        self.tables, self._answer = Tables(settings), answer
        self._settings = settings
        self.sessions: dict[int, Session] = {}
        """By index."""
        self._queue: list[tuple[int, netmon_pb2.Batch]] = []
        self._broken: set[int] = set()  # sessions at which it has failed, until they are closed
        self._waiting: set[int] = set()  # sessions of which the traffic has reported something
        self._unnamed: set[int] = set()  # sessions with processes of which it is not known who they are
        self._introduced: set[int] = set()  # sessions that have reported steps which no batch has reached yet
        self._loose: set[int] = set()  # sessions that may have ranks outside the table

    def open(self, hello: Hello, resume: Resume) -> int:
        """Begin or resume a session; returns its place."""
        session = Session(hello, resume, self.tables)
        self.sessions[session.index] = session
        self._introduced.add(session.index)
        self._loose.add(session.index)
        return session.index

    def session(self, session_index: int) -> Session:
        return self.sessions[session_index]

    def close(self, session_index: int) -> None:
        session = self.sessions.pop(session_index)
        window, tables = session.window, self.tables
        session.forget()
        self._queue = [(of, message) for of, message in self._queue if of != session_index]
        for some in (self._waiting, self._unnamed, self._broken, self._introduced, self._loose):
            some.discard(session_index)
        tables.drop(session_index)
        tables.ledger.close(window.first_link, len(window.links))
        tables.sessions.remove(session_index, len(window.links))

    def add(self, session_index: int, message: netmon_pb2.Batch) -> None:
        if session_index not in self._broken:
            self._queue.append((session_index, message))

    def add_marks(self, session_index: int, marks: Iterable[Mark]) -> None:
        """What the traffic tells about a host's ranks, for the next tick."""
        self.sessions[session_index].window.add_marks(marks)
        self._waiting.add(session_index)

    def tick(self) -> Settled:
        """Take in everything that is queued, and settle what is due on all hosts."""
        queue, self._queue = self._queue, []
        queue.sort(key=lambda entry: entry[0])
        messages = [message for _, message in queue]
        sequences = [message.sequence for message in messages]
        return self.take([session_index for session_index, _ in queue], decode_many(messages), sequences)

    def take(
        self, session_indices: Sequence[int] | _Indices, many: ManyBatches, sequences: Sequence[int] | None = None
    ) -> Settled:
        """Take in batches that are decoded, and settle what is due; session_indices: of their sessions, ascending."""
        settled = Settled()
        numbers = many.heads["sequence"].tolist() if sequences is None else sequences
        batches = Batches(many, np.array(session_indices, np.int64), numbers, settled)
        self._describe(batches)
        rows, of_batch = self._rows(batches)
        samples = self._samples(batches)
        for batch, reason in self.tables.evidence.check(many, batches.session).items():
            batches.refuse(batch, reason)
        with_marks = self._add_news(batches)
        self._broken |= settled.failed.keys()
        if not batches.good.all():
            kept = batches.good[of_batch]
            rows, of_batch = rows[kept], of_batch[kept]
            samples = samples[batches.good[samples["batch"]]]
        self._arrive(batches, rows, of_batch, samples)
        self.tables.evidence.add(many, batches.session, batches.good)
        with_batches = distinct(batches.session[batches.good])
        self._settle_until(with_batches, self._grid(with_batches))
        self._settle(settled, with_marks | self._unnamed)
        return settled

    def settle_all(self, session_indices: Sequence[int], leaving: bool) -> Settled:
        """Settle everything that has arrived of some sessions; `leaving`: they are over, no mark will follow."""
        settled = self.tick()
        if leaving:
            self._end_ranks(settled, session_indices)
        last = np.array(
            [self.sessions[session_index].window.latest_ns() for session_index in session_indices], np.int64
        )
        rows = self.tables.pending.all()
        latest = np.full(len(self.tables.sessions.table), -1, np.int64)
        np.maximum.at(latest, rows["session"], rows["start_ns"])
        at = np.array(session_indices, np.int64)
        self._settle_until(at, np.maximum(last, latest[at] + 1))
        self._settle(settled, set(session_indices))
        return settled

    def _describe(self, batches: Batches) -> None:
        heads = batches.many.heads
        for batch, flows in batches.flows.items():
            session = self.sessions[int(batches.session[batch])]
            try:
                for flow in flows:
                    session.describe(flow, int(heads["horizon_ns"][batch]))
            except WireError as error:
                batches.refuse(batch, str(error))
            except Exception as error:
                batches.fail(batch, error)

    def _rows(self, batches: Batches) -> tuple[Columns, npt.NDArray[np.int32]]:
        """The batches' rows, of ARRIVED, and the batch of each; refuses batches with flows that are not known."""
        many = batches.many
        at_ns = many.heads["horizon_ns"][many.runs.batch]
        flow = self.tables.flows.keys.find(batches.session[many.runs.batch], many.runs.flow_id, at_ns)
        for run in np.flatnonzero(flow < 0)[::-1].tolist():  # of each batch the first one counts
            batches.refuse(int(many.runs.batch[run]), str(unknown_flow(int(many.runs.flow_id[run]))))
        return rows_of(many, batches.session, flow, self.tables.sessions.table), many.rows["batch"]

    def _samples(self, batches: Batches) -> Table:
        ledger = batches.many.ledger
        samples = np.zeros(len(ledger), _SAMPLING)
        for name in ("batch", "time_ns", "nic_header_bytes", "uncounted", *COUNTERS):
            samples[name] = ledger[name]
        links = []
        for batch, interface, direction in zip(*(ledger[name].tolist() for name in _LINK), strict=True):
            window = self.sessions[int(batches.session[batch])].window
            try:
                links.append(window.first_link + window.links.number(interface, direction))
            except WireError as error:
                links.append(0)
                batches.refuse(batch, str(error))
        samples["link"] = links
        return samples

    def _add_news(self, batches: Batches) -> set[int]:
        """Take in what the batches tell alongside rows; returns the sessions with marks."""
        heads = batches.many.heads
        good = np.flatnonzero(batches.good)
        self._advance(heads[good], batches.session[good])
        with_marks: set[int] = set()
        last = dict(zip(batches.session[good].tolist(), good.tolist(), strict=True))  # of each session, its last batch
        sessions = self.tables.sessions.table
        settled_ns = sessions["settled_ns"].tolist()
        align_clocks(self.tables, self.sessions, batches, last)
        self._use_offsets()
        add_table_marks(self.tables, batches)
        sequence, until_ns = heads["sequence"].tolist(), heads["horizon_ns"].tolist()
        self._introduced = {p for p in self._introduced if self.sessions[p].window.introduced}
        introduced = self._introduced.intersection(last)
        with_news = {*batches.marks, *batches.nic}
        with_news |= {b for b in good.tolist() if int(batches.session[b]) in introduced} if introduced else set()
        for batch in sorted(with_news):
            session_index = int(batches.session[batch])
            if not batches.good[batch]:
                continue
            marks, nic = batches.marks.get(batch, []), batches.nic.get(batch, [])
            news = News(sequence[batch], until_ns[batch], settled_ns[session_index], marks, nic)
            try:
                batches.marks[batch] = list(self.sessions[session_index].add_news(news))
            except Exception as error:
                batches.fail(batch, error)
            if marks or session_index in introduced:
                with_marks.add(session_index)
        self._query_names(batches, (with_marks | self._unnamed) - self._broken)
        self._find_peer_flows(batches, last)
        inferred, self._waiting = self._waiting, set()
        for session_index in inferred:  # what the traffic has shown, now that the processes' ranks are known
            self.sessions[session_index].window.infer()
        self._query_names(batches, inferred)
        return with_marks | inferred

    def _query_names(self, batches: Batches, session_indices: Iterable[int]) -> None:
        """Ranks of some sessions that step and have no name ask for it."""
        for session_index in sorted(session_indices):
            ranks = self.sessions[session_index].window.ranks
            try:
                if ranks.unnamed:
                    ranks.request_names()
            except Exception as error:
                batches.fail_session(session_index, error)
        exchange(self.tables, self.sessions, self._answer, batches.fail_session)

    def _end_ranks(self, settled: Settled, session_indices: Iterable[int]) -> None:
        """No marks will come of some sessions any more: their ranks have names now or never, and end."""
        ranks = [self.sessions[session_index].window.ranks for session_index in session_indices]
        for own in ranks:
            own.request_last_names()
        exchange(self.tables, self.sessions, self._answer, partial(self._fail, settled))
        for own in ranks:
            own.end_of_stream()

    def _find_peer_flows(self, batches: Batches, session_indices: Iterable[int]) -> None:
        """Flows of some sessions that are a job's by their other end, which may be described before or after."""
        horizon_ns = self.tables.sessions.table["horizon_ns"]
        for session_index in session_indices:
            session = self.sessions[session_index]
            if session.serves:
                try:
                    session.find_peer_flows(int(horizon_ns[session_index]))
                except Exception as error:
                    batches.fail_session(session_index, error)

    def _use_offsets(self) -> None:
        """Tell the ranks what their clocks are off by now."""
        sessions = self.tables.sessions
        now_ns = sessions.table["horizon_ns"]
        offset_ns = sessions.utc(np.arange(len(now_ns)), now_ns) - now_ns
        self.tables.rank_table.use_offsets(offset_ns)
        for session_index in self._loose:
            self.sessions[session_index].window.ranks.offset_ns = int(offset_ns[session_index])

    def _advance(self, heads: Table, session_index: _Indices) -> None:
        """Horizons, widths and costs of the sessions, by their batches."""
        sessions = self.tables.sessions.table
        np.maximum.at(sessions["horizon_ns"], session_index, heads["horizon_ns"])
        sessions["bucket_ns"][session_index] = np.where(
            heads["bucket_ns"] > 0, heads["bucket_ns"], sessions["full_ns"][session_index]
        )
        for name in ("cpu_fraction", "rss_bytes", "spool_bytes", "warnings"):
            sessions[name][session_index] = heads[name]

    def _arrive(self, batches: Batches, rows: Columns, of_batch: npt.NDArray[np.int32], samples: Table) -> None:
        """Account for rows and samples that have arrived; of_batch: of each row."""
        tables, heads = self.tables, batches.many.heads
        own = samples[list(SAMPLE.names or ())].astype(SAMPLE)
        tables.ledger.sample(own)
        onsets = tables.flows.seen(rows)
        tables.pending.add(rows)
        batches.settled.arrived.append(rows)
        last_row, last = np.full(len(batches.session), -1, np.int64), heads["horizon_ns"].copy()
        first = starts(of_batch)
        last_row[of_batch[first]] = latest_of(rows["start_ns"], first)
        np.maximum.at(last, samples["batch"], samples["time_ns"])
        np.maximum.at(last, batches.table_marks.batch, batches.table_marks.time_ns)
        for batch, marks in batches.marks.items():
            last[batch] = max([int(last[batch]), *(max(run.times_ns) for run in marks)])
        last = np.maximum(last, last_row)
        good = np.flatnonzero(batches.good)
        arrivals = list(zip(*(column[good].tolist() for column in (heads["sequence"], last_row, last)), strict=True))
        at = edges(batches.session[good], len(tables.sessions.table))
        for session_index in distinct(batches.session[good]).tolist():
            mine, session = arrivals[at[session_index] : at[session_index + 1]], self.sessions[session_index]
            session.taken(mine[-1][0])
            session.window.arrive(mine)
        some = np.flatnonzero(rows["payload_bytes"])
        tables.payload.add(*(rows[name][some] for name in ("session", "flow", "start_ns", "payload_bytes")))
        began_ns = tables.sessions.table["onsets_ns"][rows["session"][onsets]] + STARTING_NS
        onsets = onsets[rows["start_ns"][onsets] >= began_ns]
        tables.onsets.add(*(rows[name][onsets] for name in ("session", "flow", "start_ns", "bucket_ns")))

    def _grid(self, session_indices: _Indices) -> npt.NDArray[np.int64]:
        row = self.tables.sessions.table[session_indices]
        until_ns: npt.NDArray[np.int64] = row["horizon_ns"] - self._settings.settle_ns
        return until_ns - until_ns % row["window_ns"]  # type: ignore[no-any-return]

    def _settle_until(self, session_indices: _Indices, until_ns: npt.NDArray[np.int64]) -> None:
        settled_ns = self.tables.sessions.table["settled_ns"]
        settled_ns[session_indices] = np.maximum(settled_ns[session_indices], until_ns)

    def _settle(self, settled: Settled, with_batches: set[int]) -> None:
        """Make final what begins before the settled times; with_batches: sessions of which something is new."""
        tables = self.tables
        self._loose |= with_batches | tables.rank_table.given_back
        tables.rank_table.given_back.clear()
        self._loose = {p for p in self._loose - self._broken if self.sessions[p].window.ranks.busy}
        busy = sorted(self._loose)
        training = sorted(with_batches.intersection(busy))
        for session_index in training:
            window = self.sessions[session_index].window
            self._guard(settled, session_index, window.align_ranks)
            (self._unnamed.add if window.ranks.unnamed else self._unnamed.discard)(session_index)
        log, rank_table = tables.rank_log, tables.rank_table
        log.stepped(rank_table.take_steps())
        log.step_events(
            rank_table.check(log.young, lambda ranks: self.sessions[ranks.session].window.alignment.error_ns)
        )
        exchange(self.tables, self.sessions, self._answer, partial(self._fail, settled))
        for session_index in training:
            self.sessions[session_index].window.ranks.aligned()
        tables.rank_log.checked()
        tables.sessions.table["trains"] = False
        tables.sessions.table["trains"][busy] = tables.sessions.table["trains"][tables.rank_table.sessions()] = True
        rows = tables.pending.take(np.ascontiguousarray(tables.sessions.table["settled_ns"]))
        tables.reclassify_traffic()
        there = set(distinct(rows["session"]).tolist())
        steps = tables.steps(
            [self.sessions[session_index].window.ranks for session_index in busy if session_index in there]
        )
        found, buckets = self._final(settled, rows, steps)
        tables.account(found)
        settled.final.append(found)
        self._output(settled, buckets, found.rows, with_batches)
        tables.forget()

    def _final(self, settled: Settled, rows: Columns, steps: AllSteps) -> tuple[Classified, Columns]:
        """Rows with their class, and as the dataset has them. Those of a session at which this fails are left out."""
        try:
            return self._computed(rows, steps)
        except Exception:

            def compute(session_indices: list[int]) -> object:
                return self._computed(rows[np.isin(rows["session"], session_indices)], steps)

            for session_index, error in failing(compute, distinct(rows["session"]).tolist()):
                self._fail(settled, session_index, error)
                rows = rows[rows["session"] != session_index]
            return self._computed(rows, steps)

    def _computed(self, rows: Columns, steps: AllSteps) -> tuple[Classified, Columns]:
        rows = self.tables.merged(rows)
        found = self.tables.classified(rows)
        buckets = self.tables.stamped(rows, found.classes, steps)
        self._mend_old(rows, buckets)
        return found, buckets

    def _mend_old(self, rows: Columns, buckets: Columns) -> None:
        older = self.tables.sessions.older(rows["session"], rows["start_ns"])
        for index in np.unique(rows["session"][older]).tolist():
            own = older[rows["session"][older] == index]
            buckets["bucket_start_ns"][own] = self.sessions[index].window.alignment.map.utcs(rows["start_ns"][own])

    def _output(self, settled: Settled, buckets: Columns, rows: Columns, with_batches: set[int]) -> None:
        tables, sessions = self.tables, self.tables.sessions
        fresh = buckets[~rows["stored"]] if rows["stored"].any() else buckets
        self.tables.unstored.add(fresh)
        settled_ns = sessions.table["settled_ns"]
        ledger: dict[int, list[LedgerRow]] = {}
        of_link = np.maximum(sessions.links["session"], 0)
        ledger_rows, links = self.tables.ledger.rows(settled_ns[of_link], sessions.table["first_link"][of_link])
        for row, link in zip(ledger_rows, links, strict=True):
            session_index = int(sessions.links["session"][link])
            if session_index >= 0:  # of a session that is not gone
                ledger.setdefault(session_index, []).append(row)
        begins = edges(fresh["session"], len(sessions.table))
        with_rows = set(distinct(fresh["session"]).tolist())
        due = with_batches | set(np.flatnonzero(sessions.table["due_ns"] <= settled_ns).tolist())
        loose = sorted(self._loose & due)
        of_loose = {
            session_index: self._guard(settled, session_index, self.sessions[session_index].window.settle_ranks)
            for session_index in loose
        }
        ended, over = (
            iteration_rows((session_index, one) for session_index, own in of_loose.items() if own for one in own[which])
            for which in (0, 1)
        )
        settled.unclear |= {name: rank.tracker for name, rank in tables.rank_log.unclear_jobs().items()}
        settled.ended += [good for each in (ended, tables.rank_table.ended()) if len(good := tables.understood(each))]
        for due_rows in (over, tables.rank_table.settle(np.ascontiguousarray(settled_ns))):
            self._account(settled, tables.understood(due_rows))
        for session_index in loose:
            self._let_go(session_index)
        for session_index in sorted((with_rows | ledger.keys()) - self._broken):
            output = Output(fresh[begins[session_index] : begins[session_index + 1]], ledger.get(session_index, []))
            self.sessions[session_index].add_output(output)
            settled.outputs.setdefault(session_index, []).append(output)

    def _let_go(self, session_index: int) -> None:
        """Move ranks that step regularly into the table; when the others have something to do."""
        window, sessions = self.sessions[session_index].window, self.tables.sessions.table
        if not window.introduced:
            window.ranks.move_to_table(window.flows, self.tables.flows)
        if not window.ranks.loose:
            self._loose.discard(session_index)
        sessions["due_ns"][session_index], sessions["needed_ns"][session_index] = window.ranks.waiting_ns()

    def _account(self, settled: Settled, rows: IterationRows) -> None:
        """The account of iterations that are over. Those of a session at which this fails are left out."""
        tables = self.tables
        if self._broken:
            rows = rows.take(~np.isin(rows.session, list(self._broken)))
        if not len(rows):
            return
        try:
            found = tables.accounted(rows)
        except Exception:
            failed = failing(
                lambda places: tables.accounted(rows.take(np.isin(rows.session, places))),
                np.unique(rows.session).tolist(),
            )
            for session_index, error in failed:
                self._fail(settled, session_index, error)
            if not failed:
                raise
            self._account(settled, rows)
            return
        tables.add_iterations(found)
        settled.accounted.append(found)

    def _guard(self, settled: Settled, session_index: int, work: Callable[[], _T]) -> _T | None:
        """Do something to one session; if that fails, it alone fails."""
        try:
            return work()
        except Exception as error:
            self._fail(settled, session_index, error)
            return None

    def _fail(self, settled: Settled, session_index: int, error: Exception) -> None:
        self._broken.add(session_index)
        settled.failed.setdefault(session_index, (0, error))


_LINK = "batch", "interface", "direction"
_SAMPLING = np.dtype([("batch", "<i4"), *((name, SAMPLE[name]) for name in SAMPLE.names or ())])
