# SPDX-License-Identifier: Apache-2.0
"""A file system of which a power cut leaves only what was synced, and of the rest any part that it may leave.

After ALICE (Pillai et al., OSDI 2014). What is assumed of a disk and its file system, and nothing more:

* What fsync and fdatasync of a file have returned for is there: all that was written to it before, and its size.
* fsync of a directory makes the names in it durable, as they are then.
* Of what was written to a file since, any blocks may be there and others not, and the last write may be torn at a
  sector. A block that was never written reads as zeros.
* Of the changes to names that were not synced, those of one name are there up to some point; those of different names
  come in any order. Two folders change places at once. A file that is renamed has one of its two names, or both.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from crash_trace import Op

BLOCK, SECTOR = 4096, 512


@dataclass(eq=False)
class File:
    """A file, or a folder, whatever its names are."""

    folder: bool
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and data; None: a new size
    live: bytearray = field(default_factory=bytearray)
    version: int = 0
    seen: dict[object, tuple[bytes, bytes]] = field(default_factory=dict)  # what has been made of this version


Slot = tuple[File, str]


@dataclass(eq=False)
class Change:
    """A name that stands for another file, or none, from now on. after: it is not there without this one."""

    slot: Slot
    file: File | None
    after: "Change | None" = None


Tree = dict[str, tuple[bytes, bytes] | None]
"""By path: a file's digest and content; None: a folder."""


class Model:
    """The files below one directory, which is there from the start."""

    def __init__(self) -> None:
        self.root = File(folder=True)
        self.names: dict[File, dict[str, File]] = {self.root: {}}  # as they are
        self.durable: dict[File, dict[str, File]] = {self.root: {}}
        self.changes: list[Change] = []  # that are not durable, in their order
        self.dirty: dict[File, None] = {}  # files with pending writes
        self._renamed = False  # since states were last asked for

    # What a program does

    def do(self, op: Op) -> None:
        getattr(self, f"_{op.kind}")(op)

    def _find(self, path: str) -> File | None:
        found: File | None = self.root
        for name in filter(None, path.split("/")):
            found = self.names[found].get(name) if found in self.names else None
        return found

    def _slot(self, path: str) -> Slot:
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        assert folder is not None, path
        return folder, name

    def _change(self, slot: Slot, file: File | None, after: Change | None = None) -> Change:
        folder, name = slot
        if file is None:
            self.names[folder].pop(name, None)
        else:
            self.names[folder][name] = file
        change = Change(slot, file, after)
        self.changes.append(change)
        self._renamed = True
        return change

    def _make(self, op: Op) -> None:
        if self._find(op.path) is None:
            self._change(self._slot(op.path), File(folder=False))

    def _mkdir(self, op: Op) -> None:
        if op.path:
            made = File(folder=True)
            self.names[made], self.durable[made] = {}, {}
            self._change(self._slot(op.path), made)

    def _link(self, op: Op) -> None:
        self._change(self._slot(op.to), self._find(op.path))

    def _rename(self, op: Op) -> None:
        file = self._find(op.path)
        assert file is not None, op
        there = self._change(self._slot(op.to), file)
        gone = self._change(self._slot(op.path), None, after=there)
        if file.folder:
            there.after = gone

    def _exchange(self, op: Op) -> None:
        one, other = self._find(op.path), self._find(op.to)
        first = self._change(self._slot(op.to), one)
        first.after = self._change(self._slot(op.path), other, first)

    def _unlink(self, op: Op) -> None:
        self._change(self._slot(op.path), None)

    _rmdir = _unlink

    def _write(self, op: Op) -> None:
        file = self._find(op.path)
        if file is None or file.folder:
            return  # it has no name any more
        end = op.offset + len(op.data)
        file.live.extend(bytes(max(0, end - len(file.live))))
        file.live[op.offset : end] = op.data
        self._touched(file, (op.offset, op.data))

    def _resize(self, op: Op) -> None:
        file = self._find(op.path)
        if file is None:
            return
        if op.offset != len(file.live):
            del file.live[op.offset :]
            file.live.extend(bytes(op.offset - len(file.live)))
            self._touched(file, (op.offset, None))

    def _touched(self, file: File, write: tuple[int, bytes | None]) -> None:
        file.pending.append(write)
        file.version += 1
        file.seen.clear()
        self.dirty[file] = None

    def _sync(self, op: Op) -> None:
        file = self._find(op.path)
        if file is None:
            return
        if file.folder:
            for change in [change for change in self.changes if change.slot[0] is file]:
                self._commit(change)
            self._forget_unreachable()
        elif file.pending:
            file.durable, file.pending = bytes(file.live), []
            file.seen.clear()
            self.dirty.pop(file, None)

    def _commit(self, change: Change) -> None:
        if change not in self.changes:
            return
        for earlier in [c for c in self.changes[: self.changes.index(change) + 1] if c.slot == change.slot]:
            if earlier in self.changes:
                self.changes.remove(earlier)
                folder, name = earlier.slot
                if earlier.file is None:
                    self.durable[folder].pop(name, None)
                else:
                    self.durable[folder][name] = earlier.file
                if earlier.after:
                    self._commit(earlier.after)

    def _forget_unreachable(self) -> None:
        """What changes in a folder that is gone for good cannot be seen."""
        reached, waiting = set[File](), [self.root, *(change.file for change in self.changes if change.file)]
        while waiting:
            file = waiting.pop()
            if file not in reached:
                reached.add(file)
                waiting += self.durable.get(file, {}).values()
        self.changes = [change for change in self.changes if change.slot[0] in reached]

    # What a power cut leaves

    def states(self, chance: random.Random, draws: int) -> Iterator[Tree]:
        """What may be found after a power cut now: the plain cases, each thing alone lost or kept, and some by lot.

        Each name alone, where names have changed since this was last asked: until they do, they are combined by lot.
        """
        changes, dirty = self.changes, list(self.dirty)
        everything, nothing = range(len(changes)), range(0)
        for kept, how in ((everything, "all"), (nothing, "none"), (everything, "none"), (nothing, "all")):
            yield self.tree(kept, dict.fromkeys(dirty, how))
        several, self._renamed = self._renamed and len(changes) + len(dirty) > 1, False
        for number in range(len(changes)) if several else ():
            rest = [other for other in everything if other != number]
            for kept in (rest, [number], range(number)):
                yield self.tree(kept, dict.fromkeys(dirty, "all"))
        for file in dirty:
            for one, others in (("none", "all"), ("all", "none")):
                yield self.tree(everything, dict.fromkeys(dirty, others) | {file: one})
        for _ in range(draws if changes or dirty else 0):
            kept = [number for number in everything if chance.random() < 0.5]
            how = {file: chance.choice(("all", "none", chance.getrandbits(32))) for file in dirty}
            yield self.tree(kept if chance.random() < 0.7 else everything, how)

    def tree(self, kept: Iterable[int], how: Mapping[File, object]) -> Tree:
        """kept: of the changes, by number, with all that they do not go without.

        how: of a file, what of its pending writes is there: "all", "none", or a number to draw it from.
        """
        names: dict[File, dict[str, File]] = {}
        for change in self._closed(kept):
            folder, name = change.slot
            own = names.setdefault(folder, dict(self.durable[folder]))
            if change.file is None:
                own.pop(name, None)
            else:
                own[name] = change.file
        found: Tree = {}
        self._walk(self.root, "", names, how, found)
        return found

    def _closed(self, kept: Iterable[int]) -> list[Change]:
        """A name's changes are there up to some point: who keeps a later one has those before it too."""
        chosen: set[Change] = set()
        waiting = [self.changes[number] for number in kept]
        while waiting:
            change = waiting.pop()
            if change not in chosen:
                chosen.add(change)
                before = self.changes[: self.changes.index(change)]
                waiting += [earlier for earlier in before if earlier.slot == change.slot]
                waiting += [change.after] if change.after in self.changes else []
        return [change for change in self.changes if change in chosen]

    def _walk(
        self,
        folder: File,
        prefix: str,
        names: Mapping[File, dict[str, File]],
        how: Mapping[File, object],
        found: Tree,
    ) -> None:
        for name, file in names.get(folder, self.durable[folder]).items():
            path = prefix + name
            if file.folder:
                if f"{path}/" not in found:
                    found[f"{path}/"] = None
                    self._walk(file, f"{path}/", names, how, found)
            else:
                found[path] = content(file, how.get(file, "all"))


def content(file: File, how: object) -> tuple[bytes, bytes]:
    """What of the file is there, with its digest."""
    if how not in file.seen:
        data = _content(file, how)
        file.seen[how] = blake2b(data, digest_size=16).digest(), data
    return file.seen[how]


def _content(file: File, how: object) -> bytes:
    if how == "all" or not file.pending:
        return bytes(file.live)
    if how == "none":
        return file.durable
    chance = random.Random(how)
    last = chance.randrange(len(file.pending))
    if chance.random() < 0.5:  # in their order, the last of them torn
        found = bytearray(file.durable)
        for number, (offset, data) in enumerate(file.pending[: last + 1]):
            _apply(found, offset, _torn(offset, data, chance) if number == last else data)
        return bytes(found)
    found = bytearray(file.durable)
    for offset, data in file.pending:
        if data is None:
            if chance.random() < 0.5:
                _apply(found, offset, None)
            continue
        for begin, piece in _blocks(offset, data):
            if chance.random() < 0.5:
                _apply(found, begin, piece)
    return bytes(found)


def _apply(found: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del found[offset:]
        found.extend(bytes(offset - len(found)))
        return
    found.extend(bytes(max(0, offset + len(data) - len(found))))
    found[offset : offset + len(data)] = data


def _torn(offset: int, data: bytes | None, chance: random.Random) -> bytes | None:
    if data is None:
        return None
    cuts = [*range(-offset % SECTOR, len(data), SECTOR), len(data)]
    return data[: chance.choice(cuts)]


def _blocks(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    begin = 0
    while begin < len(data):
        end = min(len(data), begin + BLOCK - (offset + begin) % BLOCK)
        yield offset + begin, data[begin:end]
        begin = end
