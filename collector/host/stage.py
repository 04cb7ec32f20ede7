# SPDX-License-Identifier: Apache-2.0
"""All hosts' rows between their arrival and their place in the dataset, in one table, at every tick.

A row waits `settle` after its bucket, by the agent's horizon: until then its flow's owner and the marks of its
iteration may still arrive. Then rows of the same flow and bucket become one, get their class, job and iteration, and
never change again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collector.dataset.manifest import Resume
from collector.host.align import SET_NS, Update, update_all
from collector.host.flows import unknown_flow
from collector.host.iteration_rows import Accounted, IterationRows
from collector.host.ledger import COUNTERS, SAMPLE
from collector.host.rank import Owner, Rank
from collector.host.rows import STARTING_NS, rows_of
from collector.host.session import Session
from collector.host.steps import AllSteps
from collector.host.tables import Classified, Tables
from collector.host.window import HostWindow
from collector.messages import TickAnswer, TickNews, flow_id_of, session_of
from collector.settings import Settings
from netmon.dl.classify import crosses
from netmon.dl.grouped import distinct, edges, latest_of, starts
from netmon.errors import WireError
from netmon.records import (
    ITERATION,
    ClockExchange,
    ClockSample,
    Columns,
    Flow,
    Hello,
    Mark,
    NicSample,
    Source,
    Table,
    joined,
)
from netmon.views import SourceScore
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import ManyBatches, decode_many
from netmon.wire.limits import FURTHEST_NS
from netmon.wire.tables import read_ranks

# --- The batches of one tick of the host stage, and what the tick has made of them.

_Indices = npt.NDArray[np.int64]


@dataclass
class Settled:
    """What a tick has made final, and what it could not take in."""

    stored: list[Columns] = field(default_factory=list)  # rows of SETTLED that have become final, by session
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)  # by index: batch, and why it breaks the contract
    failed: dict[int, tuple[int, Exception]] = field(default_factory=dict)  # by index: batch, 0: none; how it failed
    ledger: list[Columns] = field(default_factory=list)  # its rows, with the session of each
    arrived: list[Columns] = field(default_factory=list)  # rows that have come, of ARRIVED
    final: list[Classified] = field(default_factory=list)  # rows that have settled
    ended: list[IterationRows] = field(default_factory=list)  # iterations that have; their accounts follow
    unclear: dict[str, Rank] = field(default_factory=dict)  # jobs that are not understood, a rank of each
    accounted: list[Accounted] = field(default_factory=list)  # iterations whose rows have settled

    def outputs(self, session_index: int) -> Iterator[Columns]:
        """Rows of SETTLED of a session that have become final."""
        for rows in self.stored:
            begin, end = np.searchsorted(rows["session"], (session_index, session_index + 1)).tolist()
            if begin < end:
                yield rows[begin:end]


@dataclass
class Batches:
    """The batches of one tick, those that are refused marked as such."""

    many: ManyBatches
    session: _Indices  # of each batch
    sequences: Sequence[int]  # of each batch
    settled: Settled
    flows: dict[int, list[Flow]] = field(default_factory=dict)  # these three by batch
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


# --- What is new goes to the rank registry within a tick, and its answer is applied.

Answer = Callable[[TickNews], TickAnswer]
"""What the rank registry says to what is new."""

Fail = Callable[[int, Exception], None]
"""Something has failed at the session at a place."""


def exchange(tables: Tables, sessions: Mapping[int, Session], answer: Answer, fail: Fail) -> None:
    """Send all that is new, if anything is, and apply the answer; sessions: by index."""
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
        self._introduced: set[int] = set()  # sessions that have reported steps which no batch has reached yet

    def open(self, hello: Hello, resume: Resume) -> int:
        """Begin or resume a session; returns its place."""
        session = Session(hello, resume, self.tables)
        self.sessions[session.index] = session
        self._introduced.add(session.index)
        return session.index

    def session(self, session_index: int) -> Session:
        return self.sessions[session_index]

    def close(self, session_index: int) -> None:
        session = self.sessions.pop(session_index)
        window, tables = session.window, self.tables
        session.forget()
        self._queue = [(of, message) for of, message in self._queue if of != session_index]
        for some in (self._waiting, self._broken, self._introduced):
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
        self._add_news(batches)
        self._broken |= settled.failed.keys()
        if not batches.good.all():
            kept = batches.good[of_batch]
            rows, of_batch = rows[kept], of_batch[kept]
            samples = samples[batches.good[samples["batch"]]]
        self._arrive(batches, rows, of_batch, samples)
        self.tables.evidence.add(many, batches.session, batches.good)
        with_batches = distinct(batches.session[batches.good])
        self._exchange(settled)
        self._settle_until(with_batches, self._grid(with_batches))
        self._settle(settled)
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
        self._exchange(settled)
        self._settle_until(at, np.maximum(last, latest[at] + 1))
        self._settle(settled)
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

    def _add_news(self, batches: Batches) -> None:
        """Take in what the batches report alongside rows."""
        heads = batches.many.heads
        good = np.flatnonzero(batches.good)
        self._advance(heads[good], batches.session[good])
        last = dict(zip(batches.session[good].tolist(), good.tolist(), strict=True))  # of each session, its last batch
        align_clocks(self.tables, self.sessions, batches, last)
        self._use_offsets()
        for batch, samples in sorted(batches.nic.items()):
            if batches.good[batch]:
                try:
                    self.sessions[int(batches.session[batch])].add_counters(int(heads["sequence"][batch]), samples)
                except Exception as error:
                    batches.fail(batch, error)
        self._update_ranks(batches)
        self._take(self._iterations(batches, last), batches.fail_session)
        self._find_peer_flows(batches, last)
        inferred, self._waiting = self._waiting, set()
        for session_index in sorted(inferred):  # what the traffic has shown, now that the processes' ranks are known
            rows = self.sessions[session_index].window.infer()
            self._take(_of_sessions(np.full(len(rows), session_index), rows), batches.fail_session)

    def _update_ranks(self, batches: Batches) -> None:
        """Ranks that have joined, left, or of which something else is new."""
        many, table = batches.many, self.tables.rank_table
        rows = many.ranks[batches.good[many.ranks["batch"]]]
        news = table.news(rows, batches.session[rows["batch"]], many.words)
        for batch, state in zip(rows["batch"][news].tolist(), read_ranks(rows.take(news), many.words), strict=True):
            try:
                self.sessions[int(batches.session[batch])].window.ranks.update(state)
            except Exception as error:
                batches.fail(batch, error)
        table.learn(rows.take(news), batches.session[rows["batch"][news]], many.words)
        scores = many.scores[batches.good[many.scores["batch"]]]
        of_rank: dict[tuple[int, int], list[SourceScore]] = {}
        for batch, rank_id, *score in zip(*(scores[name].tolist() for name in scores.names), strict=True):
            source, reference = map(Source, score[:2])
            of_rank.setdefault((batch, rank_id), []).append(SourceScore(source, reference, *score[2:]))
        for (batch, rank_id), own in of_rank.items():
            self.sessions[int(batches.session[batch])].window.ranks.add_scores(rank_id, own)

    def _iterations(self, batches: Batches, session_indices: Iterable[int]) -> Columns:
        """What the batches report of iterations, and how far introductions have reported them."""
        rows = batches.many.iterations
        rows = rows[batches.good[rows["batch"]]]
        found = [_of_sessions(batches.session[rows["batch"]], rows)]
        introduced = {place for place in self._introduced if len(self.sessions[place].window.introduced)}
        self._introduced = introduced
        for session_index in sorted(introduced.intersection(session_indices)):
            due = self.sessions[session_index].window.take_introduced()
            found.append(_of_sessions(np.full(len(due), session_index), due))
        return joined(found)

    def _take(self, iterations: Columns, fail: Fail) -> None:
        """Take in iterations, with `session`; their ranks get their names, if these are known by now."""
        tables = self.tables
        settled_ns, horizon_ns = (tables.sessions.table[name] for name in ("settled_ns", "horizon_ns"))
        refused = tables.rank_table.take(iterations, settled_ns, horizon_ns)
        for session_index, reasons in refused.unusable.items():
            self.sessions[session_index].window.ranks.rejected.unusable += reasons
        for owner, rank in refused.late:
            owner.rejected.late(rank)
        tables.rank_log.stepped(tables.rank_table.take_steps())
        for owner, rank in tables.rank_table.unreported():
            try:
                owner.report(rank)
            except Exception as error:
                fail(owner.session, error)
        exchange(tables, self.sessions, self._answer, fail)

    def _end_ranks(self, settled: Settled, session_indices: Iterable[int]) -> None:
        """No more will come of some sessions: their ranks have names now or never."""
        ending = set(session_indices)
        for owner, rank in self.tables.rank_table.unreported():
            if owner.session in ending:
                owner.claim(rank, wait=False)
        exchange(self.tables, self.sessions, self._answer, partial(self._fail, settled))

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
        """Send the ranks the current offsets of their clocks."""
        sessions = self.tables.sessions
        now_ns = sessions.table["horizon_ns"]
        offset_ns = sessions.utc(np.arange(len(now_ns)), now_ns) - now_ns
        self.tables.rank_table.use_offsets(offset_ns)

    def _advance(self, heads: Table, session_index: _Indices) -> None:
        """Horizons, widths and costs of the sessions, by their batches."""
        sessions = self.tables.sessions.table
        follows = np.flatnonzero(session_index[1:] == session_index[:-1]) + 1  # another batch of its session
        before_ns = sessions["horizon_ns"][session_index]
        before_ns[follows] = heads["horizon_ns"][follows - 1]
        sessions["before_ns"][session_index] = before_ns  # of each session, its last one
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
        iterations = batches.many.iterations
        reported_ns, of = np.maximum(iterations["start_ns"], iterations["end_ns"]), iterations["batch"]
        near = reported_ns <= heads["horizon_ns"][of] + FURTHEST_NS
        np.maximum.at(last, of[near], reported_ns[near])
        last = np.maximum(last, last_row)
        good = np.flatnonzero(batches.good)
        arrivals = list(zip(*(column[good].tolist() for column in (heads["sequence"], last_row, last)), strict=True))
        at = edges(batches.session[good], len(tables.sessions.table))
        for session_index in distinct(batches.session[good]).tolist():
            mine, session = arrivals[at[session_index] : at[session_index + 1]], self.sessions[session_index]
            session.taken(mine[-1][0])
            session.window.arrive(mine)
        # What is known to be no rank's makes no job that would be reported.
        cross = crosses(tables.flows.of_flows("class", rows["flow"]))
        some = np.flatnonzero((rows["payload_bytes"] > 0) & ~cross)
        tables.payload.add(*(rows[name][some] for name in ("session", "flow", "start_ns", "payload_bytes")))
        began_ns = tables.sessions.table["onsets_ns"][rows["session"][onsets]] + STARTING_NS
        onsets = onsets[rows["start_ns"][onsets] >= began_ns]
        tables.onsets.add(*(rows[name][onsets] for name in ("session", "flow", "start_ns", "bucket_ns")))

    def _grid(self, session_indices: _Indices) -> npt.NDArray[np.int64]:
        table, settle_ns = self.tables.sessions.table, self._settings.settle_ns
        row = table[session_indices]
        until_ns: npt.NDArray[np.int64] = row["horizon_ns"] - settle_ns
        # All that came with the batch before has waited for nearly as long: it waits for no other one. Nor does the end
        # of the iteration that was under way then, where it is soon: that batch is acknowledged with it.
        earlier_ns = row["before_ns"] + row["window_ns"]
        seldom = earlier_ns <= until_ns + settle_ns // _NEARLY
        until_ns = np.where(seldom, np.maximum(until_ns + settle_ns // _SOON, earlier_ns), until_ns)
        until_ns = np.minimum(until_ns, self.tables.rank_table.uncompared_ns(table["horizon_ns"])[session_indices])
        return until_ns - until_ns % row["window_ns"]  # type: ignore[no-any-return]

    def _settle_until(self, session_indices: _Indices, until_ns: npt.NDArray[np.int64]) -> None:
        settled_ns = self.tables.sessions.table["settled_ns"]
        settled_ns[session_indices] = np.maximum(settled_ns[session_indices], until_ns)

    def _exchange(self, settled: Settled) -> None:
        """Send the job stage what ranks do, and apply how their jobs count them."""
        tables = self.tables
        log, rank_table = tables.rank_log, tables.rank_table
        events, again = rank_table.check(log.young, lambda owner: self._window(owner).alignment.error_ns)
        log.step_events(events)
        exchange(tables, self.sessions, self._answer, partial(self._fail, settled))
        for owner, rank in rank_table.leaving():
            owner.freeze(rank)
        log.checked(again)

    def _settle(self, settled: Settled) -> None:
        """Make final what begins before the settled times."""
        tables = self.tables
        tables.sessions.table["trains"] = False
        tables.sessions.table["trains"][tables.rank_table.sessions()] = True
        rows = tables.pending.take(np.ascontiguousarray(tables.sessions.table["settled_ns"]))
        tables.reclassify_traffic()
        found, buckets = self._final(settled, rows, tables.steps())
        tables.account(found)
        settled.final.append(found)
        self._output(settled, buckets, found.rows)
        tables.forget()

    def _window(self, owner: Owner) -> HostWindow:
        return self.sessions[owner.session].window

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

    def _output(self, settled: Settled, buckets: Columns, rows: Columns) -> None:
        tables, sessions = self.tables, self.tables.sessions
        fresh = buckets[~rows["stored"]] if rows["stored"].any() else buckets
        self.tables.unstored.add(fresh)
        settled_ns = sessions.table["settled_ns"]
        of_link = sessions.links["session"]
        ledger = tables.ledger.rows(settled_ns.take(np.maximum(of_link, 0)))
        ledger = ledger[of_link.take(ledger["link"]) >= 0]  # of sessions that are not gone
        session = of_link.take(ledger["link"])
        link = ledger["link"] - sessions.table["first_link"].take(session)
        settled.ledger.append(ledger.replaced(session=session, link=link))
        tables.unstored_of["ledger"].add(settled.ledger[-1])
        settled.stored.append(fresh)
        settled.unclear |= tables.rank_log.unclear_jobs()
        ended = tables.rank_table.ended(sessions.table["horizon_ns"], settled_ns)
        ended = tables.understood(self._sound(ended))
        settled.ended += [ended] if len(ended) else []
        self._account(settled, tables.understood(tables.rank_table.settle(np.ascontiguousarray(settled_ns))))
        for owner, rank in tables.rank_table.gone(settled_ns):
            self._guard(settled, owner.session, partial(owner.forget, rank))

    def _sound(self, rows: IterationRows) -> IterationRows:
        """Without those of sessions at which this has failed."""
        return rows.take(~np.isin(rows.session, list(self._broken))) if self._broken else rows

    def _account(self, settled: Settled, rows: IterationRows) -> None:
        """The account of iterations that are over. Those of a session at which this fails are left out."""
        tables = self.tables
        rows = self._sound(rows)
        if not len(rows):
            return
        try:
            found = tables.accounted(rows)
        except Exception:
            failed = failing(
                lambda indices: tables.accounted(rows.take(np.isin(rows.session, indices))),
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


def _of_sessions(session: _Indices, rows: Columns | Table) -> Columns:
    """Iterations with the session of each."""
    return Columns({"session": session} | {name: rows[name] for name in ITERATION.names or ()})


_NEARLY, _SOON = 10, 3  # shares of the time that rows wait: one that does not matter, one by which some wait less
_LINK = "batch", "interface", "direction"
_SAMPLING = np.dtype([("batch", "<i4"), *((name, SAMPLE[name]) for name in SAMPLE.names or ())])
