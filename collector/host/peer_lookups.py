# SPDX-License-Identifier: Apache-2.0
"""Flows of which the job stage is asked who is at the other end."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collector.messages import flow_numbers
from netmon.records import Flow, Table


class PeerLookups:
    """Those of all sessions, by index: of jobs while they are known, others until it is given up."""

    def __init__(self) -> None:
        self._ranks: dict[int, int] = {}  # by flow: the rank at the other end; −1: unknown
        self._new: set[int] = set()  # that are new, or described anew
        self._over: list[int] = []  # numbers of flows (messages.flow_numbers) of which it is asked no more

    def described(self, index: int, flow: Flow) -> None:
        """A flow has been, as it is now."""
        if flow.owner.job or index in self._ranks:
            self.add(index)

    def add(self, index: int) -> None:
        """From now on, until it is given up."""
        self._ranks.setdefault(index, -1)
        self._new.add(index)

    def give_up(self, index: int, session: int, flow_id: int) -> None:
        """Ask no more; session: the flow's."""
        if self._ranks.pop(index, None) is not None:
            self._new.discard(index)
            self._over.append(flow_numbers(session, flow_id))

    def set_rank(self, index: int, rank: int) -> None:
        """The rank at the other end; −1: unknown."""
        if index in self._ranks:
            self._ranks[index] = rank

    def ranks(self, indices: Sequence[int], flows: Sequence[Flow]) -> list[int]:
        """The rank at the other end of each flow of a job; −1: unknown, or no job's."""
        both = zip(indices, flows, strict=True)
        return [self._ranks.get(index, -1) if flow.owner.job else -1 for index, flow in both]

    def take(self, flows: Sequence[Flow | None], state: Table) -> tuple[npt.NDArray[np.int64], list[tuple[int, Flow]]]:
        """Numbers of flows of which it is asked no more, and those of which it is asked anew; flows, state: of all."""
        over, self._over = np.array(self._over, np.int64), []
        wanted, self._new = sorted(self._new), set()
        sessions, ids = (state[name][wanted].tolist() for name in ("session", "flow_id"))
        described = []
        for index, session, flow_id in zip(wanted, sessions, ids, strict=True):
            flow = flows[index]
            if flow is not None:
                described.append((flow_numbers(session, flow_id), flow))
        return over, described
