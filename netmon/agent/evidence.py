# SPDX-License-Identifier: Apache-2.0
"""The evidence for verdicts other than bytes and steps, each read as often as it is worth; and the agent's cost."""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netmon.agent.collectives import Collectives
from netmon.agent.counting import Counting
from netmon.agent.flow_owners import UserNames
from netmon.agent.host_part import HostPart, NicSamples
from netmon.agent.settings import Settings
from netmon.agent.transfers import Transfers
from netmon.agent.transport import TransportLooks
from netmon.agent.waits import Active, Waits
from netmon.evidence import POSTED
from netmon.kernel.meter.memory import PAGE_BYTES
from netmon.kernel.processes import PROC, read_bounded
from netmon.kernel.verbs import KINDS, Posted
from netmon.marks import RankIdentity
from netmon.records import AgentCost, Flow, Mark, Moment, Table, empty
from netmon.wire.limits import MAX_BYTES, MAX_EVIDENCE, MAX_NAME
from netmon.wire.tables import faults_of

log = logging.getLogger(__name__)

# --- What processes have posted to RDMA devices
#
# The privileged part counts; it is queried once a second, and again at once while it has more to report. What a batch
# has no room for waits here, and nothing more is requested meanwhile: a later report covers a longer time.


_EVERY_NS = 1_000_000_000
_NOTHING = empty(POSTED)


class PostedRows:
    """One per agent."""

    def __init__(self, able: bool, ranks: Mapping[int, RankIdentity]) -> None:
        """able: the privileged part counts. ranks: by pid."""
        self.able = able
        """Whether there is anything to request."""
        self._due_ns = 0
        self._rows: list[tuple[Posted, dict[str, Any]]] = []
        self._ranks = ranks
        self._users = UserNames()

    @property
    def waits(self) -> bool:
        """Whether there is something to send."""
        return bool(self._rows)

    def is_due(self, now_ns: int) -> bool:
        """Whether a request is due."""
        return self.able and now_ns >= self._due_ns and len(self._rows) < MAX_EVIDENCE

    def is_wanted(self, requested: bool) -> bool:
        """Whether, at the end, there is something to request. requested: that has been done, and there may be more."""
        return self.able and len(self._rows) < MAX_EVIDENCE and (not requested or self._due_ns == 0)

    def requested(self, now_ns: int) -> None:
        self._due_ns = now_ns + _EVERY_NS

    def answer(self, reply: dict[str, Any]) -> None:
        """To ReadPosted."""
        owners = reply["owners"]
        self._rows += [(Posted(*row), owners.get(str(row[2]), {})) for row in reply["posted"]]
        if reply["more"]:
            self._due_ns = 0

    def due(self, words: dict[str, int]) -> Table:
        """As many rows as a batch takes, oldest first. words: index of each word, which grows."""
        rows, self._rows = self._rows[:MAX_EVIDENCE], self._rows[MAX_EVIDENCE:]
        return np.array([self._row(*row, words) for row in rows], POSTED) if rows else _NOTHING

    def _row(self, row: Posted, owner: dict[str, Any], words: dict[str, int]) -> tuple[int, ...]:
        def place(word: str) -> int:
            return words.setdefault(word[:MAX_NAME], len(words)) if word else -1

        known = self._ranks.get(row.pid)
        job, rank = known[:2] if known else (owner.get("job", ""), owner.get("rank", -1))
        user = self._users.name(owner["uid"]) if owner else ""
        process, container = owner.get("process", ""), owner.get("container", "")
        return (
            *(row.start_ns, row.end_ns, place(job), rank, row.pid, place(process), place(container), place(user)),
            *(place(row.device), row.queue, place(row.peer), row.peer_queue, place(KINDS[row.kind])),
            *(min(row.bytes, MAX_BYTES), row.requests, row.unread, int(row.whole)),
        )


_MOST_RANKS = 4096

# --- cost

_MOST_BYTES = 4096
_INTERVAL_S = 2.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class CostMeter:
    """CPU time and memory of the agent's processes."""

    def __init__(self, pids: Sequence[int]) -> None:
        """pids: of all of the agent's processes."""
        self._pids = pids
        self._ticks: dict[int, int] = {}  # of each as it was last seen: one that has ended has not given them back
        self._last = (time.monotonic(), self._cpu_seconds())
        self._cost = AgentCost()

    def measure(self, spool_bytes: int, warnings: int) -> AgentCost:
        """The cost over the last seconds: /proc counts in steps of 10 ms."""
        now = time.monotonic()
        if now - self._last[0] >= _INTERVAL_S:
            used = self._cpu_seconds()
            self._cost = AgentCost((used - self._last[1]) / (now - self._last[0]), self._rss_bytes())
            self._last = now, used
        return AgentCost(self._cost.cpu_fraction, self._cost.rss_bytes, spool_bytes, warnings)

    def _cpu_seconds(self) -> float:
        for pid in self._pids:
            if fields := _read(pid, "stat").rpartition(b")")[2].split():
                self._ticks[pid] = int(fields[11]) + int(fields[12])
        return sum(self._ticks.values()) * _TICK_S

    def _rss_bytes(self) -> int:
        pages = (_read(pid, "statm").split() for pid in self._pids)
        return sum(int(fields[1]) for fields in pages if fields) * PAGE_BYTES


def _read(pid: int, name: str) -> bytes:
    return read_bounded(f"{PROC}/{pid}/{name}", _MOST_BYTES)


class SoundRows:
    """Evidence is read from files and from the memory of other processes. One row that a collector would refuse
    would cost the whole batch, with its traffic: it is left out instead, and that is logged."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of(self, name: str, rows: Table, now_ns: int) -> Table:
        """name: of a table of netmon.evidence; now_ns: the batch's horizon, or before it."""
        faults = faults_of(name, rows, now_ns) if len(rows) else {}
        if not faults:
            return rows
        for reason in sorted(set(faults.values()) - self._said):
            log.warning("%s: rows of which this is so are left out", reason)
        self._said.update(faults.values())
        return np.delete(rows, list(faults))


class Evidence:
    """One per agent."""

    def __init__(self, settings: Settings, counting: Counting, flows: Mapping[int, Flow], helper: int) -> None:
        """flows: all that are known, by id; helper: the pid of the privileged part."""
        wanted = settings.evidence == "all"
        self._nic = NicSamples(counting.links, len(counting.interfaces), settings.nic_counters_ns)
        self._host = HostPart(self._nic, counting.stops, wanted)
        self.transport = TransportLooks(flows, wanted=wanted)
        self._ranks: dict[int, RankIdentity] = {}  # by pid, also of those that have left lately
        self.posted = PostedRows(counting.verbs, self._ranks)
        self.waits = Waits(helped=True)
        self.collectives = Collectives() if wanted else None
        self.transfers = Transfers(self._ranks)
        self._wanted, self._sound = wanted, SoundRows()
        self.cost = CostMeter((os.getpid(), helper))

    def watch(self, now_ns: int) -> None:
        """Looks at the ranks, if it is time to."""
        self._host.watch(now_ns)

    def due(
        self, rows: Table, marks: Sequence[Mark], active: Iterable[Active], now_ns: int, idle: bool, last: bool
    ) -> dict[str, Any]:
        """Fields of a batch that carries these rows (dtype BUCKET or COARSE) and marks. active: the ranks; idle: there
        is no traffic; last: it is the last batch.
        """
        self.transport.count(rows)
        self._host.add_marks(marks)
        self._add_marks(marks)
        nic = self._nic.due(now_ns, idle, last)
        host, jobs = self._host.due(now_ns, idle)
        words = {job: place for place, job in enumerate(jobs)}
        tables = {"transport": self.transport.due(now_ns), "host": host, "rdma": self.posted.due(words)}
        if self._wanted:
            tables["waits"] = self.waits.due(active, now_ns, words)
        if self.collectives:
            tables["collectives"] = self.collectives.due(now_ns, words)
        tables["transfers"] = self.transfers.due(words)
        sound = {name: self._sound.of(name, rows, now_ns) for name, rows in tables.items()}
        return {"nic": nic, "evidence": sound, "words": tuple(words)}

    def _add_marks(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            if mark.moment is Moment.JOIN:
                self._ranks.pop(mark.pid, None)
                self._ranks[mark.pid] = RankIdentity(mark.job, mark.rank, mark.size)
        while len(self._ranks) > _MOST_RANKS:
            del self._ranks[next(iter(self._ranks))]
        if self.collectives:
            self.collectives.add_marks(marks)

    def adjust(self, options: Mapping[str, int]) -> list[str]:
        """As Agent.adjust."""
        if "nic_counters_ns" not in options:
            return []
        self._nic.interval_ns = options["nic_counters_ns"]
        return ["nic_counters_ns"]

    def close(self) -> None:
        self.transport.close()
        self._host.close()
