# SPDX-License-Identifier: Apache-2.0
"""What the kernel has counted, as tables: reads bpf/meter.c's maps through mapped memory, without privilege.

Exactness. A bucket is delivered either by its record in its CPU's ring, or, where its flow went quiet, by reading it in
its slot once it is older than STALE_NS. The kernel does not know of the latter and sends the record of such a
bucket all the same when the next packet comes; it is recognised by slot, generation and time, and only what it
has beyond the delivered counts is added (nothing, unless the program was interrupted in the middle). If the ring was
full at that moment, the kernel has counted as lost what had been delivered already; `ledger` takes that off.
SlotStates says which slots are looked at, and why no other one can have an open bucket.

Order. The programs of a CPU publish a record after they have rewritten its slot, and the opening of a flow after the
last bucket of the flow that it displaces and before the first one of its own. So the buckets are looked at first and
the openings second: these are then at least those that the buckets are of. A displaced flow's last bucket may come with
the next drain, and no later: until then the slot's flow is remembered. A record without any opening is logged once and
counted as lost: no other flow gets its bytes.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.flow_numbers import HALF, LOWER, PACKETS_SHIFT, FlowNumbers, New, UnnamedSlots, Words
from netmon.kernel.meter.memory import Fence, Geometry, MeterMemory
from netmon.native import loops_over_rows
from netmon.records import BUCKET, COUNTED, KERNEL_BUCKET, KERNEL_FLOW, KERNEL_LEDGER, SLOT, Table, distinct, empty

# --- Which slots have an open bucket that nobody has delivered, and what was delivered out of slots.

_LOST = tuple(name.removeprefix("lost_") for name in KERNEL_LEDGER.names or () if name.startswith("lost_"))
_LIVE, _TAKEN = 1, 2  # 0: never used
_compiled = loops_over_rows(COUNTED)
_NAMES = tuple(name for name in SLOT.names or () if name != "key")
_TAKEN_OUT = np.dtype([*((name, SLOT[name].str) for name in _NAMES), ("link", "<u4")], align=True)

Slots = npt.NDArray[np.intp]
_NONE: Slots = np.zeros(0, np.intp)


class SlotArrays(NamedTuple):
    """Of every slot. What was never used costs no memory."""

    flows: npt.NDArray[np.uint32]
    generations: npt.NDArray[np.uint16]
    """As far as its openings are known."""
    states: npt.NDArray[np.uint8]
    taken: Table

    @staticmethod
    def unused(count: int) -> "SlotArrays":
        arrays = [np.zeros(count, dtype) for dtype in (np.uint32, np.uint16, np.uint8, _TAKEN_OUT)]
        return SlotArrays(*arrays)


class SlotStates:
    """Of every slot."""

    def __init__(self, memory: MeterMemory, arrays: SlotArrays, fence: Fence) -> None:
        self._fence = fence
        self._arrays, self._states, self._taken = arrays, arrays.states, arrays.taken
        self._kernel = memory.slots
        self._words = memory.slots.view(np.uint64).reshape(len(memory.slots), -1)
        self._times, self._losses = memory.slots["bucket_start_ns"], memory.slots["losses"]
        self._link_protocols = memory.slots["key"]["link_protocol"]
        self._cpu_losses = memory.producers["losses"]
        self._losses_seen = self._cpu_losses.copy()
        self._per_cpu = len(memory.slots) // len(memory.producers)
        self._live: Slots = _NONE
        self._newly_live: list[Slots] = []
        self.recovered = np.zeros((memory.ledger.shape[1], len(_LOST)), np.int64)
        """By link: what was delivered, though the kernel counts it as lost; what was not is taken off."""

    @property
    def live(self) -> int:
        return len(self._live) + sum(map(len, self._newly_live))

    @property
    def lost(self) -> bool:
        """Whether buckets have been lost since `unrecorded` was called."""
        return bool((self._cpu_losses != self._losses_seen).any())

    def open_slots(self, slots: Slots) -> None:
        """Flows have taken these slots. To be called before the records that were found with them."""
        self._enliven(distinct(slots[self._states[slots] == 0]))

    def _enliven(self, slots: Slots) -> None:
        self._states[slots] = _LIVE
        self._newly_live.append(slots)

    def unrecorded(self) -> Slots:
        """Taken slots that have lost a bucket since. To be called before the rings are looked at."""
        losses = self._cpu_losses.copy()
        cpus = np.flatnonzero(losses != self._losses_seen)
        if not len(cpus):
            return _NONE
        self._losses_seen = losses
        self._fence()
        found = []
        for begin in (cpus * self._per_cpu).tolist():
            taken = begin + np.flatnonzero(self._states[begin : begin + self._per_cpu] == _TAKEN)
            found.append(taken[self._losses[taken] != self._taken["losses"][taken]])
        return np.concatenate(found)

    def name(self, words: Words, changes: "SlotHolders") -> tuple[int, tuple[int, int] | None]:
        """Records of closed buckets (n, 3), those of a CPU in order, become rows in place; the first ones stay.

        Returns how many, without those in which nothing is left and those of which nobody knows the flow, and slot and
        generation of the first of these. changes: of the latest openings.
        """
        return self._name_compiled(words, changes) if _compiled else self._name(words, changes)

    def _name_compiled(self, words: Words, changes: "SlotHolders") -> tuple[int, tuple[int, int] | None]:
        assert _compiled
        live = np.empty(len(words), np.intp)
        left, enlivened, unknown, *first = _compiled.name_records(
            words, self._arrays, self._kernel, changes.columns, self.recovered, live
        )
        self._newly_live.append(live[:enlivened])
        return left, tuple(first) if unknown else None

    def _name(self, words: Words, changes: "SlotHolders") -> tuple[int, tuple[int, int] | None]:
        """The same without what is compiled."""
        left, first = 0, None
        for begin in range(0, len(words), _CHUNK):
            chunk = words[begin : begin + _CHUNK]
            last = chunk[:, 2].copy()
            slots: Slots = (last & LOWER).view(np.intp)
            generations = (last >> HALF).astype(np.uint16)
            flow_ids = self._arrays.flows[slots]
            changed = np.flatnonzero(self._arrays.generations[slots] != generations)
            flow_ids[changed] = changes.find(slots[changed], generations[changed])
            chunk[:, 2] = flow_ids | last >> PACKETS_SHIFT << HALF
            rows: Table = chunk.reshape(-1).view(BUCKET)
            keep = flow_ids != 0
            keep[self._add_records(rows, slots, generations)] = False
            unknown = np.flatnonzero(flow_ids == 0)
            if len(unknown):
                self._give_up(rows[unknown], slots[unknown])
                first = first or (int(slots[unknown[0]]), int(generations[unknown[0]]))
            kept = chunk[keep]
            words[left : left + len(kept)] = kept
            left += len(kept)
        return left, first

    def _add_records(self, rows: Table, slots: Slots, generations: npt.NDArray[np.uint16]) -> Slots:
        """Takes off what was delivered out of the slots. Returns the rows in which nothing is left."""
        others = np.flatnonzero(self._states[slots] != _LIVE)
        if len(others):
            others = others[~self._earlier(rows[others], slots[others], generations[others])]
        if not len(others):
            return _NONE
        first, at = np.unique(slots[others], return_index=True)
        at = others[at]
        taken = self._states[first] == _TAKEN
        same = taken & (self._taken["bucket_start_ns"][first] == rows["bucket_start_ns"][at])
        same &= self._taken["generation"][first] == generations[at]
        again, delivered = at[same], self._taken[first[same]]
        for name in COUNTED:
            rows[name][again] -= delivered[name]
        self._recover(first[taken & ~same])  # a later record: there will be none of what was taken
        self._enliven(first)
        empty: Slots = again[~np.any([rows[name][again] for name in COUNTED], axis=0)]
        return empty

    def _earlier(self, rows: Table, slots: Slots, generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Which are of buckets before the one that was taken: they say nothing of it.

        A program reads the clock first. Where the machine stands still then, a bucket is old as soon as it is open: it
        may be taken before the record of the one before it is published.
        """
        turn = (generations - self._taken["generation"][slots]).view(np.int16)
        before: npt.NDArray[np.bool_] = self._states[slots] == _TAKEN
        before &= (turn < 0) | ((turn == 0) & (rows["bucket_start_ns"] < self._taken["bucket_start_ns"][slots]))
        return before

    def _give_up(self, rows: Table, slots: Slots) -> None:
        """Records of which nobody knows the flow: they are lost, on the link of the flow that has the slot now."""
        links = self._link_protocols[slots] >> 8
        for i, name in enumerate(_LOST):
            np.subtract.at(self.recovered[:, i], links, rows[name])

    def recover(self, slots: Slots) -> None:
        """Of these, those whose taken bucket has had no record meanwhile: the kernel has counted it as lost."""
        slots = slots[self._states[slots] == _TAKEN]
        self._recover(slots)
        self._enliven(slots)

    def _recover(self, slots: Slots) -> None:
        taken = self._taken[slots]
        for i, name in enumerate(_LOST):
            np.add.at(self.recovered[:, i], taken["link"], taken[name])

    def take_quiet(self, before_ns: int, words: Words) -> int:
        """The buckets of live slots that began before then, as records (KERNEL_BUCKET). words: (live, 3), filled in.

        Returns how many there are.
        """
        self._live, self._newly_live = np.concatenate([self._live, *self._newly_live]), []
        if not len(self._live):
            return 0
        return self._take_compiled(before_ns, words) if _compiled else self._take(before_ns, words)

    def _take_compiled(self, before_ns: int, words: Words) -> int:
        assert _compiled
        left, count = _compiled.take_quiet(self._kernel, self._arrays, self._live, before_ns, words)
        self._live = self._live[:left]
        return int(count)

    def _take(self, before_ns: int, words: Words) -> int:
        """The same without what is compiled."""
        quiet = self._live[self._times[self._live] < before_ns]
        first = self._words[quiet]
        self._fence()
        # A slot that a program is just rewriting reads differently twice (bpf/meter.c, open_bucket).
        unchanged = (first == self._words[quiet]).all(axis=1)
        values: Table = first.view(SLOT)[:, 0]
        unchanged &= values["generation"] == self._arrays.generations[quiet]
        quiet, values = quiet[unchanged], values[unchanged]
        for name in _NAMES:
            self._taken[name][quiet] = values[name]
        self._taken["link"][quiet] = values["key"]["link_protocol"] >> 8
        self._states[quiet] = _TAKEN
        self._live = self._live[self._states[self._live] == _LIVE]
        records: Table = words[: len(quiet)].reshape(-1).view(KERNEL_BUCKET)
        records["slot"] = quiet
        for name in ("bucket_start_ns", "generation", *COUNTED):
            records[name] = values[name]
        return len(quiet)


# --- Which flow had a slot in which generation, of the latest changes.


@dataclass(frozen=True)
class SlotHolders:
    """Three columns."""

    slots: npt.NDArray[np.uint32]
    generations: npt.NDArray[np.uint16]
    flow_ids: npt.NDArray[np.uint32]

    @staticmethod
    def none() -> "SlotHolders":
        return SlotHolders(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.uint32))

    def __len__(self) -> int:
        return len(self.slots)

    def and_also(self, other: "SlotHolders") -> "SlotHolders":
        return SlotHolders(
            np.concatenate([self.slots, other.slots]),
            np.concatenate([self.generations, other.generations]),
            np.concatenate([self.flow_ids, other.flow_ids]),
        )

    @property
    def columns(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
        return self.slots, self.generations, self.flow_ids

    def renamed(self, flow_ids: Mapping[int, int]) -> "SlotHolders":
        ids = self.flow_ids.copy()
        others = np.flatnonzero(np.isin(ids, np.fromiter(flow_ids, np.uint32, len(flow_ids))))
        ids[others] = [flow_ids[i] for i in ids[others].tolist()]
        return SlotHolders(self.slots, self.generations, ids)

    def find(self, slots: npt.NDArray[np.intp], generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint32]:
        """The flows of these (slot, generation); 0: of one that is not here."""
        if not len(self):
            return np.zeros(len(slots), np.uint32)
        (known, flow_ids), wanted = self._in_order, _joined(slots, generations)
        at = np.minimum(np.searchsorted(known, wanted), len(self) - 1)
        return np.where(known[at] == wanted, flow_ids[at], np.uint32(0))

    @cached_property
    def _in_order(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Slots with their generations, ascending, and the flows of these. Sorted once for all records of a drain."""
        known = _joined(self.slots, self.generations)
        order = np.argsort(known)
        return known[order], self.flow_ids[order]


def _joined(slots: npt.NDArray[np.integer], generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
    return slots.astype(np.uint64) << np.uint64(16) | generations


# --- A growing table of bucket rows whose memory is used again: fresh pages would cost more than the rows.

_WORDS = BUCKET.itemsize // 8
_FIRST_CAPACITY = 1 << 16


class RowBuffer:
    """Rows of BUCKET, appended in place."""

    def __init__(self) -> None:
        """Empty, with room for 65,536 rows."""
        self._memory = np.zeros((_FIRST_CAPACITY, _WORDS), np.uint64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def grow(self, count: int) -> npt.NDArray[np.uint64]:
        """Room for `count` more rows, to be filled by the caller: (count, words)."""
        needed = self._used + count
        if needed > len(self._memory):
            larger = np.zeros((max(needed, 2 * len(self._memory)), _WORDS), np.uint64)
            larger[: self._used] = self._memory[: self._used]
            self._memory = larger
        start, self._used = self._used, needed
        return self._memory[start:needed]

    def shrink(self, length: int) -> None:
        """Gives up what lies beyond this length."""
        self._used = length

    def table(self, start: int = 0) -> Table:
        """The rows from `start` on, in place: valid until rows are given up."""
        rows: Table = self._memory[start : self._used].reshape(-1).view(BUCKET)
        return rows


# --- Rings of records, one per CPU, as bpf/meter.c fills them: contiguous in mapped memory, without headers.

Positions = npt.NDArray[np.uint64]


class CpuRings:
    """The only reader of one kind of records. A look at idle rings costs one comparison of two columns."""

    def __init__(self, records: npt.NDArray[Any], produced: Positions, consumed: Positions) -> None:
        """records: (cpus, size, …), size a power of two; produced, consumed: (cpus,), live, of their positions."""
        self._records, self._produced, self._consumed = records, produced, consumed
        self._size = records.shape[1]
        self._begin, self._end = consumed.copy(), consumed.copy()
        self.waiting = 0
        """Records that the last look found."""

    def poll(self) -> None:
        """Takes in how far the programs are. A fence belongs between this and reading the records."""
        self._end = self._produced.copy()
        counts = self._end - self._begin
        self.waiting = int(counts.sum())

    def parts(self, most: int) -> Iterator[npt.NDArray[Any]]:
        """The records found, in the mapped memory: at most so many at a time, of one CPU, its oldest first."""
        for cpu in np.flatnonzero(self._begin != self._end).tolist():
            position, end = int(self._begin[cpu]), int(self._end[cpu])
            while position < end:
                at = position & (self._size - 1)
                count = min(end - position, self._size - at, most)
                yield self._records[cpu, at : at + count]
                position += count

    def release(self) -> None:
        """Gives the room of the records found back to the programs. A fence belongs before this, too."""
        if self.waiting:
            self._begin = self._end
            self._consumed[:] = self._end


# --- meter


log = logging.getLogger(__name__)

STALE_NS = 30_000_000
"""A bucket that ended so long ago is taken from its slot."""

_LEDGER_COUNTERS = tuple(name for name in KERNEL_LEDGER.names or () if name != "pad")

_CHUNK = 4_096
"""Records handled at a time, so that the columns of one pass are still in the cache for the next."""


class Waiting(NamedTuple):
    """What a drain would find. level: how full the fullest ring is, 0 to 1; opened: flows have taken slots."""

    anything: bool
    opened: bool
    level: float


@dataclass(frozen=True)
class Drained:
    """One drain. buckets: dtype BUCKET, in the meter's `rows`; new: the flows that have ids of their own since."""

    buckets: Table
    new: New


def _positions(ends: Table) -> Words:
    """Of buckets and flows, (cpus, 2), live."""
    words: Words = ends.view(np.uint64).reshape(len(ends), -1)[:, :2]
    return words


_NOTHING = Drained(empty(BUCKET), FlowNumbers().take_new())


class Meter:
    """The reading end of one loaded meter. Not thread-safe; never blocks."""

    def __init__(self, memory: MeterMemory, geometry: Geometry, numbers: FlowNumbers | None = None) -> None:
        """memory: of that geometry. numbers: what the flows are called; None for the default budgets."""
        self.geometry = geometry
        self.rows = RowBuffer()
        """What has been drained; the caller gives it up by `rows.shrink(0)` when it is done with it."""
        produced, consumed = memory.producers, memory.consumers
        self._buckets = CpuRings(memory.buckets, produced["buckets"], consumed["buckets"])
        self._flows = CpuRings(memory.flows, produced["flows"], consumed["flows"])
        self._producers, self._taken = produced, b""  # as they were when all that they had produced was taken
        self._positions, self._consumed = _positions(produced), _positions(consumed)
        self._sizes = np.array([geometry.ring_records, geometry.flow_records])
        self._ledger = memory.ledger
        self._fence = Fence()
        self._arrays = SlotArrays.unused(len(memory.slots))
        self.slots = SlotStates(memory, self._arrays, self._fence)
        self.numbers = FlowNumbers() if numbers is None else numbers
        self._unnamed = UnnamedSlots(self.numbers, memory.slots, self._arrays.flows, self._arrays.generations)
        self._displaced = SlotHolders.none()
        self._flow_missing = False  # a flow's opening was missing
        self._now_ns = 0

    def poll(self) -> Waiting:
        """Costs a hundredth of a drain."""
        produced = self._producers.tobytes()
        if produced == self._taken:  # by far the cheapest way to see that there is nothing
            return Waiting(self.slots.live > 0, False, 0.0)
        closed, opened = ((self._positions - self._consumed).max(axis=0) / self._sizes).tolist()
        anything = closed > 0 or opened > 0 or self.slots.lost
        if not anything:
            self._taken = produced
        return Waiting(anything or self.slots.live > 0, opened > 0, max(closed, opened))

    def drain(self, now_ns: int) -> Drained:
        """Everything closed so far, and what ended more than STALE_NS before now_ns (mono).

        Rows come in no particular order, and more than one may be of the same flow and bucket: they add up.
        """
        self._now_ns = now_ns
        produced = self._producers.tobytes()
        if produced == self._taken and not self.slots.live:
            return _NOTHING
        self._taken = produced
        unrecorded = self.slots.unrecorded()
        self._fence()
        self._buckets.poll()
        self._fence()
        self._flows.poll()
        self._fence()
        openings = self._openings()
        ids = self.numbers.number(openings["key"], now_ns)
        opened = SlotHolders(openings["slot"], openings["generation"], ids)
        begin = len(self.rows)
        if len(opened):
            self.slots.open_slots(opened.slots.astype(np.intp))
        self._closed(opened)
        self._fence()
        self._buckets.release()
        self._flows.release()
        self._assign(opened)
        self.slots.recover(unrecorded)
        self._take_quiet(now_ns)
        self._unnamed.promote(now_ns)
        return Drained(self.rows.table(begin), self.numbers.take_new())

    def forget(self, flow_ids: Iterable[int]) -> None:
        """These flows are over: their ids are not used any more. What comes of one is a new flow, or its aggregate's.

        To be called when what was drained has been taken from `rows`.
        """
        indices = self._unnamed.forget(flow_ids)
        self._displaced = self._displaced.renamed(indices)

    def ledger(self) -> dict[int, dict[str, int]]:
        """Counters by link and name of KERNEL_LEDGER, over all CPUs, as they are now. Links that saw nothing have none.

        A link is its interface's number << 1 | direction. The number is 0 where nobody gave it one.
        """
        links: dict[int, dict[str, int]] = {}
        words: Words = self._ledger.view(np.uint64).reshape(*self._ledger.shape, -1)
        for link, totals in enumerate(words.sum(axis=0).tolist()):
            counters = dict(zip(_LEDGER_COUNTERS, totals, strict=False))  # the rest is padding
            if not counters["frames"]:
                continue
            for name, count in zip(_LOST, self.slots.recovered[link].tolist(), strict=True):
                counters[f"lost_{name}"] -= count
            links[link] = counters
        return links

    def _openings(self) -> Table:
        openings, copied = np.empty(self._flows.waiting, KERNEL_FLOW), 0
        for part in self._flows.parts(self.geometry.flow_records):
            openings[copied : copied + len(part)] = part
            copied += len(part)
        return openings

    def _closed(self, opened: SlotHolders) -> None:
        if not self._buckets.waiting:
            return
        begin = len(self.rows)
        words, copied = self.rows.grow(self._buckets.waiting), 0
        for part in self._buckets.parts(self.geometry.ring_records):
            words[copied : copied + len(part)] = part
            copied += len(part)
        self._unnamed.carry(words, self._now_ns)
        left, unknown = self.slots.name(words, self._displaced.and_also(opened))
        if unknown:
            self._doubt(*unknown)
        self.rows.shrink(begin + left)

    def _doubt(self, slot: int, generation: int) -> None:
        """The kernel has reported no flow that had this slot in this generation, which its programs never do."""
        if not self._flow_missing:
            log.warning(
                "buckets of a flow that the kernel has not reported are counted as lost: slot %d, generation %d "
                "where %d is known",
                *(slot, generation, self._arrays.generations[slot]),
            )
        self._flow_missing = True

    def _assign(self, opened: SlotHolders) -> None:
        slots, (flows, generations, *_) = opened.slots, self._arrays
        self._displaced = SlotHolders(slots, generations[slots], flows[slots]).and_also(opened)
        flows[slots] = opened.flow_ids  # of a slot's openings the last one stays
        generations[slots] = opened.generations
        self._unnamed.open(slots, opened.flow_ids)

    def _take_quiet(self, now_ns: int) -> None:
        begin = len(self.rows)
        words = self.rows.grow(self.slots.live)
        words = words[: self.slots.take_quiet(now_ns - STALE_NS - self.geometry.bucket_ns, words)]
        self.rows.shrink(begin + len(words))
        if len(words):
            self._unnamed.carry(words, now_ns)
            slots = (words[:, 2] & LOWER).view(np.intp)
            words[:, 2] = self._arrays.flows[slots] | words[:, 2] >> PACKETS_SHIFT << HALF
