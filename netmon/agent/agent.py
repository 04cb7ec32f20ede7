# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: drain, name, mark, batch. Nothing here walks records one by one."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from netmon.agent import downtime
from netmon.agent.counting import LOOK_NS, Counting, PollSchedule, PrivilegedStart
from netmon.agent.evidence import Evidence
from netmon.agent.exchange import Clock
from netmon.agent.flow_owners import AggregateFlows, FlowOwners, RecentFlows, describe_flows, distinct_ids
from netmon.agent.host_scan import HostScan
from netmon.agent.sending import Sending
from netmon.agent.settings import Settings
from netmon.agent.spool_folder import open_folder
from netmon.agent.stream import channel
from netmon.agent.training_marks import MarkSocket, TrainingMarks
from netmon.errors import KernelError
from netmon.kernel.meter.meter import STALE_NS
from netmon.records import Batch, LedgerSample
from netmon.service import LoopWatchdog

if TYPE_CHECKING:
    from netmon.telemetry.endpoint import Endpoint

log = logging.getLogger(__name__)

_LAST_FLOW = (1 << 32) - (1 << 20)  # of a session; at the most that are described a second, after months


class Agent:
    """Made in the order in which privilege is needed: what takes it is begun, and the rest is done without."""

    def __init__(self, settings: Settings) -> None:
        """Attaches everything; blocks for about a second. Raises NetmonError."""
        self._settings, start = settings, PrivilegedStart(settings)
        way = channel(settings)
        socket = MarkSocket(settings.socket)
        privileged, user = start.give_up()
        folder = open_folder(settings.spool, settings.durability)
        counting = self._counting = Counting(privileged, settings, start.nics, start.geometry)
        self._clock = Clock()
        numbers = counting.meter.numbers
        self._owners = FlowOwners(counting.socket_events, numbers.aggregates)
        numbers.training = self._owners.training
        self._aggregates, self._recent_flows = AggregateFlows(numbers.aggregates.by_id), RecentFlows()
        self._marks = TrainingMarks(socket, counting, self._owners, self._clock)
        self._evidence = Evidence(settings, counting, self._owners.flows, privileged.pid)
        self._marks.collectives = self._evidence.collectives
        self._scan = HostScan(privileged, self._owners, self._marks, counting.links, self._evidence)
        self._schedule = PollSchedule(time.monotonic_ns())
        self._sending = Sending(settings, way, folder, counting, self._marks, self._clock)
        self._privileged, self._watchdog = privileged, LoopWatchdog()
        self.interfaces = counting.interfaces
        self._endpoint = self._serve_metrics() if settings.metrics else None
        if user:
            log.info("runs as user %s", user.name)

    def _serve_metrics(self) -> "Endpoint":
        """By this part, which talks to the network already."""
        # Whoever has no use for it need not have its library, nor the memory that it takes.
        from netmon.agent.metrics import AgentMetrics, AgentNews, serve_agent_metrics

        sending = self._sending
        sending.reported = AgentNews({interface.index: interface.name for interface in self.interfaces})
        parts = (
            sending.reported,
            sending.spool,
            sending.stream,
            sending.recorder,
            self._privileged.pid,
            self._watchdog,
        )
        metrics = AgentMetrics(self._settings.host, *parts)
        return serve_agent_metrics(self._settings.metrics, self._settings.security, metrics)

    def run(self, stopped: Callable[[], bool], report_alive: Callable[[], None] = lambda: None) -> None:
        """Works until it is stopped, and reports to the supervisor at every batch.

        Raises KernelError when the kernel side is gone, or a thread has ended.
        """
        self._clock.start()
        self._watchdog.start()
        self._send_batch(time.monotonic_ns())  # the account begins, before the one of an agent that was killed ends
        self._sending.start()
        while not stopped():
            now = time.monotonic_ns()
            ranks = self._marks.expected(now)
            rest = self._schedule.rest(ranks, now)
            woken = self._counting.sleep.rest(rest, ranks)  # short: `stopped` is checked after it
            now = time.monotonic_ns()
            if self._watchdog.turn():
                self._schedule.awake()
                self._sending.exchanges.hurry()
            signals = self._sending.stream.backpressure
            self._schedule.requested_ns, self._schedule.within_ns = signals.batch_ns, signals.within_ns
            self._look(now, woken)
            if self._schedule.batch_is_due:
                if self._counting.meter.numbers.next_id > _LAST_FLOW:
                    raise KernelError("this session has used all flow ids: start the agent again, for a new session")
                self._send_batch(now)
                self._sending.exchanges.idle = self._schedule.idle
                self._schedule.sent()
                self._sending.check()
                report_alive()

    def _look(self, now_ns: int, woken: bool) -> None:
        """Sees what waits, and takes in what it is time for. woken: because something has come."""
        if self._marks.expected(now_ns):
            self._marks.receive(now_ns)
        self._evidence.watch(now_ns)
        meter, owners = self._counting.meter, self._owners
        scan_waits, kernel = self._scan.waits(now_ns), meter.poll()
        level = max(kernel.level, self._counting.steps.level, owners.level, self._evidence.transfers.level)
        news = self._marks.waits or owners.has_changes or self._evidence.posted.waits
        waits = bool(kernel.anything or news or len(meter.rows))
        hurried = kernel.opened or owners.pending or (woken and not (waits or scan_waits))
        self._schedule.update(now_ns, level, waits, hurried)
        drains = kernel.opened or self._schedule.full or self._schedule.batch_is_due
        if drains:
            self._drain(now_ns)
        if drains or scan_waits:
            self._scan.receive(now_ns)
            self._scan.request(now_ns)

    def adjust(self, options: Mapping[str, int]) -> list[str]:
        """Puts options, by their names, into force, as far as that can be while it works; returns the names of these.

        To be called by the thread that runs it.
        """
        recorder = self._sending.recorder
        recorded = recorder.adjust(options) if recorder and options.get("record_time_ns") != 0 else []
        return [*self._evidence.adjust(options), *recorded]

    def close(self) -> None:
        """Detaches everything, sends the rest, and waits a moment for the collector to have it."""
        self._watchdog.finish()
        if self._endpoint:
            self._endpoint.close()
        last = self._counting.ledger.finish()
        with contextlib.suppress(KernelError):  # it has ended
            self._scan.finish(time.monotonic_ns())
        self._privileged.close()
        time.sleep((STALE_NS + self._settings.bucket_ns) / 1e9 + LOOK_NS / 1e9)
        now = time.monotonic_ns()
        self._drain(now)
        self._marks.finish(now)
        self._clock.finish()
        self._send_batch(now, last)
        self._sending.finish()
        self._marks.close()
        self._counting.sleep.close()
        self._evidence.close()

    def _drain(self, now_ns: int) -> None:
        drained = self._counting.meter.drain(now_ns)
        self._schedule.drained()
        self._owners.read_socket_events(now_ns)
        self._marks.receive(now_ns)  # before the flows: a job that is set up anew makes connections as its new ranks
        self._owners.add(describe_flows(drained, now_ns), now_ns)

    def _send_batch(self, now_ns: int, last: Sequence[LedgerSample] | None = None) -> None:
        """last: the ledger's last samples, of the last batch, which may be none."""
        meter, ledger, owners, sending = self._counting.meter, self._counting.ledger, self._owners, self._sending
        rows = meter.rows.table()
        seen = distinct_ids(rows["flow_id"])
        owners.add(self._aggregates.described(seen, now_ns, last=last is not None), now_ns)
        horizon_ns = max(0, now_ns - STALE_NS - self._settings.bucket_ns)
        streamed = sending.streamed(rows, horizon_ns, last=last is not None)
        training, marks = self._marks.take()
        read_ns = time.monotonic_ns()  # calls that were read may have been made since now_ns
        batch = Batch(
            sequence=sending.next_sequence,
            clock=self._clock.sample(),
            horizon_ns=streamed.horizon_ns,
            buckets=streamed.buckets,
            bucket_ns=streamed.bucket_ns,
            flows=owners.changed(),
            training=training,
            ledger=ledger.due(now_ns) if last is None else last,
            cost=self._evidence.cost.measure(sending.spool.size, self._marks.refused + sending.leftovers.lost),
            exchanges=sending.exchanges.take(),
            **self._evidence.due(
                *(streamed.buckets, marks, self._marks.active(), read_ns),
                idle=self._schedule.idle,
                last=last is not None,
            ),
        )
        accounts = ledger.account(batch.ledger) if last is None else downtime.ENDED
        over = self._recent_flows.over(seen, now_ns, owners.flows)
        sending.send(batch, accounts, owners.flows)  # from here on other threads want this one's processor
        sending.sent(over, bool(marks or batch.flows), now_ns)
        meter.rows.shrink(0)
        if over:
            owners.forget(over)
            meter.forget(over)
