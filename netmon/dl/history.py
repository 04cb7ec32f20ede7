# SPDX-License-Identifier: Apache-2.0
"""What has settled on each host lately, kept so that any span of one host can be asked for."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import GroupedValues, edges, order_by, starts
from netmon.dl.sums import sums_by_two

GRAIN_NS = 1_000_000
"""Rows of one grain that no cut separates become one."""

_KEPT_NS = 30_000_000_000  # for so long every grain is kept, then only what lies between two cuts
_FEW = 0.2  # of a block's rows: so many are set aside for the hosts that still need them, and the block goes
_MOST_ASIDE = 50  # blocks
_MOST_CELLS = 4  # for each row, that are worth being counted without sorting
_MOST_CUTS = 256  # of a host before old ones are looked for

_Numbers = npt.NDArray[np.int64]


class Sums(NamedTuple):
    """Payload per question and key, ascending, arrays of one length; a key is what the caller added it under."""

    question: _Numbers
    key: _Numbers
    payload_bytes: _Numbers


@dataclass(frozen=True)
class Block:
    """What has settled on all hosts at one time."""

    columns: dict[str, npt.NDArray[Any]]  # sorted by "host"
    edges: npt.NDArray[np.intp]  # where each host's rows begin, and the end
    until_ns: _Numbers  # by host: its rows lie before it

    def of(self, host: int) -> slice:
        """The rows of a host."""
        if host + 1 >= len(self.edges):
            return slice(0, 0)
        return slice(int(self.edges[host]), int(self.edges[host + 1]))


class HostBlocks:
    """Blocks in the order in which they settled; each host's rows stay as long as the host needs them."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._blocks: list[Block] = []
        self._aside: list[Block] = []  # rows of hosts that need them for longer than others theirs

    def add(self, columns: dict[str, npt.NDArray[Any]], until_ns: _Numbers) -> None:
        """Add rows, sorted by the column host; until_ns: of each host, before which its rows have been added."""
        if len(columns["host"]):
            self._blocks.append(_block(columns, until_ns.copy()))

    def within(
        self, column: str, host: _Numbers, since_ns: _Numbers, low: _Numbers, high: _Numbers
    ) -> Iterator[tuple[Block, _Numbers, _Numbers]]:
        """Rows of several hosts with low ≤ column < high, by block: the block, which question, which row.

        Arrays (questions,); the blocks are sorted by host and this column. since_ns: what settled before is left out.
        """
        asked = np.arange(len(host))
        for block in reversed(self._blocks):
            known = asked[host[asked] < len(block.until_ns)]
            asked = known[block.until_ns[host[known]] > since_ns[known]]
            if not len(asked):
                break
            yield from _between(block, column, asked, host[asked], low[asked], high[asked])
        for block in self._aside:
            known = np.flatnonzero(host < len(block.until_ns))
            yield from _between(block, column, known, host[known], low[known], high[known])

    def forget(self, since_ns: _Numbers) -> bool:
        """Drop of each host the blocks that lie before since_ns; whether it is time to put in order what is aside."""
        while self._blocks:
            block = self._blocks[0]
            needed = block.until_ns > since_ns[: len(block.until_ns)]
            rows = np.flatnonzero(needed[block.columns["host"]]) if needed.any() else np.empty(0, np.intp)
            if len(rows) > _FEW * len(block.columns["host"]):
                break
            if len(rows):
                self._aside.append(_block({name: c[rows] for name, c in block.columns.items()}, block.until_ns))
            del self._blocks[0]
        return len(self._aside) > _MOST_ASIDE

    def take_aside(self) -> Block | None:
        """Hand over what is aside, in one block whose rows are in no order; to be given back by put_aside."""
        blocks, self._aside = self._aside, []
        if not blocks:
            return None
        columns = {name: np.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns}
        return Block(columns, blocks[-1].edges, blocks[-1].until_ns)

    def put_aside(self, columns: dict[str, npt.NDArray[Any]], until_ns: _Numbers) -> None:
        """Keep these for the hosts that need them; sorted by the column host."""
        if len(columns["host"]):
            self._aside.append(_block(columns, until_ns))

    def drop(self, host: int) -> None:
        """The host is gone."""
        for blocks in (self._blocks, self._aside):
            for place, block in enumerate(blocks):
                rows = block.of(host)
                if rows.stop > rows.start:
                    stay = np.ones(len(block.columns["host"]), np.bool_)
                    stay[rows] = False
                    blocks[place] = _block({n: c[stay] for n, c in block.columns.items()}, block.until_ns)


def _block(columns: dict[str, npt.NDArray[Any]], until_ns: _Numbers) -> Block:
    return Block(columns, edges(columns["host"], len(until_ns)), until_ns)


def _between(
    block: Block, column: str, asked: _Numbers, host: _Numbers, low: _Numbers, high: _Numbers
) -> Iterator[tuple[Block, _Numbers, _Numbers]]:
    values = GroupedValues(block.columns["host"], block.columns[column], len(block.until_ns))
    first, last = (values.places(host, limit, side="left") for limit in (low, high))
    counts = np.maximum(last - first, 0)
    total = int(counts.sum())
    if total:
        before = np.repeat(np.cumsum(counts) - counts, counts)
        yield block, np.repeat(asked, counts), np.repeat(first, counts) + np.arange(total) - before


class PayloadHistory:
    """Sums of a host between any two times: exact between cuts that were made before the rows came, else to 1 ms."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._cuts: dict[int, list[int]] = {}  # by host, ascending
        self._blocks = HostBlocks()
        self._since: _Numbers = np.empty(0, np.int64)  # by host: what is older is not asked for any more

    def cut(self, host: int, time_ns: int, added_until_ns: int) -> bool:
        """Separate rows before time_ns from those after; False where rows from there on may have been added already."""
        cuts = self._cuts.setdefault(host, [])
        place = bisect_left(cuts, time_ns)
        if place < len(cuts) and cuts[place] == time_ns:
            return True
        if time_ns < added_until_ns:
            return False
        cuts.insert(place, time_ns)
        self._tidy_cuts(host, cuts)
        return True

    def cut_all(self, host: int, times_ns: Sequence[int]) -> None:
        """As `cut` at several times from which on no row has been added."""
        cuts = self._cuts.setdefault(host, [])
        for time_ns in times_ns:
            if not cuts or time_ns > cuts[-1]:
                cuts.append(time_ns)
            else:
                place = bisect_left(cuts, time_ns)
                if cuts[place] != time_ns:
                    cuts.insert(place, time_ns)
        self._tidy_cuts(host, cuts)

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
        found = _counted(of_host, label, count, key, payload_bytes)
        if found is None:
            some = np.flatnonzero(payload_bytes > 0)
            found = _summed(host[some], np.repeat(label, count)[some], key[some], payload_bytes[some])
        self._blocks.add(found, until_ns)

    def between(self, host: _Numbers, start_ns: _Numbers, end_ns: _Numbers) -> Sums:
        """Payload of [start, end) of hosts by key; arrays (questions,)."""
        parts = [
            (question, block.columns["key"][row], block.columns["payload_bytes"][row])
            for block, question, row in self._blocks.within("label", host, start_ns, start_ns, end_ns)
        ]
        if not parts:
            return Sums(*(np.empty(0, np.int64) for _ in range(3)))
        return Sums(*sums_by_two(*(np.concatenate(column) for column in zip(*parts, strict=True))))

    def forget(self, before_ns: _Numbers, now_ns: _Numbers) -> None:
        """Drop of each host what lies before before_ns and is not young; of what is old keep the sums between cuts."""
        old = now_ns - _KEPT_NS
        since = self._since = np.minimum(before_ns, old)
        if self._blocks.forget(since):
            self._tidy(since, old)

    def _tidy(self, since: _Numbers, old: _Numbers) -> None:
        block = self._blocks.take_aside()
        if block is None:
            return
        host, label = block.columns["host"], block.columns["label"]
        last_cut = self._last_cut(host, label, len(since))
        stay = label >= since[host]
        label = np.where(label < old[host], np.maximum(last_cut, since[host]), label)
        columns = {"host": host, "label": label, **{n: block.columns[n] for n in ("key", "payload_bytes")}}
        kept = {name: column[stay] for name, column in columns.items()}
        self._blocks.put_aside(_summed(*kept.values()), block.until_ns)

    def drop(self, host: int) -> None:
        """The host is gone."""
        self._cuts.pop(host, None)
        self._blocks.drop(host)

    def _last_cut(self, host: _Numbers, time_ns: _Numbers, hosts: int) -> _Numbers:
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
        place = GroupedValues(of_host, times, hosts).places(host, time_ns) - 1
        there = (place >= 0) & (of_host[place] == host)
        return np.where(there, times[place], np.iinfo(np.int64).min)


def _counted(
    host: _Numbers, label: _Numbers, count: _Numbers, key: _Numbers, payload_bytes: npt.NDArray[np.integer]
) -> dict[str, npt.NDArray[Any]] | None:
    """As _summed, without sorting, where hosts and labels ascend and there are few keys; else None.

    host, label: of so many rows each, as `count` says; key, payload_bytes: of each row.
    """
    first = starts(host, label)
    keys = int(key.max()) + 1
    ascending = (host[1:] > host[:-1]) | ((host[1:] == host[:-1]) & (label[1:] >= label[:-1]))
    if len(first) * keys > _MOST_CELLS * len(key) or not ascending.all():
        return None
    rows = np.add.reduceat(count, first)
    cell = np.repeat(np.arange(len(first)) * keys, rows) + key
    sums = np.bincount(cell, weights=payload_bytes, minlength=len(first) * keys)
    there = np.flatnonzero(sums)
    group = first[there // keys]
    amounts = sums[there].astype(np.int64)
    return {"host": host[group], "label": label[group], "key": there % keys, "payload_bytes": amounts}


def _summed(host: _Numbers, label: _Numbers, key: _Numbers, payload_bytes: _Numbers) -> dict[str, npt.NDArray[Any]]:
    order = order_by(host, label, key)
    host, label, key = host[order], label[order], key[order]
    first = starts(host, label, key)
    amounts = np.add.reduceat(payload_bytes[order], first) if len(first) else payload_bytes
    return {"host": host[first], "label": label[first], "key": key[first], "payload_bytes": amounts}
