# SPDX-License-Identifier: Apache-2.0
"""One agent's session: its window, what is on its way to the disk, and what may be acknowledged."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from collector.agent_checks import FailedBatchError, FailedSessionError, RefusedBatchError
from collector.backpressure import BackpressureRequest
from collector.dataset.manifest import FLOW_OVER_NS, RECENT_NS, RankState, Resume, SessionState
from collector.dataset.tables import Origin, Origins, SessionMeta, bucket_table, full_table
from collector.host.tables import Tables
from collector.host.unstored import FlowRows, Latest, SessionFlush
from collector.host.window import HostWindow
from collector.messages import BY_PEER, NO_NUMBERS
from netmon.dl.numbering import Trust
from netmon.errors import WireError
from netmon.records import Columns, Flow, Hello, NicSample
from netmon.wire import netmon_pb2

MOST_RECENT = 8
"""Messages of a session, kept for a bug report."""

GROWN_S = 10.0
"""Between writes of the rows of flows of which no more is new than that they go on."""

Sent = netmon_pb2.AgentMessage | bytes
"""A message of an agent, or its bytes, where another process has read it."""


def read_sent(message: Sent) -> netmon_pb2.AgentMessage:
    return netmon_pb2.AgentMessage.FromString(message) if isinstance(message, bytes) else message


# --- Flows of one host's processes that are no ranks, until it is known whether a rank is at the other end.
#
# Such a process alongside ranks of the same job works for it: above all the launcher, with its rendezvous.

_UNDECIDED_NS = 2_000_000_000  # the two ends' descriptions differ about as much in time as their hosts' batches


class PeerOwnedFlows:
    """Those of one session."""

    def __init__(self) -> None:
        self._undecided: dict[int, tuple[int, Flow]] = {}  # by flow: since when
        self._found: dict[int, str] = {}  # by flow: the job of the rank at the other end

    def __bool__(self) -> bool:
        return bool(self._undecided)

    def add(self, flow: Flow, now_ns: int) -> bool:
        """Take in a flow as it is described, if its owner is known and no rank; False where it is not of that kind."""
        if flow.owner.pid and not flow.owner.job:
            self._undecided[flow.flow_id] = now_ns, flow
            return True
        if flow.owner.job:
            self._drop(flow.flow_id)
        return False

    def set_job(self, flow_id: int, job: str) -> None:
        """At the other end of a flow is a rank of this job; empty: none."""
        if job and flow_id in self._undecided:
            self._found[flow_id] = job
        else:
            self._found.pop(flow_id, None)

    def take(self, jobs: Container[str]) -> list[Flow]:
        """The flows whose other end turned out to be a rank's of one of these jobs, as the job's."""
        found = []
        for flow_id, job in list(self._found.items()):
            if job in jobs:
                _, flow = self._undecided[flow_id]
                self._drop(flow_id)
                found.append(replace(flow, owner=replace(flow.owner, job=job, source=BY_PEER)))
        return found

    def give_up(self, now_ns: int) -> list[int]:
        """Flows whose other end has not turned out to be a rank's in time."""
        late = []
        for flow_id, (since_ns, _) in self._undecided.items():
            if since_ns >= now_ns - _UNDECIDED_NS:
                break
            late.append(flow_id)
        for flow_id in late:
            self._drop(flow_id)
        return late

    def _drop(self, flow_id: int) -> None:
        self._undecided.pop(flow_id, None)
        self._found.pop(flow_id, None)


_RDMA = "rdma"


class Session:
    """State of one (host, session), whatever brings its batches; used from one thread. It has no connection: what has
    come goes in, and whoever has the connection sends what comes out."""

    def __init__(self, hello: Hello, resume: Resume, tables: Tables) -> None:
        """Begin or resume. tables: of all sessions."""
        self.hello = hello
        self.window = HostWindow(hello, resume, tables)
        self.index = self.window.session
        """Its place in the stage."""
        tables.evidence.renamed[self.window.session] = self.window.ranks.renamed
        self.received = 0  # sequence of the last batch processed; 0: none since the collector's start
        self.queued = 0  # the same of the last one that waits for a tick, or does no more
        self.stored_before = resume.last_sequence
        self.complete_before = resume.complete_sequence
        self.missing = 0  # batches that the agent has given up
        self.tables = tables
        self._peer_flows = PeerOwnedFlows()
        self._nic: list[NicSample] = []  # on their way to the dataset
        self._port_bytes: dict[str, int] = {}  # RDMA port → bytes of its counters
        self._ledger_until = dict(resume.ledger_until_utc)
        self._clock: tuple[str, int] = ("", 0)  # what the table `sessions` says of the clock: source, bound
        self._resume = resume
        self._ranks = {(rank.job, rank.rank): rank for rank in resume.ranks}

        self.connections = 0  # how often it has connected; a newer connection ends an older one
        self.connected = False
        self.last_batch_s = 0.0
        self.behind = False  # more of it waits on the bus
        self.settled = True  # nothing has arrived since it was last settled altogether
        self.left = False
        self.broken = False  # the collector has failed at it: nothing more comes or goes, and it is to be discarded
        self.failure = ""  # at what, where that was no batch: for its agent
        self.refused: RefusedBatchError | None = None  # a batch that was not accepted: for its agent
        self.acknowledge = 0  # the last batch that is stored, as all before it
        self.requests: deque[netmon_pb2.FullRequest] = deque()  # to be sent
        self.recent: deque[Sent] = deque(maxlen=MOST_RECENT)
        self.news = asyncio.Event()  # acknowledge has risen, or there are requests, or it is refused or broken
        self._known = self._last = 0  # batches up to here do not come on this connection; the last one that has come
        self._grown_s = time.monotonic() - GROWN_S * random.random()  # hosts take turns
        self._timed: tuple[int, float] | None = None  # a batch that is not stored, and when it came

    # --- its connections and the order of its batches
    #
    # An agent sends all that it has from the first batch that is not acknowledged, in order, and what has left its
    # spool never comes back. So a number is left out because it was acknowledged, also while it is being sent again, or
    # because the agent gave it up; that is in its own account of losses, and worth a warning here.

    def connect(self, acknowledged: int, news: asyncio.Event) -> None:
        """A connection begins, and ends the one before it.

        acknowledged: as the agent knows; news: set when there is something for it.
        """
        self.news.set()
        self.news = news
        self.connections += 1
        self.connected, self.left, self.refused = True, False, None
        self.requests.clear()
        self._known, self._last = max(acknowledged, self.stored_before), 0

    @property
    def takes(self) -> bool:
        """Whether a batch may come."""
        return not (self.broken or self.refused)

    def accept(self, sequence: int) -> bool:
        """Whether a batch is to be taken in; False where it was before, and only what it says of flows counts.

        Raises RefusedBatchError.
        """
        if sequence <= self._last:
            raise RefusedBatchError(sequence, self.hello.host, f"batch {self._last} came before it")
        self._notice_gap(sequence)
        self._last = sequence
        fresh = sequence > self.queued
        if fresh:
            self.queued = sequence
        return fresh

    def accept_run(self, sequences: Sequence[int]) -> bool:
        """Whether these follow each other and are all fresh: then they are accepted; else nothing is."""
        first, last = sequences[0], sequences[-1]
        follow = last - first + 1 == len(sequences) and list(range(first, last + 1)) == sequences
        if first <= max(self._last, self.queued) or not follow:
            return False
        self._notice_gap(first)
        self._last = self.queued = last
        return True

    def describe_again(self, sequence: int, flows: Callable[[], Iterable[Flow]]) -> None:
        """What a batch that was before says of flows. Raises RefusedBatchError; flows may raise WireError."""
        try:
            for flow in flows():
                self.window.describe(flow)
        except WireError as error:
            raise RefusedBatchError(sequence, self.hello.host, error) from None

    def _notice_gap(self, sequence: int) -> None:
        first = max(self._known, self._last, self.queued) + 1
        if sequence > first:
            self.missing += sequence - first
            line = f"batches {first} to {sequence - 1} of {self.hello.host} are missing: refused, or they never arrived"
            self.window.ranks.rejected.warn(line)

    def queue_batches(self, first: int, messages: Iterable[Sent], now_s: float) -> None:
        """Batches that were accepted wait for the tick. first: the first one's sequence."""
        self.settled, self.last_batch_s = False, now_s
        self._timed = self._timed or (first, now_s)
        self.recent.extend(messages)

    def refuse(self, error: RefusedBatchError) -> None:
        """A batch breaks the contract, or the collector fails at it (FailedBatchError): its agent gets the reason."""
        self.broken |= isinstance(error, FailedBatchError)
        self.refused = error
        self.news.set()

    def fail(self, reason: str) -> None:
        self.broken, self.failure = True, reason
        self.news.set()

    def check(self) -> None:
        """Raise what the agent has to know: RefusedBatchError, or FailedSessionError."""
        if self.refused:
            raise self.refused
        if self.failure:
            raise FailedSessionError(self.failure)

    def request(self, request: netmon_pb2.FullRequest) -> None:
        self.requests.append(request)
        self.news.set()

    def acknowledgements(self, order: BackpressureRequest) -> Iterator[netmon_pb2.Acknowledgement]:
        """What the agent is sent: what is stored, and what is requested of it."""
        news = netmon_pb2.Acknowledgement(
            sequence=self.acknowledge, bucket_ns=order.bucket_ns, batch_ns=order.batch_ns, within_ns=order.within_ns
        )
        while self.requests:
            news.request.CopyFrom(self.requests.popleft())
            yield news
            news.ClearField("request")
        yield news

    def stored(self, sequence: int) -> None:
        """Every batch up to there is."""
        if sequence > self.acknowledge:
            self.acknowledge = sequence
            self.news.set()

    def waited_since(self) -> float | None:
        """When the batch that was timed came, once: after it was stored."""
        if self._timed is None or self._timed[0] > self.acknowledge:
            return None
        came, self._timed = self._timed[1], None
        return came

    # --- its rows

    def introduce_again(self, hello: Hello) -> None:
        """Take in the flows of a later introduction that no batch has described: it was given up."""
        for flow in map(self.window.named, self.window.flows.unknown(hello.flows)):
            self.window.flows.describe(flow)

    def describe(self, flow: Flow, horizon_ns: int) -> None:
        """Take in a flow of a batch. Raises WireError where its link is unknown, or there are far too many."""
        self.window.flows.now_ns = max(self.window.flows.now_ns, horizon_ns)
        self.window.describe(flow)
        flow = self.window.named(flow)
        index = self.window.flows.index_of(flow.flow_id)
        if index is not None and self._peer_flows.add(flow, horizon_ns):
            self.tables.flows.ends.add(index)

    @property
    def serves(self) -> bool:
        """Whether flows wait to learn whose their other end is."""
        return bool(self._peer_flows)

    def find_peer_flows(self, horizon_ns: int) -> None:
        """Flows that are a job's by their other end; the other end may be described before or after."""
        flows = self.window.flows
        for flow in self._peer_flows.take(flows.jobs_here):
            flows.describe(flow)
        for flow_id in self._peer_flows.give_up(horizon_ns):
            index = flows.index_of(flow_id)
            if index is not None and not flows[index].owner.job:
                self.tables.flows.ends.give_up(index, self.index, flow_id)

    def set_peer(self, flow_id: int, job: str, rank: int) -> None:
        """The other end of a flow is this rank's; an empty job: no rank's that is known."""
        index = self.window.flows.index_of(flow_id)
        if index is not None:
            self.tables.flows.ends.set_rank(index, rank)
        self._peer_flows.set_job(flow_id, job)

    def add_counters(self, sequence: int, samples: Sequence[NicSample]) -> None:
        """Take in a batch's NIC counters."""
        if sequence > self._resume.last_sequence:
            self._nic += samples
        for sample in samples:
            if sample.source == _RDMA:
                self._look_at_port(sample)

    def _look_at_port(self, sample: NicSample) -> None:
        """What its counters say of traffic that no hook sees."""
        total_bytes = sum(v for name, v in zip(sample.names, sample.values, strict=True) if name.endswith("_bytes"))
        if total_bytes > self._port_bytes.setdefault(sample.device, total_bytes):
            self.window.ranks.rejected.warn(
                f"{self.hello.host}: {sample.device} carries RDMA traffic (RoCE), which bypasses the hooks: "
                "present in the table nic, not attributed to flows"
            )
        self._port_bytes[sample.device] = total_bytes

    def taken(self, last: int) -> None:
        """Batches up to `last` have been taken in."""
        self.received, self.queued = last, max(self.queued, last)

    @property
    def trains(self) -> bool:
        """Whether its host has ranks."""
        return bool(self.tables.sessions.table["trains"][self.index])

    @property
    def idle(self) -> bool:
        """Whether everything that has settled is stored."""
        return not (self.window.flows.unstored(grown=True) or self._waits)

    @property
    def _waits(self) -> bool:
        """Whether rows other than those of flows are to be stored."""
        return bool(self._nic or self._latest) or self.tables.has_unstored(self.index)

    @property
    def _latest(self) -> Mapping[tuple[str, int], Latest]:
        return self.tables.iterations.latest().get(self.index, {})

    def forget(self) -> None:
        """The session is over and stored: let go of what other sessions see of it."""
        self.window.ranks.close()
        self.window.flows.forget_all()

    @property
    def flows_due(self) -> bool:
        """Whether rows of flows are to be written of which no more is new than that they go on."""
        return self.settled or time.monotonic() >= self._grown_s + GROWN_S

    def flush(self, changed: list[int], grown: list[int]) -> SessionFlush | None:
        """Hand over what has settled; None where there is nothing to write or to acknowledge.

        changed, grown: indices of its flows whose row in the dataset is out of date; also where only the time has gone
        on.
        """
        acknowledge = self.window.acknowledgeable()
        if grown and self.flows_due:
            changed, self._grown_s = grown, time.monotonic()
        if not (changed or acknowledge or self._waits):
            return None
        if latest := self._latest:
            states = self.window.ranks.states()
            for whose, last in latest.items():
                count = states.get(whose, NO_NUMBERS)
                self._stored(last, count.trust, count.shift)
        meta = self._clock
        nic, self._nic = self._nic, []

        def done() -> None:
            if acknowledge:
                self.window.acknowledged(acknowledge)
            self.window.flows.forget(self.window.settled_ns - FLOW_OVER_NS)

        def undone() -> None:
            self._nic, self._clock = nic + self._nic, meta
            self.window.flows.mark_stored(changed, stored=False)

        rows, meta_now, state = self._flow_rows(changed), self._new_meta(), self._state()
        flush = SessionFlush(self.index, self._origin, nic, rows, meta_now, state, acknowledge, done, undone)
        self.window.flows.mark_stored(changed, stored=True)
        return flush

    @property
    def _origin(self) -> Origin:
        clock = self.window.alignment
        return Origin(self.hello, self.window.links, clock.map, clock.sample.offset_ns, clock.error_ns)

    def bucket_rows(self, rows: Columns) -> pa.Table:
        of = np.zeros(len(rows), np.int32)
        return bucket_table(Origins([self._origin]), of, list(self.tables.flows.jobs), [rows])

    def full(self, rows: Columns, reason: str, gap: str) -> pa.Table:
        """Full resolution (SETTLED) as rows of the table `full`."""
        return full_table(self.bucket_rows(rows), reason, gap)

    def _flow_rows(self, indices: list[int]) -> FlowRows | None:
        if not indices:
            return None
        table = self.window.flows
        flows = [table[index] for index in indices]
        return FlowRows(flows, table.state[indices], self.tables.flows.ends.ranks(indices, flows))

    def _new_meta(self) -> SessionMeta | None:
        """For the table `sessions`; None: what it has is good enough."""
        window = self.window
        source, error = window.alignment.source, window.alignment.error_ns
        if source == self._clock[0] and self._clock[1] / 2 <= error <= self._clock[1] * 2:
            return None
        self._clock = source, error
        return SessionMeta(error, source, window.window_ns, window.settings.share_threshold)

    def _stored(self, last: Latest, trust: Trust, shift: int) -> None:
        about, end = last.about, self.window.alignment.utc(last.end_ns)
        own = about.job, about.rank
        self._ranks[own] = RankState(*own, about.size, about.parameters, end, last.number - shift, trust, shift)

    def _state(self) -> SessionState:
        """What a restart needs to know once all that has settled is stored."""
        window, resume, ledger = self.window, self._resume, self.tables.ledger
        first, links = window.first_link, len(window.links)
        for link, until_ns in enumerate(ledger.reported_until_ns[first : first + links].tolist()):
            if until_ns >= 0:
                self._ledger_until[link] = window.alignment.utc(until_ns)
        recent = window.alignment.utc(window.horizon_ns) - RECENT_NS
        if any(rank.end_utc <= recent for rank in self._ranks.values()):
            self._ranks = {key: rank for key, rank in self._ranks.items() if rank.end_utc > recent}
        return SessionState(
            host=self.hello.host,
            last_sequence=max(self.received, resume.last_sequence),
            complete_sequence=window.complete(),
            settled_ns=max(window.settled_ns, resume.settled_ns),
            clock=window.alignment.map,
            ledger_until_utc=dict(self._ledger_until),
            ledger_totals=dict(enumerate(ledger.totals[first : first + links].copy())),
            ledger_open=ledger.open_samples(first, links),
            ranks=tuple(self._ranks.values()),
        )
