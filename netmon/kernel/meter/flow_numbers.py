# SPDX-License-Identifier: Apache-2.0
"""Flow keys → flow ids, which are never used twice in a session: an id of its own, or its aggregate's.

Whoever opens flows fast, a scan or a service, gets as many ids as the limit allows; the rest is accounted under
aggregates. Nothing here walks records; only flows that took a slot are looked up.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.aggregates import Aggregates
from netmon.rate_limiter import RateLimiter
from netmon.records import FLOW_KEY, Table

_RAW = np.dtype("V40")
LAST_ID = (1 << 32) - 1

Ids = npt.NDArray[np.uint32]
Choice = Callable[[Table], npt.NDArray[np.bool_]]
"""(n,) FLOW_KEY → which of them look like a training job's: (n,)."""


class New(NamedTuple):
    """Flows that have got an id of their own: (n,) each; keys: FLOW_KEY."""

    keys: Table
    ids: Ids


@dataclass(frozen=True)
class FlowLimit:
    """per_s: new flows a second in the long run; burst: at once after a rest; alive: together, at most."""

    per_s: float
    burst: int
    alive: int


ANY = FlowLimit(per_s=100, burst=5_000, alive=10_000)
"""Flows of whoever it is. A collector remembers each for ten minutes: these are then 65,000."""

EVERY = FlowLimit(per_s=1e9, burst=1 << 30, alive=1 << 30)
"""No bound: for those who measure and compare."""

TRAINING = FlowLimit(per_s=500, burst=10_000, alive=20_000)
"""Flows that look like a rank's, together with the others: who imitates ranks is bounded, too."""

LARGE = FlowLimit(per_s=100, burst=2_000, alive=15_000)
"""Flows of an aggregate that turned out to be large."""


class _Room:
    """What of a limit is left. Full at first."""

    def __init__(self, limit: FlowLimit) -> None:
        self._limiter, self._alive = RateLimiter(limit.per_s, limit.burst), limit.alive

    def take(self, wanted: int, alive: int, now_ns: int) -> int:
        """How many of the wanted ones may be described, alongside those that are alive; they are then spent."""
        return self._limiter.take(min(wanted, self._alive - alive), now_ns)


class FlowNumbers:
    """Ids from 1, in the order of first sight. A flow that was forgotten and comes back is a new one."""

    def __init__(self, each: FlowLimit = ANY) -> None:
        """Nothing is known. each: how many are described one by one, whosever they are."""
        self._ids: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._any, self._training, self._large = _Room(each), _Room(TRAINING), _Room(LARGE)
        self._new: list[tuple[bytes, int]] = []
        self.next_id = 1
        self.aggregates = Aggregates(self._next)
        self.training: Choice = lambda keys: np.zeros(len(keys), bool)
        """Asked only when not all new flows can be described."""

    def __len__(self) -> int:
        """Flows that have an id of their own."""
        return len(self._ids)

    def number(self, keys: Table, now_ns: int) -> Ids:
        """keys: (n,) FLOW_KEY, as they opened → their ids (n,)."""
        ids = np.zeros(len(keys), np.uint32)
        if not len(keys):
            return ids
        raw = np.ascontiguousarray(keys).view(_RAW).tolist()
        get = self._ids.get
        ids[:] = [get(key, 0) for key in raw]
        unknown = np.flatnonzero(ids == 0)
        names = [raw[i] for i in unknown.tolist()]
        first = list(dict.fromkeys(names))  # one may have opened on two CPUs
        room = self._any.take(len(first), len(self), now_ns)
        for key in first[:room]:
            self._describe(key)
        if len(first) > room:
            self._describe_training(first[room:], now_ns)
        ids[unknown] = [get(key, 0) for key in names]
        if len(crowd := unknown[ids[unknown] == 0]):
            ids[crowd] = self.aggregates.number(np.asarray(keys)[crowd])
        return ids

    def _describe_training(self, names: list[bytes], now_ns: int) -> None:
        """Those of a job's ranks, and those whose reverse direction is described."""
        keys = np.array(names, _RAW).view(FLOW_KEY)
        get = self._ids.get
        wanted = self.training(keys) | np.array([get(key, 0) > 0 for key in reversed_keys(keys)], bool)
        chosen = np.flatnonzero(wanted).tolist()
        for i in chosen[: self._training.take(len(chosen), len(self), now_ns)]:
            self._describe(names[i])

    def promote(self, key: bytes, now_ns: int) -> int:
        """The id of a flow that turned out to be large; 0 where it has to stay in its aggregate for now."""
        known = self._ids.get(key, 0)
        if known or not self._large.take(1, len(self), now_ns):
            return known
        return self._describe(key)

    def revive(self, key: bytes, now_ns: int) -> int:
        """The id of a flow that goes on after it was forgotten: a new one, or its aggregate's."""
        return int(self.number(np.array([key], _RAW).view(FLOW_KEY), now_ns)[0])

    def take_new(self) -> New:
        """The flows that got an id of their own since the last call, in its order."""
        new, self._new = self._new, []
        return New(np.array([key for key, _ in new], _RAW).view(FLOW_KEY), np.array([n for _, n in new], np.uint32))

    def forget(self, ids: Iterable[int]) -> dict[int, int]:
        """These flows are over: each → the aggregate in whose place it was."""
        forgotten = {i: self._keys.pop(i) for i in ids if i in self._keys}
        for key in forgotten.values():
            del self._ids[key]
        keys = np.array(list(forgotten.values()), _RAW).view(FLOW_KEY)
        indices = self.aggregates.number(keys, counted=False).tolist() if forgotten else []
        return dict(zip(forgotten, indices, strict=True))

    def _describe(self, key: bytes) -> int:
        number = self._ids[key] = self._next()
        self._keys[number] = key
        self._new.append((key, number))
        return number

    def _next(self) -> int:
        number = self.next_id
        self.next_id = min(number + 1, LAST_ID)  # the agent begins a new session long before
        return number


def reversed_keys(keys: Table) -> list[bytes]:
    """(n,) FLOW_KEY → the raw keys of the same connections' other directions, on the same interface."""
    other = keys.copy()
    other["src"], other["dst"] = keys["dst"], keys["src"]
    other["src_port"], other["dst_port"] = keys["dst_port"], keys["src_port"]
    other["link_protocol"] = keys["link_protocol"] ^ np.uint32(1 << 8)
    raw: list[bytes] = other.view(_RAW).tolist()
    return raw
