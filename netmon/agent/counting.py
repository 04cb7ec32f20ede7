# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts here, in memory that the privileged part has attached and shared with this one."""

import logging
import os
import time
from collections.abc import Sequence

import numpy as np

from netmon.agent.ledger import Ledger
from netmon.agent.nic import Links
from netmon.agent.poll_schedule import Sleep
from netmon.agent.settings import Settings
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
from netmon.kernel.subprocess_calls import call_in_subprocess
from netmon.own_module import keep_importable
from netmon.records import STEP, Interface
from netmon.service_user import ServiceUser, give_folder, require_readable, service_user
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY

log = logging.getLogger(__name__)


class PrivilegedStart:
    """What takes privilege is begun in a process of its own; from then on this one is without it."""

    def __init__(self, settings: Settings) -> None:
        """Raises NetmonError where a privilege, an interface or a file is missing."""
        privilege.require_capabilities()
        privilege.allow_descriptors()
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
