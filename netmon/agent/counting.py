# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts here, in memory that the privileged part has attached and shared with this one."""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from netmon.agent.downtime import OWN_COUNTERS, Beginning, LinkAccount, encode_accounts
from netmon.agent.nic import Links
from netmon.agent.poll_schedule import Sleep
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
from netmon.own_module import allow_descriptors, call_in_subprocess, keep_importable
from netmon.records import KERNEL_LEDGER, STEP, Direction, Interface, LedgerSample, Table
from netmon.service_user import ServiceUser, give_folder, require_readable, service_user
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY

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
        """A sample per link, now: the last ones. Before them the first ones, if nobody has asked for those yet."""
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
        """Counts what batches carried (dtype LINK_TOTALS) as lost in the agent."""
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
        self.nics: Sequence[Nic] = call_in_subprocess(nic.describe_all, settings.interface)
        self.geometry = choose_geometry(settings.bucket_ns, len(self.nics), settings.flows)
        self._settings = settings

    def give_up(self) -> tuple[Privileged, ServiceUser | None]:
        """The part that keeps capabilities, and as whom this one goes on. To be called after what else takes root."""
        settings, user = self._settings, service_user()
        if user:  # only root gives folders away, and writes to the cache of programs
            for folder in {settings.spool, settings.record_folder or settings.spool}:
                give_folder(folder, user)
            loader.prepare(self.geometry)
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
        self.links = Links([card.index for card in nics], settings.interface)
        self.ledger = Ledger(self.meter, self.links, nics, started.hooks, began_ns)
        self.steps = RingBuffer(descriptors["steps"], geometry.step_ring_bytes, STEP)
        """Calls of training libraries."""
        self._steps_lost = mapped_array(descriptors["steps_lost"], np.dtype("<u8"), 2)
        self._warned_of_steps = False
        events = descriptors.get(EVENT_MAP)
        self.socket_events = SocketEventTable(events, EVENT_RING_BYTES) if events is not None else None
        """None where the kernel cannot tell."""
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
