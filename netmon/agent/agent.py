# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: drain, name, mark, batch. Nothing here walks records one by one."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from netmon.agent import downtime
from netmon.agent.batch_parts import batch_parts
from netmon.agent.clock import Clock
from netmon.agent.cost import CostMeter
from netmon.agent.exchange import ClockExchanges
from netmon.agent.flow_owners import FlowOwners
from netmon.agent.flows import AggregateFlows, RecentFlows, RecentMarks, describe_flows, distinct_ids
from netmon.agent.host_part import HostPart
from netmon.agent.host_scan import HostScan
from netmon.agent.ledger import Ledger
from netmon.agent.leftovers import Leftovers
from netmon.agent.link_totals import link_totals
from netmon.agent.loop_watchdog import LoopWatchdog
from netmon.agent.markers import MarkSocket
from netmon.agent.nic import Links, NicSamples
from netmon.agent.poll_schedule import BATCH_NS, LOOK_NS, PollSchedule, Sleep
from netmon.agent.pressure import Backlog, Resolution
from netmon.agent.recorder import Pulls, start_recorder
from netmon.agent.settings import Settings
from netmon.agent.spool import Spool
from netmon.agent.spool_disk import open_folder
from netmon.agent.spool_folder import SpoolFolder
from netmon.agent.steps import StepMarks
from netmon.agent.stream import Stream, channel, check_alive
from netmon.agent.timeline import TimelineMarks
from netmon.agent.transport import TransportLooks
from netmon.errors import KernelError
from netmon.kernel import loader, nic, privilege
from netmon.kernel.meter.memory import WAKES, Geometry, RingBuffer, Wakes, choose_geometry, map_memory, mapped_array
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.kernel.nic import Nic
from netmon.kernel.owners.socket_events import EVENT_MAP, EVENT_RING_BYTES, SocketEventTable
from netmon.kernel.privileged import Privileged
from netmon.kernel.processes import PARTIAL_VIEW, pid_namespace
from netmon.kernel.requests import Start
from netmon.kernel.stops import MAP as STOPS_MAP
from netmon.kernel.stops import RankStops
from netmon.kernel.subprocess_calls import call_in_subprocess
from netmon.own_module import keep_importable
from netmon.records import STEP, Batch, Hello, Interface, LedgerSample, Mark, Table
from netmon.service_user import ServiceUser, give_folder, require_readable, service_user
from netmon.version import __version__
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_body, encode_hello, serialise_buckets, serialise_flow
from netmon.wire.identity import new_session
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY

if TYPE_CHECKING:
    from netmon.agent.metrics import AgentNews
    from netmon.telemetry.endpoint import Endpoint

log = logging.getLogger(__name__)

_MARKED_NS = 1_000_000_000  # after a mark, others are expected for so long
_HELLO_NS = 2_000_000_000
_LAST_FLOW = (1 << 32) - (1 << 20)  # of a session; at the most that are described a second, after months
_FAREWELL_S = 5.0
_LEFTOVERS_END_S = 1.0


class Agent:
    """Made in the order in which privilege is needed: what takes it is begun, and the rest is done without."""

    def __init__(self, settings: Settings) -> None:
        """Attaches everything; blocks for about a second. Raises NetmonError."""
        privilege.require_capabilities()
        privilege.allow_descriptors()
        self._settings = settings
        nics = call_in_subprocess(nic.describe_all, settings.interface)
        geometry = choose_geometry(settings.bucket_ns, len(nics), settings.flows)
        where, connect = channel(settings)
        self._marks_socket = MarkSocket(settings.socket)
        user = self._user = service_user()
        if user:
            self._use_root(user, geometry)
        keep_importable()
        self._privileged = Privileged()
        privilege.become_unprivileged(user)
        if user and settings.security.tls:
            require_readable(settings.security.tls, (AUTHORITY, CERTIFICATE, KEY), user)
        self._session, self._proof = new_session()
        folder = open_folder(lambda: SpoolFolder(settings.spool, settings.durability), settings.spool)
        self._spool = Spool(folder, self._session, settings.spool_bytes, self._lose)
        cards = tuple((card.name, card.index) for card in nics)
        began_ns = time.monotonic_ns()
        started = self._privileged.start(Start(cards, settings.hook, settings.bucket_ns, settings.flows))
        memory = map_memory(started.descriptors, geometry)
        self._meter = Meter(memory, geometry)
        self._links = Links([card.index for card in nics], settings.interface)
        self._ledger = Ledger(self._meter, self._links, nics, started.hooks, began_ns)
        self._steps_ring = RingBuffer(started.descriptors["steps"], geometry.step_ring_bytes, STEP)
        self._steps_lost = mapped_array(started.descriptors["steps_lost"], np.dtype("<u8"), 2)
        events = started.descriptors.get(EVENT_MAP)
        socket_watch = SocketEventTable(events, EVENT_RING_BYTES) if events is not None else None
        wakes = Wakes(started.descriptors[WAKES], memory, geometry)
        self._sleep = Sleep(wakes, self._privileged.descriptor, started.descriptors["steps"])
        stops = RankStops(started.descriptors.get(STOPS_MAP))
        for descriptor in started.descriptors.values():
            os.close(descriptor)
        self.interfaces = tuple(
            _interface(number, card, hooks, settings.capacity_bps)
            for number, (card, hooks) in enumerate(zip(nics, started.hooks, strict=True), 1)
        )
        if pid_namespace():
            log.warning("this is not the machine's PID namespace: %s", PARTIAL_VIEW)
        self._nic = NicSamples(self._links, len(nics), settings.nic_counters_ns)
        numbers = self._meter.numbers
        self._owners = FlowOwners(socket_watch, numbers.aggregates)
        numbers.training = self._owners.training
        wanted = settings.evidence == "all"
        self._transport = TransportLooks(self._owners.flows, wanted=wanted)
        self._host_part = HostPart(self._nic, stops, wanted)
        self._aggregate_flows = AggregateFlows(numbers.aggregates.by_id)
        self._steps, self._timelines = StepMarks(), TimelineMarks()
        self._recent_flows, self._recent_marks = RecentFlows(), RecentMarks()
        self._cost = CostMeter((os.getpid(), self._privileged.pid))
        self._marks: list[Mark] = []
        self._sequence = 0
        self._schedule = PollSchedule(time.monotonic_ns())
        self._marked_ns = 0
        self._warned_of_steps = False
        self._clock, self._exchanges = Clock(), ClockExchanges()
        known = (self._owners, self._steps, self._timelines, self._links, self._clock, self._transport)
        self._host_scan = HostScan(self._privileged, *known)
        self._recorder = start_recorder(settings)
        self._resolution = Resolution(settings.bucket_ns, settings.streamed_ns, self._recorder)
        self._news, self._hello_due_ns = False, 0
        self._write_hello()
        self._stream = Stream(where, connect, self._spool, Pulls(self._recorder), self._exchanges)
        end_accounts = partial(downtime.end_accounts, folder, self._session, self._ledger.began, self._clock.sample)
        self._leftovers = Leftovers(connect, self._spool, settings.spool_bytes, end_accounts)
        self._watchdog = LoopWatchdog()
        self._reported: AgentNews | None = None
        self._endpoint = self._serve_metrics()

    def _use_root(self, user: ServiceUser, geometry: Geometry) -> None:
        """What takes root, for the last time: only root gives folders away, and writes to the cache of programs."""
        for folder in {self._settings.spool, self._settings.record_folder or self._settings.spool}:
            give_folder(folder, user)
        loader.prepare(geometry)

    def _serve_metrics(self) -> "Endpoint | None":
        """By this part, which talks to the network already."""
        if not self._settings.metrics:
            return None
        # Whoever has no use for it need not have its library, nor the memory that it takes.
        from netmon.agent.metrics import AgentMetrics, AgentNews, serve_agent_metrics

        self._reported = AgentNews({interface.index: interface.name for interface in self.interfaces})
        parts = (self._reported, self._spool, self._stream, self._recorder, self._privileged.pid, self._watchdog)
        metrics = AgentMetrics(self._settings.host, *parts)
        return serve_agent_metrics(self._settings.metrics, self._settings.security, metrics)

    def run(self, stopped: Callable[[], bool], tell_alive: Callable[[], None] = lambda: None) -> None:
        """Works until it is stopped, and reports to the supervisor at every batch.

        Raises KernelError when the kernel side is gone, or a thread has ended.
        """
        if self._user:
            log.info("runs as user %s", self._user.name)
        self._clock.start()
        self._watchdog.start()
        threads = (self._stream, self._leftovers)
        for thread in threads:
            thread.start()
        while not stopped():
            ranks = time.monotonic_ns() - self._marked_ns < _MARKED_NS
            woken = self._sleep.rest(self._schedule.rest(ranks), ranks)  # short: `stopped` is asked after it
            now = time.monotonic_ns()
            if self._watchdog.turn():
                self._schedule.awake()
                self._exchanges.hurry()
            self._schedule.requested_ns = self._stream.backpressure.batch_ns
            self._look(now, woken)
            if self._schedule.batch_is_due:
                if self._meter.numbers.next_id > _LAST_FLOW:
                    raise KernelError("this session has used all flow ids: start the agent again, for a new session")
                self._send_batch(now)
                self._exchanges.idle = self._schedule.idle
                self._schedule.sent()
                check_alive(threads)
                self._stream.check()
                self._leftovers.check()
                tell_alive()

    def _look(self, now_ns: int, woken: bool) -> None:
        """Sees what waits, and takes in what it is time for. woken: because something has come."""
        if now_ns - self._marked_ns < _MARKED_NS:
            self._receive_ranks(now_ns)
        self._host_part.watch(now_ns)
        scan_waits, kernel = self._host_scan.waits(now_ns), self._meter.poll()
        has_news = kernel.anything or len(self._steps_ring) or self._marks or self._owners.has_changes
        level = max(kernel.level, self._steps_ring.level, self._owners.level)
        waits = bool(has_news or len(self._meter.rows))
        hurried = kernel.opened or self._owners.pending or (woken and not (waits or scan_waits))
        self._schedule.update(now_ns, level, waits, hurried)
        drains = kernel.opened or self._schedule.full or self._schedule.batch_is_due
        if drains:
            self._drain(now_ns)
        elif scan_waits:
            self._receive_ranks(now_ns)  # before the ranks that have gone
        if drains or scan_waits:
            self._marks += self._host_scan.receive(now_ns)
            self._host_scan.request(now_ns)

    def adjust(self, options: Mapping[str, int]) -> list[str]:
        """Puts options, by their names, into force, as far as that can be while it works; returns the names of these.

        To be called by the thread that runs it.
        """
        done = []
        if "nic_counters_ns" in options:
            self._nic.interval_ns = options["nic_counters_ns"]
            done.append("nic_counters_ns")
        if self._recorder and options.get("record_time_ns") != 0:
            done += self._recorder.adjust(options)
        return done

    def close(self) -> None:
        """Detaches everything, sends the rest, and waits a moment for the collector to have it."""
        self._watchdog.finish()
        if self._endpoint:
            self._endpoint.close()
        last = self._ledger.finish()
        self._privileged.close()
        time.sleep((STALE_NS + self._settings.bucket_ns) / 1e9 + LOOK_NS / 1e9)
        now = time.monotonic_ns()
        self._drain(now)
        self._marks += [*self._steps.finish(), *self._timelines.finish(now, self._clock.sample().offset_ns)]
        self._clock.finish()
        self._send_batch(now, last)
        self._leftovers.finish(_LEFTOVERS_END_S)
        self._stream.finish(_FAREWELL_S)
        if self._spool.waits:
            log.warning("%d bytes were not acknowledged; they are in %s", self._spool.size, self._settings.spool)
        self._spool.close()
        if self._recorder:
            self._recorder.close()
        self._marks_socket.close()
        self._sleep.close()
        self._transport.close()
        self._host_part.close()

    def _drain(self, now_ns: int) -> None:
        drained = self._meter.drain(now_ns)
        self._schedule.drained()
        self._owners.read_socket_events(now_ns)
        self._receive_ranks(
            now_ns
        )  # before the flows: a job that is set up anew makes its connections as its new ranks
        self._owners.add(describe_flows(drained, now_ns), now_ns)

    def _receive_ranks(self, now_ns: int) -> None:
        hooked = self._marks_socket.take()
        steps = self._steps_ring.take()
        marks = [*hooked, *self._steps.rename(hooked), *(self._steps.steps(steps) if len(steps) else ())]
        if hooked or len(steps):
            self._marked_ns = now_ns
        self._owners.marks(marks)
        self._marks += marks

    def _send_batch(self, now_ns: int, last: Sequence[LedgerSample] | None = None) -> None:
        """last: the ledger's last samples, of the last batch, which may be none."""
        rows = self._meter.rows.table()
        seen = distinct_ids(rows["flow_id"])
        self._owners.add(self._aggregate_flows.described(seen, now_ns, last=last is not None), now_ns)
        horizon = max(0, now_ns - STALE_NS - self._settings.bucket_ns)
        streamed = self._resolution.stream(rows, horizon, self._backlog(), last=last is not None)
        self._sequence += 1
        self._transport.count(streamed.buckets)
        self._host_part.add_marks(self._marks)
        nic = self._nic.due(now_ns, self._schedule.idle)
        host, host_jobs = self._host_part.due(now_ns, self._schedule.idle)
        batch = Batch(
            sequence=self._sequence,
            clock=self._clock.sample(),
            horizon_ns=streamed.horizon_ns,
            buckets=streamed.buckets,
            bucket_ns=streamed.bucket_ns,
            flows=self._owners.changed(),
            marks=self._marks,
            ledger=self._ledger.due(now_ns) if last is None else last,
            cost=self._cost.measure(self._spool.size, self._unusable()),
            exchanges=self._exchanges.take(),
            nic=nic,
            transport=self._transport.due(now_ns),
            host=host,
            host_jobs=host_jobs,
        )
        accounts = self._ledger.account(batch.ledger) if last is None else downtime.ENDED
        self._spool.ledger = accounts or self._spool.ledger
        for part in batch_parts(batch):
            message = encode_body(part)
            body = netmon_pb2.AgentMessage(batch=message).SerializeToString()
            loss = link_totals(part.buckets, self._owners.flows).tobytes()
            described = [(flow.flow_id, serialise_flow(flow)) for flow in message.flows]
            rows_message = serialise_buckets(part.buckets, part.bucket_ns)
            self._spool.append(part.sequence, body, rows_message, loss, described)
            self._sequence = part.sequence
        if self._reported:
            self._reported.sent(
                self._sequence, len(streamed.buckets), streamed.bucket_ns, batch.clock, batch.cost, batch.ledger
            )
        self._recent_marks.add(self._marks)
        over = self._recent_flows.over(seen, now_ns, self._owners.flows)
        self._owners.forget(over)
        self._spool.end_flows(over)
        self._meter.rows.shrink(0)
        self._meter.forget(over)
        self._news |= bool(self._marks or batch.flows)
        self._marks = []
        if self._news and now_ns >= self._hello_due_ns:
            self._write_hello()

    def _backlog(self) -> Backlog:
        late = max(0, self._sequence - self._spool.handed_out) * BATCH_NS / 1e9
        return Backlog(late, self._spool.size / self._settings.spool_bytes, self._stream.backpressure.bucket_ns)

    def _unusable(self) -> int:
        """Marks and messages that led to nothing, since the start."""
        lost, over_budget = map(int, self._steps_lost)
        if lost and not self._warned_of_steps:
            self._warned_of_steps = True
            log.warning("calls of training libraries came faster than they were read: iterations may be missing")
        return (
            self._marks_socket.refused
            + self._timelines.refused
            + self._steps.refused
            + self._leftovers.lost
            + lost
            + over_budget
        )

    def _write_hello(self) -> None:
        hello = Hello(
            host=self._settings.host,
            session=self._session,
            bucket_ns=self._settings.bucket_ns,
            stream_ns=self._settings.streamed_ns,
            clock=self._clock.sample(),
            interfaces=self.interfaces,
            agent_version=__version__,
            marks=self._recent_marks.all(),
        )
        message = encode_hello(hello)
        message.proof = self._proof
        self._spool.hello = netmon_pb2.AgentMessage(hello=message).SerializeToString()
        self._news = False
        self._hello_due_ns = time.monotonic_ns() + _HELLO_NS

    def _lose(self, lost: Table) -> None:
        self._ledger.lose(lost)


def _interface(number: int, card: Nic, hooks: tuple[str, str], capacity_bps: int) -> Interface:
    capacity = capacity_bps or card.capacity_bps
    return Interface(number, card.name, capacity, *hooks, card.driver, card.mtu, card.super_packet_bytes)
