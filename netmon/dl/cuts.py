# SPDX-License-Identifier: Apache-2.0
"""Times at which rows of hosts are separated: those of a host that come in order, many hosts' at once."""

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import order_by

_Numbers = npt.NDArray[np.int64]
_MOST_BLOCKS = 64  # before the older half of them becomes one
_EARLIEST = np.iinfo(np.int64).min
_MOST_KEYS = 2**62


class CutsInOrder:
    """Of each host a cut is later than those before it; blocks in the order in which they came."""

    def __init__(self) -> None:
        """Begin without cuts."""
        self._blocks: list[_Block] = []
        self._latest: _Numbers = np.empty(0, np.int64)  # by host

    def add(self, host: _Numbers, time_ns: _Numbers) -> npt.NDArray[np.bool_]:
        """Cuts of any hosts, at least one. Returns which of them are not taken: they are earlier than others before."""
        if int(host.max()) >= len(self._latest):
            more = np.full(2 * int(host.max()) + 1 - len(self._latest), _EARLIEST)
            self._latest = np.append(self._latest, more)
        late = time_ns <= self._latest[host]
        good = np.flatnonzero(~late)
        if len(good):
            host, time_ns = host[good], time_ns[good]
            order = order_by(host, time_ns)
            self._blocks.append(_Block(host[order], time_ns[order]))
            np.maximum.at(self._latest, host, time_ns)
        return late

    def last(self, host: _Numbers, time_ns: _Numbers) -> _Numbers:
        """The last cut of each host that is not later than the time; the earliest int64 where there is none."""
        found = np.full(len(host), _EARLIEST)
        asked = np.arange(len(host))
        for block in reversed(self._blocks):
            if not len(asked):
                break
            cut = block.last(host[asked], time_ns[asked])
            there = cut > _EARLIEST
            found[asked[there]] = cut[there]
            asked = asked[~there]
        return found

    def forget(self, before_ns: _Numbers) -> None:
        """Now and then drop those that are earlier than before_ns of their host."""
        if len(self._blocks) <= _MOST_BLOCKS:
            return
        older = self._blocks[: _MOST_BLOCKS // 2]
        host, time_ns = (np.concatenate([getattr(block, name) for block in older]) for name in ("host", "time_ns"))
        kept = time_ns >= before_ns[host]
        del self._blocks[: _MOST_BLOCKS // 2]
        if kept.any():
            host, time_ns = host[kept], time_ns[kept]
            order = order_by(host, time_ns)
            self._blocks.insert(0, _Block(host[order], time_ns[order]))

    def drop(self, host: int) -> None:
        """The host is gone."""
        left = [(block.host, block.time_ns, block.host != host) for block in self._blocks]
        self._latest[host : host + 1] = _EARLIEST
        self._blocks = [_Block(hosts[stay], times[stay]) for hosts, times, stay in left if stay.any()]


class _Block:
    def __init__(self, host: _Numbers, time_ns: _Numbers) -> None:
        """At least one; sorted by host and time."""
        self.host, self.time_ns = host, time_ns
        self._base = np.full(int(host[-1]) + 2, np.iinfo(np.int64).max)
        np.minimum.at(self._base, host, time_ns)
        self._span = int((time_ns - self._base[host]).max()) + 1
        if len(self._base) * (self._span + 2) >= _MOST_KEYS:
            raise OverflowError("cuts of hosts are centuries apart")
        self._keys = host * (self._span + 2) + (time_ns - self._base[host]) + 1

    def last(self, host: _Numbers, time_ns: _Numbers) -> _Numbers:
        """As CutsInOrder.last."""
        host = np.minimum(host, len(self._base) - 1)  # the last one: nobody's
        base = self._base[host]
        since = np.where(time_ns < base, -1, np.minimum(time_ns - base, self._span))
        place = np.searchsorted(self._keys, host * (self._span + 2) + since + 1, side="right") - 1
        there = (since >= 0) & (place >= 0) & (self.host[place] == host)
        return np.where(there, self.time_ns[place], _EARLIEST)
