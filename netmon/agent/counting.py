# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts here, in memory that the privileged part has attached and shared with this one."""

import logging
import math
import os
import select
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from netmon.agent.downtime import OWN_COUNTERS, Beginning, LinkAccount, encode_accounts
from netmon.agent.host_part import Links
from netmon.agent.settings import Settings
from netmon.agent.spool import COUNTS
from netmon.kernel import loader, nic, privilege
from netmon.kernel.meter.memory import WAKES, Geometry, RingBuffer, Wakes, choose_geometry, map_memory, mapped_array
from netmon.kernel.meter.meter import Meter
from netmon.kernel.nic import Nic
from netmon.kernel.owners.socket_events import EVENT_MAP, EVENT_RING_BYTES, SocketEventTable
from netmon.kernel.privileged import Privileged
from netmon.kernel.processes import PARTIAL_VIEW, pid_namespace
from netmon.kernel.requests import Start
from netmon.kernel.stops import MAP as STOPS_MAP
from netmon.kernel.stops import RankStops
from netmon.own_module import allow_descriptors, call_by_name, keep_importable
from netmon.records import KERNEL_LEDGER, STEP, Direction, Interface, LedgerSample, Table
from netmon.service import ServiceUser, give_folder, require_readable, service_user
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY

# --- When the agent does what. A look at what waits is cheap; a drain takes it in; a batch sends it.
#
# Records wait in the rings for the batch with which they leave, and the agent sleeps until then. The kernel ends the
# sleep where somebody is waiting: a flow that is new (its process may be short), a ring that fills, the first call of
# a training library, the first record after a silence; so does an answer of the privileged part. While such things
# come one after the other, nobody is woken for each of them: the agent looks by itself.

LOOK_NS = 50_000_000
"""Between two looks while each finds something; from the end of a silence to its batch, with what is open then."""
BATCH_NS = 1_000_000_000
"""Between two batches, unless somebody waits for them; the horizon moves on where there is nothing to send, too."""

_LEAST_NS = 1_000_000
_BUSY_LOOK_NS = 5_000_000
_RANKS_LOOK_NS = 100_000_000  # while ranks report their steps: their reports wait in small rings
_IDLE_LOOK_NS = 500_000_000  # for what nobody is woken for, such as a process that begins: its steps are to be seen
_SHORTEST_BATCH_NS, _LONGEST_BATCH_NS = 100_000_000, 2_000_000_000  # whatever the collector asks for
_FULL = 1 / 16  # of a ring, from which nobody waits for the batch
_FILLED = 1 / 4  # of a ring, from one look to the next, at most: a late look finds room left


@dataclass(frozen=True)
class Rest:
    """Until the next look. wakes: whether it may be ended; level: of a ring of buckets, above which it is."""

    ns: int
    wakes: bool = False
    level: float = 0.0


class PollSchedule:
    """One per agent. Knows no clock: times are given, in ns (mono)."""

    def __init__(self, now_ns: int) -> None:
        """A batch has just been sent."""
        self._looked_ns = self._sent_ns = now_ns
        self._waits_ns: int | None = None  # since when
        self._level, self._filled_ns = 0.0, math.inf
        self._hurried = False
        self.requested_ns = self.within_ns = 0
        """Between two batches at least, and at most while something waits, if the collector has requested it."""

    def update(self, now_ns: int, level: float, waits: bool, hurried: bool = False) -> None:
        """What a look has shown. level: of the fullest ring, 0 to 1; waits: whether anything is to be taken or sent;
        hurried: whether more of what ends a rest is likely to come at once.
        """
        grown = level - self._level
        self._filled_ns = (now_ns - self._looked_ns) * _FILLED / grown if grown > 0 else math.inf
        self._level, self._looked_ns, self._hurried = level, now_ns, hurried
        if not waits:
            self._waits_ns = None
        elif self._waits_ns is None:
            self._waits_ns = now_ns

    @property
    def full(self) -> bool:
        """Whether a ring wants to be drained."""
        return self._level > _FULL

    @property
    def batch_is_due(self) -> bool:
        """By the last look."""
        return self._looked_ns >= self._due_ns

    @property
    def _due_ns(self) -> int:
        batch_ns = min(self.requested_ns, _LONGEST_BATCH_NS)
        if self._waits_ns is None:
            return self._sent_ns + max(BATCH_NS, batch_ns)
        within_ns = max(self.within_ns, _SHORTEST_BATCH_NS) if self.within_ns else BATCH_NS
        return max(self._sent_ns + max(min(BATCH_NS, within_ns), batch_ns), self._waits_ns + LOOK_NS)

    @property
    def idle(self) -> bool:
        """Whether there was nothing to take or to send."""
        return self._waits_ns is None

    def awake(self) -> None:
        """The host was suspended: a batch is due, whose clock tells where its times have jumped."""
        self._sent_ns = 0
        if self._waits_ns is not None:
            self._waits_ns = 0

    def drained(self) -> None:
        """The rings are empty."""
        self._level = 0.0

    def sent(self) -> None:
        """A batch, after the last look."""
        self._sent_ns = self._looked_ns

    def rest(self, ranks: bool = False, now_ns: int = 0) -> Rest:
        """Until the next look: the rings must not fill up meanwhile, and whoever is idle is left alone.

        ranks: whether ranks have reported their steps lately; now_ns: 0: that of the last look.
        """
        if self._filled_ns < LOOK_NS:
            passed_ns = max(0, now_ns - self._looked_ns)
            return Rest(max(_BUSY_LOOK_NS, int(self._filled_ns) - passed_ns))
        if self._hurried:
            return Rest(LOOK_NS)
        longest_ns = _RANKS_LOOK_NS if ranks else _IDLE_LOOK_NS
        ns = min(longest_ns, max(_LEAST_NS, self._due_ns - self._looked_ns))
        return Rest(ns, wakes=True, level=_FULL if self._waits_ns is not None else 0.0)


class Sleep:
    """Between two looks nobody here uses a CPU, and the kernel ends it where it has something that cannot wait."""

    def __init__(self, wakes: Wakes, answers: int, steps: int) -> None:
        """answers: descriptor of what the privileged part says; steps: of the ring of ranks' calls (both not kept)."""
        self._wakes = wakes
        self._calm = _poll((wakes.descriptor, answers))
        self._all = _poll((wakes.descriptor, answers, steps))

    def rest(self, rest: Rest, ranks: bool) -> bool:
        """Blocks; whether it was ended early. ranks: they report steps all the time, so that this wakes nobody."""
        if not rest.wakes:
            time.sleep(rest.ns / 1e9)
            return False
        if not self._wakes.arm(rest.level):
            return True
        poll = self._calm if ranks else self._all
        return bool(poll.poll(rest.ns / 1e9))

    def close(self) -> None:
        self._calm.close()
        self._all.close()
        self._wakes.close()


def _poll(descriptors: Iterable[int]) -> select.epoll:
    poll = select.epoll()
    for descriptor in descriptors:
        poll.register(descriptor, select.EPOLLIN)
    return poll


# --- What the kernel counts here.

# --- ledger

_INTERVAL_NS = 1_000_000_000
_KERNEL = tuple(name for name in KERNEL_LEDGER.names or () if name != "pad")

Link = tuple[int, Direction]
"""(number of the interface, direction)"""


class Ledger:
    """One per agent. The account begins when it is made. `lose` may be called from another thread."""

    def __init__(
        self, meter: Meter, links: Links, nics: Sequence[Nic], hooks: Sequence[tuple[str, str]], began_ns: int
    ) -> None:
        """nics, hooks (rx, tx): in the order of the interfaces' numbers. began_ns: mono, before they were attached."""
        self._meter = meter
        self._links = links
        self._header_bytes: dict[Link, int] = {
            (number, d): nic.header_bytes_not_counted(card, d, rx)
            for number, (card, (rx, _)) in enumerate(zip(nics, hooks, strict=True), 1)
            for d in Direction
        }
        self._lost = {link: dict.fromkeys(COUNTS, 0) for link in self._header_bytes}
        self._counted = dict.fromkeys(self._header_bytes, (0, 0))  # the NIC's counter when it was last read
        self._before = dict.fromkeys(self._header_bytes, (0, 0))  # what it had counted when it began anew
        self._lock = threading.Lock()
        self._due_ns = time.monotonic_ns() + _INTERVAL_NS
        self._first = [_before_hook(sample, began_ns) for sample in self.read()]
        counters = {
            (link.name, link.index, link.sample.direction): link.counter for link in self._accounts(self._first)
        }
        self.began = Beginning(began_ns, counters)

    def due(self, now_ns: int) -> list[LedgerSample]:
        """A sample per link when an interval is over, otherwise none; the first ones at the first call."""
        samples, self._first = self._first, []
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _INTERVAL_NS
            samples += self.read()
        return samples

    def finish(self) -> list[LedgerSample]:
        """A sample per link, now: the last ones. Before them the first ones, if nobody has read those yet."""
        samples, self._first = self._first, []
        return samples + self.read()

    def account(self, samples: Sequence[LedgerSample]) -> bytes:
        """For the next agent, should this one be killed; samples: those that are reported. Empty: there are none."""
        return encode_accounts(self._accounts(samples)) if samples else b""

    def _accounts(self, samples: Sequence[LedgerSample]) -> list[LinkAccount]:
        found = []
        for sample in samples:
            number, before = sample.interface, self._before[sample.interface, sample.direction]
            counter = sample.nic_bytes - before[0], sample.nic_packets - before[1]
            found.append(LinkAccount(self._links.name(number), self._links.index(number), counter, sample))
        return found

    def read(self) -> list[LedgerSample]:
        """A sample per link, now. An interface that is not there has none."""
        names = {self._links.name(number): number for number, _ in self._header_bytes}
        counters = nic.counters(names)
        now = time.monotonic_ns()
        kernel = self._meter.ledger()
        return [
            self._sample((names[name], d), now, counted[d], kernel)
            for name, counted in counters.items()
            for d in Direction
        ]

    def _sample(
        self, link: Link, now_ns: int, counted: tuple[int, int], kernel: Mapping[int, Mapping[str, int]]
    ) -> LedgerSample:
        number, direction = link
        nic_bytes, nic_packets = self._continued(link, counted)
        ours = {name.replace("lost_", "lost_kernel_"): 0 for name in _KERNEL}
        for name, count in kernel.get(number << 1 | direction, {}).items():
            ours[name.replace("lost_", "lost_kernel_")] = count
        with self._lock:
            lost = {f"lost_agent_{name}": count for name, count in self._lost[link].items()}
        return LedgerSample(
            interface=number,
            direction=direction,
            time_ns=now_ns,
            nic_bytes=nic_bytes,
            nic_packets=nic_packets,
            nic_header_bytes=self._header_bytes[link],
            **ours,
            **lost,
        )

    def _continued(self, link: Link, counted: tuple[int, int]) -> tuple[int, int]:
        """The NIC's counters as if an interface that was made again had gone on counting."""
        if counted[0] < self._counted[link][0]:
            last, before = self._counted[link], self._before[link]
            self._before[link] = (before[0] + last[0], before[1] + last[1])
        self._counted[link] = counted
        return self._before[link][0] + counted[0], self._before[link][1] + counted[1]

    def lose(self, totals: Table) -> None:
        """Counts the contents of batches (dtype LINK_TOTALS) as lost in the agent."""
        with self._lock:
            for interface, direction, *counts in totals.tolist():
                lost = self._lost[interface, Direction(direction)]
                for name, count in zip(COUNTS, counts, strict=True):
                    lost[name] += count


def _before_hook(sample: LedgerSample, began_ns: int) -> LedgerSample:
    """A first sample as it would have been when nothing was counted: every row is in an interval."""
    frames = sample.frames
    return LedgerSample(
        interface=sample.interface,
        direction=sample.direction,
        time_ns=began_ns,
        nic_bytes=sample.nic_bytes - (sample.frame_bytes - sample.nic_header_bytes * frames),
        nic_packets=sample.nic_packets - frames,
        nic_header_bytes=sample.nic_header_bytes,
        **dict.fromkeys(OWN_COUNTERS, 0),
    )


log = logging.getLogger(__name__)


class PrivilegedStart:
    """What takes privilege is begun in a process of its own; from then on this one is without it."""

    def __init__(self, settings: Settings) -> None:
        """Raises NetmonError where a privilege, an interface or a file is missing."""
        privilege.require_capabilities()
        allow_descriptors()
        self.nics: Sequence[Nic]
        self.nics, remarks = call_by_name("netmon.kernel.interfaces:choose", settings.interface)
        for remark in remarks:
            log.warning("%s", remark)
        self.geometry = choose_geometry(settings.bucket_ns, len(self.nics), settings.flows)
        self._settings = settings

    def give_up(self) -> tuple[Privileged, ServiceUser | None]:
        """The part that keeps capabilities, and as whom this one goes on. To be called after what else takes root."""
        settings, user = self._settings, service_user()
        if user:  # only root gives folders away, and writes to the cache of programs
            for folder in {settings.spool, settings.record_folder or settings.spool}:
                give_folder(folder, user)
            loader.keep_compiled(self.geometry)
        privileged = Privileged()
        keep_importable()
        privilege.become_unprivileged(user)
        if user and settings.security.tls:
            require_readable(settings.security.tls, (AUTHORITY, CERTIFICATE, KEY), user)
        return privileged, user


class Counting:
    """One per agent."""

    def __init__(self, privileged: Privileged, settings: Settings, nics: Sequence[Nic], geometry: Geometry) -> None:
        """Attaches everything; blocks for about a second. Raises KernelError."""
        cards = tuple((card.name, card.index) for card in nics)
        began_ns = time.monotonic_ns()
        transfers = settings.transfers if settings.evidence == "all" else "none"
        started = privileged.start(Start(cards, settings.hook, settings.bucket_ns, settings.flows, transfers))
        descriptors = started.descriptors
        self.verbs = started.verbs
        """Whether it is counted what is posted to RDMA devices."""
        memory = map_memory(descriptors, geometry)
        self.meter = Meter(memory, geometry)
        self.links = Links([card.index for card in nics], [card.name for card in nics])
        self.ledger = Ledger(self.meter, self.links, nics, started.hooks, began_ns)
        self.steps = RingBuffer(descriptors["steps"], geometry.step_ring_bytes, STEP)
        """Calls of training libraries."""
        self._steps_lost = mapped_array(descriptors["steps_lost"], np.dtype("<u8"), 2)
        self._warned_of_steps = False
        events = descriptors.get(EVENT_MAP)
        self.socket_events = SocketEventTable(events, EVENT_RING_BYTES) if events is not None else None
        """None where the kernel does not report them."""
        wakes = Wakes(descriptors[WAKES], memory, geometry)
        self.sleep = Sleep(wakes, privileged.descriptor, descriptors["steps"])
        self.stops = RankStops(descriptors.get(STOPS_MAP))
        for descriptor in descriptors.values():
            os.close(descriptor)
        self.interfaces = tuple(
            _interface(number, card, hooks, settings.capacity_bps)
            for number, (card, hooks) in enumerate(zip(nics, started.hooks, strict=True), 1)
        )
        if pid_namespace():
            log.warning("this is not the machine's PID namespace: %s", PARTIAL_VIEW)

    @property
    def steps_lost(self) -> int:
        """Calls that were not reported, since the start: more than were read in time, or than training makes."""
        lost, over_budget = map(int, self._steps_lost)
        if lost and not self._warned_of_steps:
            self._warned_of_steps = True
            log.warning("calls of training libraries came faster than they were read: iterations may be missing")
        return lost + over_budget


def _interface(number: int, card: Nic, hooks: tuple[str, str], capacity_bps: int) -> Interface:
    capacity = capacity_bps or card.capacity_bps
    return Interface(number, card.name, capacity, *hooks, card.driver, card.mtu, card.super_packet_bytes)
