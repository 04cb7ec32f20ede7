# SPDX-License-Identifier: Apache-2.0
"""Flow keys → flow ids: an id of its own, or its aggregate's."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.native import compiled, loops_over_rows
from netmon.rate_limiter import RateLimiter
from netmon.records import COUNTED, FLOW_KEY, Table, distinct

Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.uint32]

# The third word of KERNEL_BUCKET is slot | generation << 32 | packets << 48, of BUCKET flow_id | packets << 32.
HALF, PACKETS_SHIFT, LOWER = np.uint64(32), np.uint64(48), np.uint64(0xFFFFFFFF)

# --- Names of one length → their numbers.


def _numbers_of(numbers: dict[bytes, int], names: npt.NDArray[np.void]) -> Ids:
    """names: (n,) → (n,); 0: it has none."""
    found = np.empty(len(names), np.uint32)
    if compiled:
        compiled.numbers_of(numbers, names, names.itemsize, found)
    else:
        found[:] = [numbers.get(name, 0) for name in names.tolist()]
    return found


# --- Aggregates: flows of one remote prefix, or of one service, under one id.

_V4_WORD, _V4_BITS = np.uint64(0xFFFF0000), np.uint64(0xFFFFFFFF)  # bytes 8 to 11 of ::ffff:a.b.c.d
_NOTHING, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class _Level:
    """bits: of the prefix, IPv4 and IPv6; masks: on the second word of the one, the first of the other."""

    bits: tuple[int, int]
    masks: tuple[np.uint64, np.uint64]
    most: int  # aggregates of it


# Words are little-endian: the first bytes of an address are a word's low ones.
_LEVELS = (
    _Level((24, 48), (np.uint64(0x00FFFFFF_FFFFFFFF), np.uint64(0x0000FFFF_FFFFFFFF)), 1024),
    _Level((8, 16), (np.uint64(0x000000FF_FFFFFFFF), np.uint64(0xFFFF)), 1024),
    _Level((0, 0), (_V4_BITS, _NOTHING), 1 << 32),  # as many as there are links, protocols and families
)
_PORT_SHIFT, _LEVEL_SHIFT = 32, 48  # in a name's last word, above FLOW_KEY's link_protocol
_REMOTE = 7  # a level of its own: a service elsewhere
_MOST_REMOTE = 1024


@dataclass
class Aggregate:
    """One of them. address: the remote prefix, 16 bytes; members: how often a flow of it has appeared."""

    flow_id: int
    link_protocol: int  # as in FLOW_KEY
    address: bytes
    prefix_bits: int  # of the address as it is written
    local_port: int = 0  # of a service that one process alone serves; then every remote address is meant
    remote_port: int = 0  # of a service to which one process alone talks; then the address is meant whole
    members: int = 0


class Aggregates:
    """All aggregates of a session. They stay."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        """new_id: gives a flow id that nobody has."""
        self._new_id = new_id
        self._ids: dict[bytes, int] = {}  # by name
        self._counts = [0] * len(_LEVELS)
        self.by_id: dict[int, Aggregate] = {}
        self.services = np.zeros((2, 1 << 16), bool)
        """Of TCP and UDP, the local ports that one process alone serves, as its owner's flows have shown."""
        self._remote = np.zeros(0, np.uint64)  # _service_hash of each, sorted

    def know_remote(self, services: Iterable[tuple[int, bytes, int]]) -> None:
        """services: (protocol, address of 16 bytes, port) elsewhere to which one process alone talks, all of them."""
        rows = np.array([(*np.frombuffer(address, "<u8"), p, port) for p, address, port in services], np.uint64)
        rows = rows.reshape(-1, 4)[-_MOST_REMOTE:]
        self._remote = np.sort(_service_hash(rows[:, :2], rows[:, 2], rows[:, 3]))

    def number(self, keys: Table, counted: bool = True) -> Ids:
        """keys: (n,) FLOW_KEY → the ids of their aggregates (n,). counted: they are new members."""
        ids = np.zeros(len(keys), np.uint32)
        words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, 5)
        open_ = np.arange(len(keys))
        for level, what in enumerate(_LEVELS):
            names = self._names(words[open_], level, what)
            found = _numbers_of(self._ids, names)
            new = np.flatnonzero(found == 0)
            if len(new) and self._counts[level] < what.most:
                for name in dict.fromkeys(names[new].tolist()):
                    self._make(name, level, what)
                found[new] = _numbers_of(self._ids, names[new])
            ids[open_] = found
            open_ = open_[found == 0]
            if not len(open_):
                break
        for flow_id, count in zip(*_counts_of(ids), strict=True) if counted else ():
            self.by_id[flow_id].members += count
        return ids

    def _make(self, name: bytes, level: int, what: _Level) -> None:
        """Unless there are as many of this level as there may be."""
        if self._counts[level] < what.most:
            self._counts[level] += 1
            aggregate = _described(self._new_id(), name, what)
            self._ids[name] = aggregate.flow_id
            self.by_id[aggregate.flow_id] = aggregate

    def _names(self, words: Words, number: int, level: _Level) -> npt.NDArray[np.void]:
        """(n, 5) words of keys → what their aggregates are called (n,): address, link and protocol, port, level."""
        link_protocol = words[:, 4] >> np.uint64(32)
        sends = (link_protocol >> np.uint64(8) & np.uint64(1)).astype(bool)
        remote = np.where(sends[:, None], words[:, 2:4], words[:, 0:2])
        four = (remote[:, 0] == 0) & (remote[:, 1] & _V4_BITS == _V4_WORD)
        masks_of_four, masks_of_six = (_ALL, level.masks[0]), (level.masks[1], _NOTHING)
        names = np.empty((len(words), 3), np.uint64)
        for i in range(2):
            names[:, i] = remote[:, i] & np.where(four, masks_of_four[i], masks_of_six[i])
        names[:, 2] = link_protocol | np.uint64(number << _LEVEL_SHIFT)
        protocol, local = _protocol(link_protocol), _local_ports(words[:, 4], sends)
        in_use = (protocol >= 0) & self.services[protocol.clip(0), local]
        if in_use.any():
            names[in_use, 0], names[in_use, 1] = 0, np.where(four[in_use], _V4_WORD, _NOTHING)
            names[in_use, 2] |= local[in_use].astype(np.uint64) << np.uint64(_PORT_SHIFT)
        if len(self._remote):
            port = _local_ports(words[:, 4], ~sends).astype(np.uint64)
            known = np.isin(_service_hash(remote, link_protocol & np.uint64(0xFF), port), self._remote) & ~in_use
            names[known, :2] = remote[known]
            names[known, 2] = link_protocol[known] | port[known] << np.uint64(_PORT_SHIFT)
            names[known, 2] |= np.uint64(_REMOTE << _LEVEL_SHIFT)
        return names.view("V24").ravel()


def _counts_of(ids: Ids) -> tuple[list[int], list[int]]:
    """(n,) → each of them once, and how often."""
    ids, counts = np.unique(ids, return_counts=True)
    return ids.tolist(), counts.tolist()


def _service_hash(address: Words, protocol: Words, port: Words) -> Words:
    """address: (n, 2); protocol, port: (n,) → (n,). Two services with one hash would be taken for each other's."""
    mixed = address[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ address[:, 1] * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0x94D049BB133111EB) ^ (protocol << np.uint64(16) | port)
    hashed: Words = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
    return hashed


def _protocol(link_protocol: Words) -> npt.NDArray[np.intp]:
    """0 for TCP, 1 for UDP, −1 for all others."""
    number = link_protocol & np.uint64(0xFF)
    return np.where(number == 6, 0, np.where(number == 17, 1, -1)).astype(np.intp)


def _local_ports(last: Words, sends: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    ports = np.where(sends, last, last >> np.uint64(16)) & np.uint64(0xFFFF)  # in network order
    return ports.astype(np.uint16).byteswap()


def _described(flow_id: int, name: bytes, level: _Level) -> Aggregate:
    address, last = name[:16], int.from_bytes(name[16:], "little")
    four = address[:12] == bytes(10) + b"\xff\xff"
    port = last >> _PORT_SHIFT & 0xFFFF
    if last >> _LEVEL_SHIFT == _REMOTE:
        return Aggregate(flow_id, last & 0xFFFFFFFF, address, 32 if four else 128, remote_port=port)
    bits = 0 if port else level.bits[0 if four else 1]
    return Aggregate(flow_id, last & 0xFFFFFFFF, address, bits, port)


# --- Flow keys → flow ids, which are never used twice in a session: an id of its own, or its aggregate's.
#
# Whoever opens flows fast, a scan or a service, gets as many ids as the limit allows; the rest is accounted under
# aggregates. Nothing here walks records; only flows that took a slot are looked up.

_RAW = np.dtype("V40")
_AT_ONCE = 256  # names looked through while there is room for one
LAST_ID = (1 << 32) - 1

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

    def left(self, alive: int, now_ns: int) -> int:
        """How many may be described now, alongside those that are alive."""
        return max(0, min(self._alive - alive, int(self._limiter.left(now_ns))))

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
        """Called only when not all new flows can be described."""

    def __len__(self) -> int:
        """Flows that have an id of their own."""
        return len(self._ids)

    def number(self, keys: Table, now_ns: int) -> Ids:
        """keys: (n,) FLOW_KEY, as they opened → their ids (n,)."""
        names = np.ascontiguousarray(keys).view(_RAW)
        ids = _numbers_of(self._ids, names)
        unknown = self._describe_first(self._any, names, ids, np.flatnonzero(ids == 0), now_ns)
        if len(unknown):
            wanted = self._wanted(names[unknown])
            self._describe_first(self._training, names, ids, unknown[wanted], now_ns)
            crowd = np.flatnonzero(ids == 0)
            ids[crowd] = self.aggregates.number(names[crowd].view(FLOW_KEY))
        return ids

    def _describe_first(
        self, room: _Room, names: npt.NDArray[np.void], ids: Ids, unknown: npt.NDArray[np.intp], now_ns: int
    ) -> npt.NDArray[np.intp]:
        """Gives ids to the first of the unknown names, as many as there is room for; returns those that have none."""
        done = 0
        while done < len(unknown) and (left := room.left(len(self), now_ns)):
            some = names[unknown[done : done + max(left, _AT_ONCE)]].tolist()
            new = [name for name in dict.fromkeys(some) if name not in self._ids]  # one may have opened on two CPUs
            for name in new[: room.take(len(new), len(self), now_ns)]:
                self._describe(name)
            done += len(some)
        if done:
            ids[unknown] = _numbers_of(self._ids, names[unknown])
        still: npt.NDArray[np.intp] = unknown[ids[unknown] == 0]
        return still

    def _wanted(self, names: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Which are a job's ranks', or have a reverse direction that is described."""
        keys: Table = names.view(FLOW_KEY)
        wanted: npt.NDArray[np.bool_] = self.training(keys) | (_numbers_of(self._ids, reversed_keys(keys)) > 0)
        return wanted

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


def reversed_keys(keys: Table) -> npt.NDArray[np.void]:
    """(n,) FLOW_KEY → the same connections' other directions, on the same interface: raw, (n,)."""
    other = keys.copy()
    other["src"], other["dst"] = keys["dst"], keys["src"]
    other["src_port"], other["dst_port"] = keys["dst_port"], keys["src_port"]
    other["link_protocol"] = keys["link_protocol"] ^ np.uint32(1 << 8)
    return other.view(_RAW)


# --- Slots whose flow has no id of its own: how much each has transferred, and which are to be given one.
#
# Two kinds: members of an aggregate, which get an id once they are large; and flows that were forgotten while they had
# their slot, which get one as soon as they go on. All arrays are as long as the slots are, and touched where used.

LARGE_BYTES = 65_536
"""Wire bytes with which a flow of an aggregate gets an id of its own, for what follows."""

_NAMED, _MEMBER, _FORGOTTEN = range(3)
_compiled = loops_over_rows(COUNTED)

Slots = npt.NDArray[np.integer]
Generations = npt.NDArray[np.uint16]


class UnnamedSlots:
    """Works on a meter's arrays, of which it changes flow_of_slot."""

    def __init__(
        self, numbers: FlowNumbers, slots: Table, flow_of_slot: npt.NDArray[np.uint32], generation: Generations
    ) -> None:
        """slots: as the kernel writes them; flow_of_slot, generation: (slots,) as the meter has them."""
        self._numbers, self._slots = numbers, slots
        self._flow_of_slot, self._generation = flow_of_slot, generation
        self._kind = np.zeros(len(slots), np.uint8)
        self._bytes = np.zeros(len(slots), np.uint64)
        self._large: set[int] = set()
        self._any = False
        self._slots_of: dict[int, set[int]] = {}  # of flows with an id of their own

    def open(self, slots: Slots, flow_ids: npt.NDArray[np.uint32]) -> None:
        by_id = self._numbers.aggregates.by_id
        if by_id:
            members = np.isin(flow_ids, np.fromiter(by_id, np.uint32, len(by_id)))
            self._kind[slots] = np.where(members, _MEMBER, _NAMED)
            self._bytes[slots] = 0
            self._large.difference_update(slots.tolist() if self._large else ())
            self._any |= bool(members.any())
            slots, flow_ids = slots[~members], flow_ids[~members]
        for slot, flow_id in zip(slots.tolist(), flow_ids.tolist(), strict=True):
            self._slots_of.setdefault(flow_id, set()).add(slot)

    def carry(self, words: Words, now_ns: int) -> None:
        """Records of slots (KERNEL_BUCKET, (n, 3)), before they get their flows' ids."""
        if not self._any:
            return
        listed = self._count_compiled(words) if _compiled else self._count(words)
        for slot in distinct(listed[self._kind[listed] == _FORGOTTEN]).tolist():
            self._revive(slot, now_ns)
        self._large.update(listed[self._bytes[listed] >= LARGE_BYTES].tolist())

    def _count_compiled(self, words: Words) -> npt.NDArray[np.intp]:
        """Adds up what they hold of unnamed flows; returns the slots of these that are large or were forgotten."""
        assert _compiled
        listed = np.empty(len(words), np.intp)
        arrays = self._kind, self._generation, self._bytes
        return listed[: _compiled.count_unnamed(words, *arrays, LARGE_BYTES, listed)]

    def _count(self, words: Words) -> npt.NDArray[np.intp]:
        """The same without what is compiled."""
        last = words[:, 2]
        slots: npt.NDArray[np.intp] = (last & LOWER).view(np.intp)
        unnamed = (self._kind[slots] != _NAMED) & (self._generation[slots] == (last >> HALF).astype(np.uint16))
        slots = slots[unnamed]
        np.add.at(self._bytes, slots, words[unnamed, 1] & LOWER)
        listed: npt.NDArray[np.intp] = slots[(self._kind[slots] == _FORGOTTEN) | (self._bytes[slots] >= LARGE_BYTES)]
        return listed

    def promote(self, now_ns: int) -> None:
        """Gives ids to members that have become large, the largest first, as many as may be described."""
        for slot in sorted(self._large, key=lambda slot: -int(self._bytes[slot])):
            if self._kind[slot] == _MEMBER and (key := self._key(slot)):
                flow_id = self._numbers.promote(key, now_ns)
                if not flow_id:
                    return
                self._name(slot, flow_id)
            self._large.discard(slot)

    def forget(self, flow_ids: Iterable[int]) -> dict[int, int]:
        """As FlowNumbers.forget; slots that the flows hold are their aggregates' until they go on."""
        indices = self._numbers.forget(flow_ids)
        for flow_id, index in indices.items():
            for slot in self._slots_of.pop(flow_id, ()):
                if self._flow_of_slot[slot] == flow_id:
                    self._flow_of_slot[slot], self._kind[slot], self._bytes[slot] = index, _FORGOTTEN, 0
                    self._any = True
        return indices

    def _revive(self, slot: int, now_ns: int) -> None:
        self._kind[slot] = _MEMBER
        if key := self._key(slot):
            self._name(slot, self._numbers.revive(key, now_ns))

    def _name(self, slot: int, flow_id: int) -> None:
        self._flow_of_slot[slot] = flow_id
        if flow_id not in self._numbers.aggregates.by_id:
            self._kind[slot] = _NAMED
            self._slots_of.setdefault(flow_id, set()).add(slot)

    def _key(self, slot: int) -> bytes:
        """Of the flow that we know to hold it; empty where another has taken it, or takes it just now."""
        first, second = self._slots[slot].copy(), self._slots[slot].copy()
        if first["key"] != second["key"] or not first["generation"] == second["generation"] == self._generation[slot]:
            return b""
        key: bytes = first["key"].tobytes()
        return key
