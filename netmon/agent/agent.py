# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: drain, name, mark, batch. Nothing here walks records one by one."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netmon import __version__
from netmon.agent.clock import Clock
from netmon.agent.cost import CostMeter
from netmon.agent.exchange import ClockExchanges
from netmon.agent.flow_owners import FlowOwners
from netmon.agent.flows import describe_flows
from netmon.agent.ledger import Ledger
from netmon.agent.links import Links
from netmon.agent.markers import MarkSocket
from netmon.agent.nic import NicSamples
from netmon.agent.recent import RecentFlows, RecentMarks, SentFlows
from netmon.agent.spool import Spool
from netmon.agent.steps import StepMarks
from netmon.agent.stream import Stream
from netmon.agent.timeline import TimelineMarks
from netmon.kernel import nic, privilege
from netmon.kernel.meter.geometry import choose_geometry
from netmon.kernel.meter.meter import STALE_NS, Meter, mapped_array
from netmon.kernel.meter.ring_buffer import RingBuffer
from netmon.kernel.nic import Nic
from netmon.kernel.owners.births import TOLD_MAP, TOLD_RING_BYTES, BirthTable
from netmon.kernel.privileged import Privileged
from netmon.kernel.processes import PARTIAL_VIEW, pid_namespace
from netmon.kernel.training.timelines import Opened
from netmon.records import STEP, Batch, Hello, Interface, LedgerSample, Mark
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello

log = logging.getLogger(__name__)

TICK_NS = 50_000_000
_BUSY_TICK_NS = 5_000_000
_BUSY_FILL = 1 / 8  # of the ring at a drain, from which the next one comes sooner
_BATCH_NS = 200_000_000
_LOOK_NS = 300_000_000
_MOST_WARNED = 1000  # lines that others' processes can make us write
_FAREWELL_S = 5.0
_EXCHANGES_END_S = 1.0


@dataclass(frozen=True)
class Settings:
    """What an agent is told. Durations in ns, rates in bit/s."""

    interfaces: tuple[str, ...]
    collector: str  # HOST:PORT or unix:PATH
    host: str
    bucket_ns: int = 10_000
    hook: str = "auto"
    capacity_bps: int = 0  # 0: as the interface says
    flows: int = 0  # open at a time on one CPU; 0: as many as suit the machine
    socket: Path = Path("/run/netmon/marks.sock")
    spool: Path = Path("/var/lib/netmon-agent")
    spool_bytes: int = 256 << 20
    nic_interval_ns: int = 1_000_000_000  # between samples of the NICs' own counters; 0: none


class Agent:
    """Made in the order in which privilege is needed: attached and mapped first, then without capabilities."""

    def __init__(self, settings: Settings) -> None:
        """Attaches everything; blocks for about a second. Raises NetmonError."""
        privilege.require_capabilities()
        privilege.allow_descriptors()
        self._settings = settings
        nics = [nic.describe(name) for name in settings.interfaces]
        self._marks_socket = MarkSocket(settings.socket)
        self._session = uuid.uuid4().hex[:12]
        self._spool = Spool(settings.spool, self._session, settings.spool_bytes, self._hollow)
        geometry = choose_geometry(settings.bucket_ns, [card.index for card in nics], settings.flows)
        self._privileged = Privileged()
        started = self._privileged.start(list(settings.interfaces), settings.hook, geometry)
        self._meter = Meter(started.descriptors, geometry)
        self._steps_ring = RingBuffer(started.descriptors["steps"], geometry.step_ring_bytes, STEP)
        self._steps_lost = mapped_array(started.descriptors["steps_lost"], np.dtype("<u8"), 2)
        told = started.descriptors.get(TOLD_MAP)
        births = BirthTable(told, TOLD_RING_BYTES) if told is not None else None
        for descriptor in started.descriptors.values():
            os.close(descriptor)
        privilege.drop_capabilities()
        self.interfaces = tuple(
            _interface(number, card, hooks, settings.capacity_bps)
            for number, (card, hooks) in enumerate(zip(nics, started.hooks, strict=True), 1)
        )
        if pid_namespace():
            log.warning("this is not the machine's PID namespace: %s", PARTIAL_VIEW)
        self._links = Links([card.index for card in nics], settings.interfaces)
        self._ledger = Ledger(self._meter, self._links, nics, started.hooks)
        self._nic = NicSamples(self._links, len(nics), settings.nic_interval_ns)
        self._owners = FlowOwners(births)
        self._steps, self._timelines = StepMarks(), TimelineMarks()
        self._recent_flows, self._recent_marks = RecentFlows(), RecentMarks()
        self._sent_flows = SentFlows()
        self._cost = CostMeter((os.getpid(), self._privileged.pid))
        self._marks: list[Mark] = []
        self._sequence = 0
        self._look_due_ns = 0
        self._warned: set[str] = set()
        self._asking = ""
        self._look: dict[str, Any] = {}  # under way
        self._ranks_told: list[dict[str, Any]] = []  # in it
        self._clock, self._exchanges = Clock(), ClockExchanges(settings.collector)
        self._write_hello()
        self._stream = Stream(settings.collector, self._spool, settings.spool, settings.spool_bytes)

    def run(self, stop: threading.Event) -> None:
        """Works until told to stop, then hands over what is left. Raises KernelError when the kernel side is gone."""
        for thread in (self._stream, self._clock, self._exchanges):
            thread.start()
        batch_due_ns = time.monotonic_ns() + _BATCH_NS
        while not stop.wait((_BUSY_TICK_NS if self._meter.fill > _BUSY_FILL else TICK_NS) / 1e9):
            now = time.monotonic_ns()
            self._tick(now)
            if now >= batch_due_ns:
                self._send_batch(now)
                batch_due_ns = now + _BATCH_NS

    def close(self) -> None:
        """Detaches everything, sends the rest, and waits a moment for the collector to have it."""
        last = self._ledger.finish()
        self._privileged.close()
        time.sleep((STALE_NS + self._settings.bucket_ns) / 1e9 + TICK_NS / 1e9)
        now = time.monotonic_ns()
        self._drain(now)
        self._marks += [*self._steps.finish(), *self._timelines.finish()]
        self._exchanges.finish(_EXCHANGES_END_S)
        self._clock.finish()
        self._send_batch(now, last)
        self._stream.finish(_FAREWELL_S)
        if self._spool.size:
            log.warning("%d bytes were not acknowledged; they are in %s", self._spool.size, self._spool.directory)
        self._spool.close()
        self._marks_socket.close()

    def _tick(self, now_ns: int) -> None:
        self._drain(now_ns)
        self._hear_privileged(now_ns)
        self._ask_privileged(now_ns)

    def _drain(self, now_ns: int) -> None:
        drained = self._meter.drain(now_ns)
        self._owners.hear(now_ns)
        hooked = self._marks_socket.take()
        steps = self._steps_ring.take()
        marks = [*hooked, *self._steps.rename(hooked), *(self._steps.steps(steps) if len(steps) else ())]
        self._owners.marks(marks)  # before the flows: a job that is set up anew makes its connections as its new ranks
        self._owners.add(describe_flows(drained, self._links, now_ns), now_ns)
        self._marks += marks

    def _ask_privileged(self, now_ns: int) -> None:
        if self._privileged.busy:
            return
        if now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + _LOOK_NS
            self._asking = "look"
            self._privileged.request("look")
        elif due := self._owners.due(now_ns):
            self._asking = "owners"
            self._privileged.request("owners", endpoints=due)

    def _hear_privileged(self, now_ns: int) -> None:
        reply = self._privileged.poll() if self._privileged.busy else None
        if reply is None:
            return
        if self._asking == "owners":
            self._owners.answer(reply["owners"], now_ns)
            return
        self._ranks_told += reply["ranks"]
        if self._asking == "look":
            self._look = reply
        if reply["more"]:
            self._asking = "more"
            self._privileged.request("more")
        else:
            self._see(self._look, now_ns)

    def _see(self, look: dict[str, Any], now_ns: int) -> None:
        """A look is complete."""
        self._marks += self._steps.ranks(self._ranks_told, now_ns)
        self._ranks_told = []
        self._follow_timelines(look["timelines"], now_ns)
        self._links.follow(look["interfaces"])
        for path in look["probed"]:
            log.info("probing %s", path)
        for warning in look["warnings"]:
            if warning not in self._warned and len(self._warned) < _MOST_WARNED:
                self._warned.add(warning)
                log.warning("%s", warning)

    def _follow_timelines(self, timelines: list[Opened], now_ns: int) -> None:
        identities = self._steps.identities()
        self._marks += self._timelines.keep(identities)
        for opened in timelines:
            self._marks += self._timelines.follow(opened, identities.get(opened.pid), now_ns)
        self._marks += self._timelines.read(now_ns, self._clock.sample().offset_ns)

    def _send_batch(self, now_ns: int, ledger: Sequence[LedgerSample] = ()) -> None:
        buckets = self._meter.rows.table()
        self._sequence += 1
        batch = Batch(
            sequence=self._sequence,
            clock=self._clock.sample(),
            horizon_ns=max(0, now_ns - STALE_NS - self._settings.bucket_ns),
            buckets=buckets,
            flows=self._owners.changed(),
            marks=self._marks,
            ledger=ledger or self._ledger.due(now_ns),
            cost=self._cost.measure(self._spool.size, self._unusable()),
            exchanges=self._exchanges.take(),
            nic=self._nic.due(now_ns),
        )
        message = encode_batch(batch)
        self._spool.append(self._sequence, netmon_pb2.AgentMessage(batch=message).SerializeToString())
        self._sent_flows.add(batch.flows, message.flows)
        self._recent_marks.add(self._marks)
        over = self._recent_flows.over(buckets["flow_id"], now_ns, self._owners.flows)
        self._owners.forget(over)
        self._sent_flows.forget(over)
        self._meter.rows.shrink(0)
        self._marks = []
        if self._sequence % 10 == 0:
            self._write_hello()

    def _unusable(self) -> int:
        """Marks and messages that led to nothing, since the start."""
        lost, over_budget = map(int, self._steps_lost)
        if lost and "steps" not in self._warned:
            self._warned.add("steps")
            log.warning("calls of training libraries came faster than they were read: iterations may be missing")
        return self._marks_socket.refused + self._timelines.refused + self._steps.refused + lost + over_budget

    def _write_hello(self) -> None:
        hello = Hello(
            host=self._settings.host,
            session=self._session,
            bucket_ns=self._settings.bucket_ns,
            clock=self._clock.sample(),
            interfaces=self.interfaces,
            agent_version=__version__,
            marks=self._recent_marks.all(),
        )
        message = encode_hello(hello)
        self._sent_flows.introduce(message)
        self._spool.hello = netmon_pb2.AgentMessage(hello=message).SerializeToString()

    def _hollow(self, message: bytes) -> bytes:
        """A batch that cannot be kept or was refused: its buckets are given up and counted, then all but its flows."""
        envelope = netmon_pb2.AgentMessage.FromString(message)
        if not envelope.batch.HasField("buckets"):  # they were not what the collector refuses
            for field in ("marks", "ledger", "exchanges", "nic"):
                envelope.batch.ClearField(field)
        self._ledger.lose(envelope.batch.buckets, self._owners.flows)
        envelope.batch.ClearField("buckets")
        return envelope.SerializeToString()


def _interface(number: int, card: Nic, hooks: tuple[str, str], capacity_bps: int) -> Interface:
    capacity = capacity_bps or card.capacity_bps
    return Interface(number, card.name, capacity, *hooks, card.driver, card.mtu, card.super_packet_bytes)
