# SPDX-License-Identifier: Apache-2.0
"""What the privileged part sees around the agent: processes that train, whose sockets are whose, interfaces, timelines.

One question is under way at a time, and nobody waits for its answer.
"""

import base64
import logging
import time
from typing import Any

from netmon.agent.evidence import Evidence
from netmon.agent.flow_owners import FlowOwners
from netmon.agent.host_part import Links
from netmon.agent.training_marks import TrainingMarks
from netmon.kernel.privileged import Privileged
from netmon.kernel.processes import Changes
from netmon.kernel.requests import FindOwners, Look, LookClosely, LookElsewhere, More, ReadPosted

log = logging.getLogger(__name__)

_LOOK_NS = 300_000_000  # a process is known by what it was at the last look: seldom would be late
_SETTLED_NS = 3_500_000_000  # so long after something has come or gone it is looked at all the same
_SELDOM_NS = 3_000_000_000  # whatever seems to have changed
_LAST_WORD_S, _TICK_S = 1.0, 0.002
_MOST_WARNED = 1000  # lines that others' processes can make us write


class HostScan:
    """Asks, and hands what it hears to those who keep it."""

    def __init__(
        self, privileged: Privileged, owners: FlowOwners, marks: TrainingMarks, links: Links, evidence: Evidence
    ) -> None:
        self._privileged, self._owners, self._marks, self._links = privileged, owners, marks, links
        self._transport, self._transfers, self._waits = evidence.transport, evidence.transfers, evidence.waits
        self._posted = evidence.posted
        self._changes = Changes()
        self._look_due_ns, self._looked_ns, self._settled_ns = 0, 0, 0
        self._any_ranks = False
        self._asking = ""
        self._look: dict[str, Any] = {}  # under way
        self._ranks_found: list[dict[str, Any]] = []  # in it
        self._warned: set[str] = set()

    def waits(self, now_ns: int) -> bool:
        """Whether there is something to receive, or to request."""
        if self._privileged.busy:
            return self._privileged.answered
        if now_ns >= self._look_due_ns and not self._may_differ(now_ns):
            self._look_due_ns = now_ns + _LOOK_NS
        asks = bool(self._transport.elsewhere) or self._waits.asks or self._posted.is_due(now_ns)
        return asks or now_ns >= self._look_due_ns or self._owners.has_pending(now_ns)

    def _may_differ(self, now_ns: int) -> bool:
        """Whether a look may show what the last one did not: ranks map libraries, and write timelines."""
        if self._changes.seen():
            self._settled_ns = now_ns + _SETTLED_NS
        return self._any_ranks or now_ns < self._settled_ns or now_ns - self._looked_ns >= _SELDOM_NS

    def request(self, now_ns: int) -> None:
        """The next question, if there is one, and none is under way. Does not block."""
        if self._privileged.busy:
            return
        if self._waits.asks:
            self._asking, self._waits.asks = "closely", False
            self._privileged.request(LookClosely())
        elif now_ns >= self._look_due_ns:
            self._look_due_ns, self._looked_ns = now_ns + _LOOK_NS, now_ns
            self._asking = "look"
            self._privileged.request(Look())
        elif due := self._owners.due(now_ns):
            self._asking = "owners"
            self._privileged.request(FindOwners(due))
        elif self._posted.is_due(now_ns):
            self._asking = "posted"
            self._posted.requested(now_ns)
            self._privileged.request(ReadPosted())
        elif self._transport.elsewhere:
            self._asking = "transport"
            self._privileged.request(LookElsewhere(self._transport.elsewhere))
            self._transport.elsewhere = []

    def receive(self, now_ns: int) -> None:
        """Takes in what has been answered. Raises KernelError."""
        reply = self._privileged.poll() if self._privileged.busy else None
        if reply is None:
            return
        if self._asking == "owners":
            self._owners.answer(reply["owners"], now_ns)
            return
        if self._asking == "posted":
            self._posted.answer(reply)
            return
        if self._asking == "closely":
            self._waits.answer(reply["looks"], now_ns)
            return
        if self._asking == "transport":
            self._transport.answer(base64.b64decode(reply["rows"]), reply["able"])
            return
        self._ranks_found += reply["ranks"]
        if self._asking == "look":
            self._look = reply
        if reply["more"]:
            self._asking = "more"
            self._privileged.request(More())
            return
        self._see(self._look, now_ns)

    def finish(self, now_ns: int) -> None:
        """Hears what has been posted until now. Blocks for a moment. Raises KernelError."""
        until_s = time.monotonic() + _LAST_WORD_S
        requested = False
        while self._posted.able and time.monotonic() < until_s:
            if not (self._privileged.busy or self._posted.is_wanted(requested)):
                break
            if self._privileged.busy:
                time.sleep(_TICK_S)
                self.receive(now_ns)
            else:
                requested, self._asking = True, "posted"
                self._posted.requested(now_ns)
                self._privileged.request(ReadPosted())

    def _see(self, look: dict[str, Any], now_ns: int) -> None:
        """A look is complete."""
        ranks, self._ranks_found = self._ranks_found, []
        self._any_ranks = bool(ranks)
        self._owners.ranks(rank["pid"] for rank in ranks)
        self._marks.look(ranks, look["timelines"], now_ns)
        self._links.follow(look["interfaces"])
        if look["transfers"]:
            self._transfers.attach(look["transfers"])
        for path in look["probed"]:
            log.info("probing %s", path)
        for warning in look["warnings"]:
            if warning not in self._warned and len(self._warned) < _MOST_WARNED:
                self._warned.add(warning)
                log.warning("%s", warning)
