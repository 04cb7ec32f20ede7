# SPDX-License-Identifier: Apache-2.0
"""Lets go of sessions whose agents were killed and never came back to say goodbye.

An agent that lives introduces itself again every `bus_connection.SAYS_AGAIN_S`. An introduction that has stayed as it
is for much longer, while nothing of its session was on the bus, is nobody's any more.
"""

import logging
import time
from collections.abc import Mapping

from collector.bus.host import HostIntake
from netmon.wire.bus import Bus
from netmon.wire.bus_sessions import introduced, lift_refusals

_log = logging.getLogger(__name__)

FORGET_AFTER_S = 3600.0
_LOOK_EVERY_S = 60.0


class Forgetting:
    """Of one worker. Lives on one event loop."""

    def __init__(self, bus: Bus) -> None:
        """Nothing has been seen."""
        self._bus = bus
        self._quiet: dict[tuple[str, str], tuple[int, float]] = {}  # by host and session: its introduction, since when
        self._looked = time.monotonic()

    async def look(self, hosts: Mapping[str, HostIntake]) -> None:
        """Now and then; hosts: those of this worker. Raises BusError."""
        now = time.monotonic()
        if now - self._looked < min(_LOOK_EVERY_S, FORGET_AFTER_S):
            return
        self._looked = now
        found = await introduced(self._bus)
        quiet = {
            (host, session)
            for host, intake in list(hosts.items())
            for session in found.get(host, ())
            if intake.quiet(session)
        }
        self._quiet = {key: seen for key, seen in self._quiet.items() if key in quiet}
        for host, session in quiet:
            intake = hosts.get(host)
            if intake:
                await self._consider(intake, host, session)

    async def _consider(self, intake: HostIntake, host: str, session: str) -> None:
        revision, since = self._quiet.get((host, session), (0, 0.0))
        if revision and time.monotonic() - since < FORGET_AFTER_S:
            return
        told = await self._bus.hello(host, session)
        if told is None:
            return
        if told[1] != revision:  # it has introduced itself again, or is seen for the first time
            self._quiet[host, session] = told[1], time.monotonic()
        elif await intake.drained() and intake.quiet(session):
            intake.sessions.pop(session, None)
            del self._quiet[host, session]
            await self._bus.forget_hello(host, session, revision)
            await lift_refusals(self._bus, host, session)
            _log.info(f"session {session} of {host} is forgotten: nothing has been heard of its agent for a long time")
