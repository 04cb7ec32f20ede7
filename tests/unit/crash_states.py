# SPDX-License-Identifier: Apache-2.0
"""Every state in which a power cut may leave a recorded run, each opened by the real start-up and looked at.

What is not done again, so that all of them can be looked at, and why nothing is missed by it:

* A directory that is equal to an earlier one, in all names and contents, is opened once: a start-up has nothing else to
  go by. What it finds is held against what has been promised up to each point, all the same.
* Directories that differ only in what is in Parquet files that the start-up, and whoever read all tables after it, did
  not look into, are opened once, too. Of one in 16 that is tried nevertheless, and the same has to be found.
* A Parquet file's rows are read once, by what is in it: nobody writes to one again, which is looked at in the end. All
  else that a start-up does it does every time, to files and a database that are really there.
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from crash_model import Model, Tree
from crash_place import Contents, Place, digests_of, fixed
from crash_trace import Op


class Check(Protocol):
    """What a program has promised up to now, and whether a directory keeps it."""

    def said(self, words: list[str]) -> None: ...

    def known(self, tree: Tree, path: str, digest: bytes) -> bool:
        """Whether `look` needs this file's name only: it has read the same before. digest: as `look` has it."""

    def look(self, directory: Path, tree: Tree, seen: Contents, digest: bytes) -> Any:
        """What a start-up finds there; the directory holds the tree, and may be spoilt.

        digest: of the tree without what is in fixed files, by which is chosen what is done.
        """

    def judge(self, found: Any, killed: bool) -> str:
        """killed: only the process was, and nothing that was written is lost. What is wrong; empty: nothing."""


@contextmanager
def fast_folder() -> Iterator[Path]:
    """In memory, where there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


class Result:
    """How much was looked at, and what was wrong, by its first words, with the first example."""

    def __init__(self) -> None:
        self.operations = self.points = self.states = self.opened = self.same = 0
        self.wrong: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def __str__(self) -> str:
        lines = [
            f"{self.operations} operations, {self.points} crash points, {self.states} states checked "
            f"({self.opened} opened), {self.same} that were the same; {self.wrong.total()} wrong"
        ]
        return "\n".join([*lines, *(f"{count} × {what}: {self.first[what]}" for what, count in self.wrong.items())])


def total(results: Sequence[Result]) -> Result:
    """Of several runs."""
    found = Result()
    for result in results:
        found.operations += result.operations
        found.points += result.points
        found.states += result.states
        found.opened += result.opened
        found.same += result.same
        found.wrong += result.wrong
        found.first = result.first | found.first
    return found


class Walk:
    """A recorded run, step by step; at each point, what a power cut may leave of it is opened and judged."""

    def __init__(self, ops: Sequence[Op], check: Check, place: Path, draws: int = 4, every: int = 1) -> None:
        """place: where it was recorded, not there now: SQLite's journals name each other by path.

        draws: of states by lot at each point. every: so many points apart.
        """
        self.result = Result()
        self._ops, self._check, self._place, self._draws, self._every = ops, check, place, draws, every
        self._model, self._point = Model(), 0
        self._found: dict[bytes, Any] = {}  # by digest of the tree
        self._alike: dict[bytes, list[tuple[list[tuple[str, bytes]], Any]]] = {}  # by outline: what was read and found
        self._contents = Contents(place.parent / "contents")
        self._held = Place(place, self._contents)

    def to(self, point: int, look: bool = True) -> None:
        """Up to this step, as a part of the run that is looked at or not."""
        while self._point < min(point, len(self._ops)):
            op = self._ops[self._point]
            self._point += 1
            if op.kind == "said":
                self._check.said(op.data.decode().split())
            else:
                self._model.do(op)
                self.result.operations += look
            self.result.points += look
            if look and self._point % self._every == 0:
                self._look(op)

    def _look(self, op: Op) -> None:
        for number, tree in enumerate(self._model.states(random.Random(self._point), self._draws)):
            digest, outline = digests_of(tree)
            if digest in self._found:
                self.result.same += 1
            else:
                self.result.states += 1
                self._found[digest] = self._found_in(tree, digest, outline)
            wrong = self._check.judge(self._found[digest], killed=number == 0)
            if wrong:
                what = wrong.partition(":")[0]
                self.result.wrong[what] += 1
                self.result.first.setdefault(what, f"{wrong} (point {self._point}, state {number}, after {_said(op)})")

    def _found_in(self, tree: Tree, digest: bytes, outline: bytes) -> Any:
        others = self._alike.setdefault(outline, [])
        alike = [found for read, found in others if all((tree[path] or b"")[0] == was for path, was in read)]
        if alike and digest[0] % 16:
            return alike[0]
        self._held.hold(tree, lambda path: self._check.known(tree, path, outline))
        self._contents.read.clear()
        found = self._check.look(self._place, tree, self._contents, outline)
        self.result.opened += 1
        assert not alike or alike[0] == found, (alike[0], found)
        read = [(path, own[0]) for path, own in tree.items() if own and fixed(path) and own[0] in self._contents.read]
        others.append((read, found))
        return found

    def over(self) -> Result:
        """Of all of it."""
        assert self._contents.intact()
        return self.result


def enumerate_states(ops: Sequence[Op], check: Check, place: Path, **more: Any) -> Result:
    with nothing_to_wait_for():
        walk = Walk(ops, check, place, **more)
        walk.to(len(ops))
    return walk.over()


@contextmanager
def nothing_to_wait_for() -> Iterator[None]:
    """The checks' own fsync: what they write is in memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


def _said(op: Op) -> str:
    return f"{op.kind} {op.path} {op.to} {op.offset if op.kind != 'said' else op.data!r}"
