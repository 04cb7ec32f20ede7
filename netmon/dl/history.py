# SPDX-License-Identifier: Apache-2.0
"""What has settled on each host lately, kept so that any span of one host can be requested."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import GroupedValues, edges, order_by, starts, sums_by_two
from netmon.native import compiled

# --- Times at which rows of hosts are separated: those of a host that come in order, many hosts' at once.

_Numbers = npt.NDArray[np.int64]
_MOST_BLOCKS = 64  # before the older half of them becomes one
_EARLIEST = np.iinfo(np.int64).min
_MOST_KEYS = 2**62


class CutsInOrder:
    """Of each host a cut is later than those before it; blocks in the order in which they came."""

    def __init__(self) -> None:
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
        row = np.arange(len(host))
        latest = np.full(int(host.max(initial=0)) + 1, _EARLIEST)
        np.maximum.at(latest, host, time_ns)
        for block in reversed(self._blocks):
            if not len(row):
                break
            if block.is_later(latest):
                continue
            cut = block.last(host[row], time_ns[row])
            there = cut > _EARLIEST
            found[row[there]] = cut[there]
            row = row[~there]
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
            raise OverflowError("cuts of hosts differ by centuries")
        self._keys = host * (self._span + 2) + (time_ns - self._base[host]) + 1

    def is_later(self, latest_ns: _Numbers) -> bool:
        """Whether all its cuts are later than a time of their host; latest_ns: by host."""
        both = min(len(latest_ns), len(self._base))
        return not (self._base[:both] <= latest_ns[:both]).any()

    def last(self, host: _Numbers, time_ns: _Numbers) -> _Numbers:
        host = np.minimum(host, len(self._base) - 1)  # the last one: nobody's
        base = self._base.take(host)
        since = np.where(time_ns < base, -1, np.minimum(time_ns - base, self._span))
        index = np.searchsorted(self._keys, host * (self._span + 2) + since + 1, side="right") - 1
        there = (since >= 0) & (index >= 0) & (self.host.take(index, mode="clip") == host)
        return np.where(there, self.time_ns.take(index, mode="clip"), _EARLIEST)


# --- history


GRAIN_NS = 1_000_000
"""Rows of one grain that no cut separates become one."""

_KEPT_NS = 30_000_000_000  # for so long every grain is kept, then only what lies between two cuts
_FEW = 0.2  # of a block's rows: so many are set aside for the hosts that still need them, and the block goes
_MOST_PENDING = 50  # blocks
_MOST_CUTS = 256  # of a host before old ones are looked for


class Sums(NamedTuple):
    """Payload per question and key, ascending, arrays of one length; a key is what the caller added it under."""

    question: _Numbers
    key: _Numbers
    payload_bytes: _Numbers


class Block:
    """What has settled on all hosts at one time; every column takes as few bytes a row as hold it."""

    def __init__(self, by: str, columns: dict[str, npt.NDArray[Any]], until_ns: _Numbers) -> None:
        """columns: sorted by "host" and, if they are searched, `by`; until_ns: by host: its rows lie before it."""
        self.until_ns = until_ns
        self._by, host = by, columns["host"]
        self.edges = edges(host, len(until_ns))
        """Where each host's rows begin, and the end."""
        self._base = np.zeros(len(until_ns), np.int64)  # of `by`, by host
        first = starts(host)
        if len(first):
            self._base[host[first]] = np.minimum.reduceat(columns[by], first)
        since = columns[by] - self._base.take(host)
        self._span = int(since.max(initial=0)) + 1
        plain = {name: column for name, column in columns.items() if name not in ("host", by)}
        self._columns = {name: _packed(column) for name, column in (plain | {by: since}).items()}

    def __len__(self) -> int:
        return int(self.edges[-1])

    @property
    def host(self) -> _Numbers:
        return np.repeat(np.arange(len(self.until_ns)), np.diff(self.edges))

    def columns(self, rows: npt.NDArray[np.intp] | slice = slice(None)) -> dict[str, npt.NDArray[Any]]:
        host = self.host[rows]
        found = {name: self.values(name, rows) for name in self._columns}
        return {"host": host} | found | {self._by: found[self._by] + self._base[host]}

    def values(self, name: str, rows: npt.NDArray[np.integer] | slice) -> npt.NDArray[Any]:
        """A column, of some rows; not the one that it is searched by."""
        least, column = self._columns[name]
        found = column[rows] if isinstance(rows, slice) else column.take(rows)
        return found if column.dtype == np.bool_ else found + np.int64(least)

    def positions(self, host: _Numbers, limit: _Numbers) -> npt.NDArray[np.intp]:
        """Where the host's rows from the limit on begin."""
        step = self._span + 2
        if len(self.until_ns) * step >= _MOST_KEYS:
            return GroupedValues(self.host, self.columns()[self._by], len(self.until_ns)).positions(host, limit, "left")
        keys = np.repeat(np.arange(len(self.until_ns)) * step + 1, np.diff(self.edges))
        keys += self.values(self._by, slice(None))
        near = np.clip(limit - self._base[host], -1, self._span)
        found: npt.NDArray[np.intp] = np.searchsorted(keys, host * step + near + 1)
        return found


def _packed(column: npt.NDArray[Any]) -> tuple[int, npt.NDArray[Any]]:
    """Its least value, and what each is more."""
    if column.dtype == np.bool_ or not len(column):
        return 0, column
    least = int(column.min())
    most = int(column.max()) - least
    kind = np.min_scalar_type(most) if most < 1 << 32 else np.dtype(np.int64)
    return least, (column - least).astype(kind)


class HostBlocks:
    """Blocks in the order in which they settled; each host's rows stay as long as the host needs them."""

    def __init__(self, by: str) -> None:
        """Begin with nothing. by: the column by which rows are found."""
        self._by = by
        self._blocks: list[Block] = []
        self._pending: list[Block] = []  # rows of hosts that need them for longer than others theirs

    def add(self, columns: dict[str, npt.NDArray[Any]], until_ns: _Numbers) -> None:
        """Add rows, sorted by the column host; until_ns: of each host, before which its rows have been added."""
        if len(columns["host"]):
            self._blocks.append(Block(self._by, columns, until_ns.copy()))

    def within(
        self, host: _Numbers, since_ns: _Numbers, low: _Numbers, high: _Numbers
    ) -> Iterator[tuple[Block, _Numbers, _Numbers]]:
        """Rows of many hosts with low ≤ column < high, by block: the block, which question, which row.

        Arrays (questions,); the blocks are sorted by host and this column. since_ns: what settled before is left out.
        """
        row = np.arange(len(host))
        for block in reversed(self._blocks):
            known = row[host[row] < len(block.until_ns)]
            row = known[block.until_ns[host[known]] > since_ns[known]]
            if not len(row):
                break
            yield from _between(block, row, host[row], low[row], high[row])
        for block in self._pending:
            known = np.flatnonzero(host < len(block.until_ns))
            yield from _between(block, known, host[known], low[known], high[known])

    def forget(self, since_ns: _Numbers) -> bool:
        """Drop of each host the blocks that lie before since_ns; whether it is time to put in order what is aside."""
        while self._blocks:
            block = self._blocks[0]
            needed = block.until_ns > since_ns[: len(block.until_ns)]
            rows = int(np.diff(block.edges)[needed].sum())
            if rows > _FEW * len(block):
                break
            if rows:
                self._pending.append(Block(self._by, block.columns(np.flatnonzero(needed[block.host])), block.until_ns))
            del self._blocks[0]
        return len(self._pending) > _MOST_PENDING

    def take_pending(self) -> tuple[dict[str, npt.NDArray[Any]], _Numbers] | None:
        """Hand over what is aside, columns and until_ns, rows in no order; to be given back by put_aside."""
        blocks, self._pending = self._pending, []
        if not blocks:
            return None
        tables = [block.columns() for block in blocks]
        columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        return columns, blocks[-1].until_ns

    def put_pending(self, columns: dict[str, npt.NDArray[Any]], until_ns: _Numbers) -> None:
        """Keep these for the hosts that need them; sorted by the column host."""
        if len(columns["host"]):
            self._pending.append(Block(self._by, columns, until_ns))

    def drop(self, host: int) -> None:
        for blocks in (self._blocks, self._pending):
            for index, block in enumerate(blocks):
                if host < len(block.until_ns) and block.edges[host + 1] > block.edges[host]:
                    stay = np.flatnonzero(block.host != host)
                    blocks[index] = Block(self._by, block.columns(stay), block.until_ns)


def _between(
    block: Block, row: _Numbers, host: _Numbers, low: _Numbers, high: _Numbers
) -> Iterator[tuple[Block, _Numbers, _Numbers]]:
    first, last = (block.positions(host, limit) for limit in (low, high))
    counts = np.maximum(last - first, 0)
    total = int(counts.sum())
    if total:
        before = np.repeat(np.cumsum(counts) - counts, counts)
        yield block, np.repeat(row, counts), np.repeat(first, counts) + np.arange(total) - before


class PayloadHistory:
    """Sums of a host between any two times: exact between cuts that were made before the rows came, else to 1 ms."""

    def __init__(self) -> None:
        self._cuts: dict[int, list[int]] = {}  # by host, ascending
        self._in_order = CutsInOrder()  # others
        self._blocks = HostBlocks("label")
        self._since: _Numbers = np.empty(0, np.int64)  # by host: what is older is not needed any more

    def cut_all(self, host: int, times_ns: Sequence[int]) -> None:
        """Separate rows before each of these times from those after; from each on no row has been added."""
        cuts = self._cuts.setdefault(host, [])
        for time_ns in times_ns:
            if not cuts or time_ns > cuts[-1]:
                cuts.append(time_ns)
            else:
                index = bisect_left(cuts, time_ns)
                if cuts[index] != time_ns:
                    cuts.insert(index, time_ns)
        self._tidy_cuts(host, cuts)

    def cut_in_order(self, host: _Numbers, time_ns: _Numbers) -> None:
        """As `cut_all` of many hosts, from which times on no row has been added; mostly each is a host's latest."""
        if len(host):
            late = np.flatnonzero(self._in_order.add(host, time_ns))
            for one, time in zip(host[late].tolist(), time_ns[late].tolist(), strict=True):
                self.cut_all(one, [time])

    def _tidy_cuts(self, host: int, cuts: list[int]) -> None:
        if len(cuts) > _MOST_CUTS and host < len(self._since):
            del cuts[: max(0, bisect_right(cuts, int(self._since[host])) - 1)]

    def add(
        self, host: _Numbers, time_ns: _Numbers, key: _Numbers, payload_bytes: _Numbers, until_ns: _Numbers
    ) -> None:
        """Add rows, arrays of one length; those without payload change nothing. until_ns: by host, see HostBlocks."""
        if not len(host):
            return
        first = starts(host, time_ns)  # rows of one time that follow each other have one label
        count = np.diff(np.append(first, len(host)))
        of_host, time_ns = host[first], time_ns[first]
        label = np.maximum(time_ns // GRAIN_NS * GRAIN_NS, self._last_cut(of_host, time_ns, len(until_ns)))
        found = _summed_in_order(of_host, label, count, key, payload_bytes)
        if found is None:
            some = np.flatnonzero(payload_bytes > 0)
            found = _summed(host[some], np.repeat(label, count)[some], key[some], payload_bytes[some])
        self._blocks.add(found, until_ns)

    def between(self, host: _Numbers, start_ns: _Numbers, end_ns: _Numbers) -> Sums:
        """Payload of [start, end) of hosts by key; arrays (questions,)."""
        parts = [
            (question, block.values("key", row), block.values("payload_bytes", row))
            for block, question, row in self._blocks.within(host, start_ns, start_ns, end_ns)
        ]
        if not parts:
            return Sums(*(np.empty(0, np.int64) for _ in range(3)))
        return Sums(*sums_by_two(*(np.concatenate(column) for column in zip(*parts, strict=True))))

    def forget(self, before_ns: _Numbers, now_ns: _Numbers) -> None:
        """Drop of each host what lies before before_ns and is not young; of what is old keep the sums between cuts."""
        old = now_ns - _KEPT_NS
        since = self._since = np.minimum(before_ns, old)
        self._in_order.forget(since)
        for host in [
            host for host, cuts in self._cuts.items() if host < len(since) and (not cuts or cuts[-1] < since[host])
        ]:
            del self._cuts[host]
        if self._blocks.forget(since):
            self._tidy(since, old)

    def _tidy(self, since: _Numbers, old: _Numbers) -> None:
        taken = self._blocks.take_pending()
        if taken is None:
            return
        columns, until_ns = taken
        host, label = columns["host"], columns["label"]
        last_cut = self._last_cut(host, label, len(since))
        stay = label >= since[host]
        label = np.where(label < old[host], np.maximum(last_cut, since[host]), label)
        kept = (column[stay] for column in (host, label, columns["key"], columns["payload_bytes"]))
        self._blocks.put_pending(_summed(*kept), until_ns)

    def drop(self, host: int) -> None:
        self._cuts.pop(host, None)
        self._in_order.drop(host)
        self._blocks.drop(host)

    def _last_cut(self, host: _Numbers, time_ns: _Numbers, hosts: int) -> _Numbers:
        return np.maximum(self._in_order.last(host, time_ns), self._last_of_any(host, time_ns, hosts))

    def _last_of_any(self, host: _Numbers, time_ns: _Numbers, hosts: int) -> _Numbers:
        if not self._cuts:
            return np.full(len(time_ns), np.iinfo(np.int64).min)
        first = np.full(hosts, np.iinfo(np.int64).max)
        np.minimum.at(first, host, time_ns)
        some = [(one, self._cuts[one]) for one in sorted(self._cuts) if first[one] < np.iinfo(np.int64).max]
        near = [(one, cuts[max(0, bisect_right(cuts, int(first[one])) - 1) :]) for one, cuts in some]
        times = np.array([time for _, cuts in near for time in cuts], np.int64)
        if not len(times):
            return np.full(len(time_ns), np.iinfo(np.int64).min)
        of_host = np.repeat(np.array([one for one, _ in near]), [len(cuts) for _, cuts in near])
        index = GroupedValues(of_host, times, hosts).positions(host, time_ns) - 1
        there = (index >= 0) & (of_host[index] == host)
        return np.where(there, times[index], np.iinfo(np.int64).min)


def _summed_in_order(
    host: _Numbers, label: _Numbers, count: _Numbers, key: _Numbers, payload_bytes: npt.NDArray[np.integer]
) -> dict[str, npt.NDArray[Any]] | None:
    """As _summed, without sorting, where hosts and labels ascend and few keys have one of them; else None.

    host, label: of so many rows each, as `count` says; key, payload_bytes: of each row.
    """
    if compiled is None:
        return None
    sums = {name: np.empty(len(key), np.int64) for name in ("host", "label", "key", "payload_bytes")}
    rows = (np.ascontiguousarray(column, np.int64) for column in (host, label, count, key, payload_bytes))
    found: int = compiled.sum_runs(*rows, tuple(sums.values()))
    return {name: column[:found] for name, column in sums.items()} if found >= 0 else None


def _summed(host: _Numbers, label: _Numbers, key: _Numbers, payload_bytes: _Numbers) -> dict[str, npt.NDArray[Any]]:
    order = order_by(host, label, key)
    host, label, key = host[order], label[order], key[order]
    first = starts(host, label, key)
    amounts = np.add.reduceat(payload_bytes[order], first) if len(first) else payload_bytes
    return {"host": host[first], "label": label[first], "key": key[first], "payload_bytes": amounts}
