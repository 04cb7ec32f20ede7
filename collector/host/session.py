# SPDX-License-Identifier: Apache-2.0
"""One agent's session: its window, what is on its way to the disk, and what may be acknowledged."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa

from collector.dataset.resume import FLOW_OVER_NS, RECENT_NS, STATE_KEY, RankState, Resume
from collector.dataset.store import Part
from collector.dataset.tables import bucket_table, flow_table, iteration_table, ledger_table, nic_table
from collector.host.ledger import LedgerRow
from collector.host.nic import NicRows
from collector.host.tables import Tables
from collector.host.window import HostWindow, News, Output
from collector.jobs.remote_ends import Peers, Served
from netmon.dl.account import Tally
from netmon.dl.classify import NS_PER_S
from netmon.dl.iterations import Iteration
from netmon.records import SCHEMA_VERSION, Flow, Hello, Interface, Mark, Table

_DAY_NS = 86_400 * NS_PER_S


@dataclass(frozen=True)
class Flush:
    """What is to be written, and what that settles."""

    build: Callable[[], list[Part]]  # pure; may run in a thread
    acknowledge: int | None
    done: Callable[[], None]
    undone: Callable[[], None]


class Session:
    """State of one (host, session); used from one thread but for Flush.build."""

    def __init__(self, hello: Hello, resume: Resume, tables: Tables, peers: Peers) -> None:
        """Begin or resume. tables, peers: what the sessions of all hosts share."""
        self.hello = hello
        self._numbers = tables.numbers
        self.window = HostWindow(hello, resume, tables)
        self.received = 0  # sequence of the last batch processed; 0: none since the collector's start
        self.queued = 0  # the same of the last one that waits for a tick, or does no more
        self.stored_before = resume.last_sequence
        self.missing = 0  # batches that the agent has given up
        self.pending_bytes = 0
        self._tables = tables
        self._peers, self._served = peers, Served(peers)
        self._buckets: list[Table] = []
        self._iterations: list[tuple[Iteration, Tally]] = []
        self._ledger: list[LedgerRow] = []
        self._nic = NicRows(hello.host)
        self._ledger_until = dict(resume.ledger_until_utc)
        self._first = resume.first_free  # first batch that the next parts cover; 0: not known yet
        self._resume = resume
        self._flow_dates = dict(resume.flow_dates)
        self._ranks = {(rank.job, rank.rank): rank for rank in resume.ranks}
        for flow in (*(stored.flow for stored in resume.flows), *hello.flows):
            peers.add(flow)

    @property
    def place(self) -> int:
        """Its place in the stage."""
        return self.window.place

    def introduce_again(self, hello: Hello) -> None:
        """Take in the flows of a later introduction that no batch has described: it was given up."""
        for flow in map(self.window.named, self.window.flows.unknown(hello.flows)):
            self._peers.add(flow)
            self.window.flows.describe(flow)

    def describe(self, flow: Flow, horizon_ns: int) -> None:
        """Take in a flow of a batch. Raises WireError where its link is unknown."""
        self.window.describe(flow)
        flow = self.window.named(flow)
        self._peers.add(flow)
        self._served.add(flow, horizon_ns)

    @property
    def serves(self) -> bool:
        """Whether flows wait for somebody to tell whose their other end is."""
        return bool(self._served)

    def find_served(self, horizon_ns: int) -> None:
        """Flows that are a job's by their other end; the other end may be described before or after."""
        for flow in self._served.take(self.window.flows.jobs_here, horizon_ns):
            self.window.flows.describe(flow)

    def hear(self, news: News) -> list[Mark]:
        """Take in what a batch tells beside its rows; returns the marks that count."""
        marks = self.window.mark(news)
        if self.window.rename():
            for flow in self.window.flows.flows:
                self._peers.add(flow)
        for warning in self._nic.add(news.nic, stored=news.sequence <= self._resume.nic_sequence):
            self.window.ranks.warn(warning)
        return marks

    def settle_ranks(self) -> tuple[list[Iteration], list[tuple[Iteration, Tally]]]:
        """As HostWindow.settle_ranks."""
        return self.window.settle_ranks()

    def taken(self, first: int, last: int) -> None:
        """Batches up to `last` have been taken in."""
        self.received, self.queued = last, max(self.queued, last)
        self._first = self._first or first

    def keep(self, output: Output) -> Output:
        """What has become final waits for its way to the disk."""
        if len(output.buckets):
            self._buckets.append(output.buckets)
            self.pending_bytes += output.buckets.nbytes
        self._iterations += output.iterations
        self._ledger += output.ledger
        return output

    @property
    def idle(self) -> bool:
        """Whether everything that has settled is stored."""
        return not (self._buckets or self._iterations or self._ledger or self._nic.rows or self.window.flows.changed)

    def forget(self) -> None:
        """The session is over and stored: let go of what other sessions see of it."""
        for flow in self.window.flows.forget_all():
            self._peers.forget(flow)

    def flush(self) -> Flush | None:
        """Hand over what has settled; None where there is nothing to write or to acknowledge."""
        acknowledge = self.window.acknowledgeable()
        changed = set(self.window.flows.changed)
        parts_of_flows = [part for part, own in self.window.flows.parts.items() if not changed.isdisjoint(own)]
        if self.idle and not acknowledge:
            return None
        for iteration, _ in self._iterations:
            self._stored(iteration)
        buckets, iterations, ledger = self._buckets, self._iterations, self._ledger
        first, size = self._first, self.pending_bytes
        flows = [self._flow_part(part) for part in parts_of_flows]
        metadata, clock = self._metadata(), self.window.alignment.map
        stem = f"part-{self.hello.session}-{first}-{self.received}"
        self._buckets, self._iterations, self._ledger = [], [], []
        nic = self._nic.take()
        self._first, self.pending_bytes = max(first, self.received) + 1, 0
        self.window.flows.mark_changed(changed, changed=False)
        jobs, name = list(self.window.flows.jobs), self.hello.session

        def build() -> list[Part]:
            parts = [part(metadata) for part in flows]
            if buckets:
                rows = np.concatenate(buckets)
                table = bucket_table(name, self.window.links, jobs, rows)
                parts += self._parts("buckets", stem, table, "bucket_start_ns", metadata)
            if iterations:
                table = iteration_table(name, clock, iterations)
                parts += self._parts("iterations", stem, table, "start_ns", metadata)
            if ledger:
                table = ledger_table(name, self.window.links, clock, ledger)
                parts += self._parts("ledger", stem, table, "start_ns", metadata)
            if nic:
                table = nic_table(name, clock, nic)
                parts += self._parts("nic", stem, table, "time_ns", metadata)
            return parts

        def done() -> None:
            if acknowledge:
                self.window.acknowledged(acknowledge)
            for flow in self.window.flows.forget(self.window.settled_ns - FLOW_OVER_NS):
                self._peers.forget(flow)

        def undone() -> None:
            self._buckets, self._iterations = buckets + self._buckets, iterations + self._iterations
            self._ledger, self._nic.rows = ledger + self._ledger, nic + self._nic.rows
            self._first, self.pending_bytes = first, size + self.pending_bytes
            self.window.flows.mark_changed(changed, changed=True)

        return Flush(build, acknowledge, done, undone)

    def full_parts(self, rows: Table, since_ns: int, until_ns: int, reason: str, gap: str) -> list[Part]:
        """Full resolution (SETTLED) of [since_ns, until_ns) UTC, as files of the table `full`."""
        table = bucket_table(self.hello.session, self.window.links, list(self.window.flows.jobs), rows)
        metadata = self._metadata() | {b"netmon.reason": reason.encode(), b"netmon.gap": gap.encode()}
        metadata[b"netmon.bucket_ns"] = str(self.hello.bucket_ns).encode()
        del metadata[STATE_KEY]
        return self._parts(
            "full", f"part-{self.hello.session}-{since_ns}-{until_ns}", table, "bucket_start_ns", metadata
        )

    def _flow_part(self, part: int) -> Callable[[dict[bytes, bytes]], Part]:
        """Copies of one part's flows as they are now; the rest can run in a thread."""
        table, clock = self.window.flows, self.window.alignment.map
        flows, state = [table.flows[index] for index in table.parts[part]], table.state[table.parts[part]]
        date = self._flow_dates.setdefault(part, _date(clock.utc(flows[0].first_ns)))
        peers = [self._peers.rank(flow) for flow in flows]
        session, host = self.hello.session, self.hello.host

        def build(metadata: dict[bytes, bytes]) -> Part:
            rows = flow_table(session, self.window.links, clock, flows, state, peers)
            return Part("flows", date, host, f"part-{session}-{part:06}", rows.replace_schema_metadata(metadata))

        return build

    def _parts(self, name: str, stem: str, table: pa.Table, time: str, metadata: dict[bytes, bytes]) -> list[Part]:
        days = table[time].to_numpy() // _DAY_NS
        table = table.replace_schema_metadata(metadata)
        return [
            Part(name, _date(int(day) * _DAY_NS), self.hello.host, stem, table.filter(pa.array(days == day)))
            for day in np.unique(days)
        ]

    def _stored(self, iteration: Iteration) -> None:
        end = self.window.alignment.utc(iteration.end_ns)
        own = iteration.job, iteration.rank
        trust, shift = self._numbers.state(*own)
        counted = iteration.number - shift
        state = RankState(*own, iteration.size, iteration.parameters, end, counted, trust, shift)
        self._ranks[iteration.job, iteration.rank] = state

    def _metadata(self) -> dict[bytes, bytes]:
        hello, window = self.hello, self.window
        for row in self._ledger:
            self._ledger_until[row.link] = window.alignment.utc(row.end_ns)
        recent = window.alignment.utc(window.horizon_ns) - RECENT_NS
        self._ranks = {key: rank for key, rank in self._ranks.items() if rank.end_utc > recent}
        state = {
            "last_sequence": max(self.received, self._resume.last_sequence),
            "complete_sequence": window.complete(),
            "settled_ns": max(window.settled_ns, self._resume.settled_ns),
            "clock": window.alignment.map.document(),
            "ledger_until_utc": self._ledger_until,
            "ledger_totals": {link: total.tolist() for link, total in enumerate(window.ledger.totals)},
            "ranks": [vars(rank) for rank in self._ranks.values()],
        }
        hooks = {
            f"{window.links.interface(link).name}:{window.links.direction(link).name.lower()}": window.links.hook(link)
            for link in range(len(window.links))
        }
        metadata = {
            "schema_version": SCHEMA_VERSION,
            "host": hello.host,
            "session": hello.session,
            "agent_version": hello.agent_version,
            "bucket_ns": hello.streamed_ns,  # where a row does not say else
            "full_bucket_ns": hello.bucket_ns,
            "capacity_bps": {interface.name: interface.capacity_bps for interface in hello.interfaces},
            "byte_basis": {interface.name: interface.byte_basis for interface in hello.interfaces},
            # A super-packet has one time for all of its bytes: below this, a row's bucket is finer than its truth.
            "super_packet_ns": {interface.name: super_packet_ns(interface) for interface in hello.interfaces},
            "clock_error_ns": window.alignment.error_ns,
            "clock_source": window.alignment.source,
            "hook": hooks,
            "share_window_ns": window.window_ns,
            "share_threshold": window.settings.share_threshold,
        }
        encoded = {f"netmon.{key}".encode(): _text(value) for key, value in metadata.items()}
        return encoded | {STATE_KEY: json.dumps(state).encode()}


def super_packet_ns(interface: Interface) -> int | None:
    """How long the largest packet that the hook sees as one takes on the link; None where that is not known."""
    if not (interface.capacity_bps and interface.super_packet_bytes):
        return None
    return round(interface.super_packet_bytes * 8 * NS_PER_S / interface.capacity_bps)


def _text(value: object) -> bytes:
    return (json.dumps(value) if isinstance(value, dict) else str(value)).encode()


def _date(utc_ns: int) -> str:
    return datetime.fromtimestamp(utc_ns // NS_PER_S, timezone.utc).strftime("%Y-%m-%d")
