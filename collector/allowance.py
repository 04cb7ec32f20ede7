# SPDX-License-Identifier: Apache-2.0
"""How much of the collector one host may use, whatever it sends: seconds of its share, one for each that passes.

What costs more waits: nothing is read from its agents meanwhile, so that it stays with them, and all others go on.
Figures are far above what honest agents need, an hour's spool sent at once included.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from netmon.errors import WireError
from netmon.records import Hello
from netmon.wire import netmon_pb2

if TYPE_CHECKING:  # who only reads what comes needs nothing of what is made of it
    from collector.entry import Entry

MOST_SESSIONS, MOST_OF_HOST = 8_192, 64
"""Sessions that are known at a time, of all hosts and of one: those that are connected, and those just over."""

SAVED_S = 60.0
"""What a host has not used is kept for it up to here."""

BATCHES_PER_S, ROWS_PER_S, FLOWS_PER_S, MARKS_PER_S, OTHERS_PER_S = 500, 4e6, 5e3, 5e4, 2e4
"""A second's worth each; an agent sends two batches, describes a hundred flows and tells of some thousand marks."""

SESSION_S = 0.2
"""What an introduction costs beside what is in it."""


def check_sessions(known: "Mapping[str, Entry]", hello: Hello) -> None:
    """Raise WireError where there is no room for one more."""
    if hello.session in known:
        return
    if len(known) >= MOST_SESSIONS:
        raise WireError(f"session {hello.session} of {hello.host} is refused: there are {MOST_SESSIONS} sessions already")
    if sum(entry.session.hello.host == hello.host for entry in known.values()) >= MOST_OF_HOST:
        raise WireError(f"session {hello.session} is refused: {hello.host} has {MOST_OF_HOST} sessions already")


class Allowance:
    """Of all hosts of one collector; lives on one event loop."""

    def __init__(self) -> None:
        """Nobody has used anything."""
        self._free_s: dict[str, float] = {}  # by host: when what it has used is paid
        self._tidied_s = 0.0

    def introduced(self, host: str, hello: netmon_pb2.Hello) -> None:
        """An agent of a host has connected."""
        self._spend(host, SESSION_S + len(hello.flows) / FLOWS_PER_S + len(hello.marks) / MARKS_PER_S)

    def came(self, host: str, batch: netmon_pb2.Batch) -> None:
        """A batch of a host is taken in."""
        others = len(batch.nic) + len(batch.exchanges) + len(batch.ledger)
        cost_s = 1 / BATCHES_PER_S + batch.buckets.rows / ROWS_PER_S + others / OTHERS_PER_S
        self._spend(host, cost_s + len(batch.flows) / FLOWS_PER_S + len(batch.marks) / MARKS_PER_S)

    def wait_s(self, host: str) -> float:
        """Until something more of a host is taken in; 0: now."""
        return max(0.0, self._free_s.get(host, 0.0) - time.monotonic())

    async def turn(self, host: str) -> None:
        """Wait until then."""
        while wait_s := self.wait_s(host):
            await asyncio.sleep(wait_s)

    def _spend(self, host: str, cost_s: float) -> None:
        now = time.monotonic()
        self._free_s[host] = max(self._free_s.get(host, 0.0), now - SAVED_S) + cost_s
        if now - self._tidied_s > SAVED_S:
            self._tidied_s = now
            self._free_s = {known: free_s for known, free_s in self._free_s.items() if free_s > now - SAVED_S}
