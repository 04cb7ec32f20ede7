# SPDX-License-Identifier: Apache-2.0
"""What processes have posted to RDMA devices, as rows of netmon.evidence.POSTED.

The privileged part counts; it is asked once a second, and again at once while it has more to tell. What a batch has no
room for waits here, and nothing more is asked for meanwhile: what is told later covers a longer time.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from netmon.agent.flow_owners import UserNames
from netmon.evidence import POSTED
from netmon.kernel.verbs import KINDS, Posted
from netmon.marks import RankIdentity
from netmon.records import Table, empty
from netmon.wire.limits import MAX_BYTES, MAX_EVIDENCE, MAX_NAME

_EVERY_NS = 1_000_000_000
_NOTHING = empty(POSTED)


class PostedRows:
    """One per agent."""

    def __init__(self, able: bool, ranks: Mapping[int, RankIdentity]) -> None:
        """able: the privileged part counts. ranks: by pid."""
        self.able = able
        """Whether there is anything to ask for."""
        self._due_ns = 0
        self._rows: list[tuple[Posted, dict[str, Any]]] = []
        self._ranks = ranks
        self._users = UserNames()

    @property
    def waits(self) -> bool:
        """Whether there is something to send."""
        return bool(self._rows)

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to ask."""
        return self.able and now_ns >= self._due_ns and len(self._rows) < MAX_EVIDENCE

    def is_wanted(self, asked: bool) -> bool:
        """Whether, at the end, there is something to ask for. asked: that has been done, and there may be more."""
        return self.able and len(self._rows) < MAX_EVIDENCE and (not asked or self._due_ns == 0)

    def asked(self, now_ns: int) -> None:
        self._due_ns = now_ns + _EVERY_NS

    def answer(self, reply: dict[str, Any]) -> None:
        """To ReadPosted."""
        owners = reply["owners"]
        self._rows += [(Posted(*row), owners.get(str(row[2]), {})) for row in reply["posted"]]
        if reply["more"]:
            self._due_ns = 0

    def due(self, words: dict[str, int]) -> Table:
        """As many rows as a batch takes, oldest first. words: their places, which grow."""
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
