# SPDX-License-Identifier: Apache-2.0
"""Every state in which a power cut may leave a recorded run, each opened by the real start-up and looked at."""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import pytest
from crash_model import Model, Tree
from crash_trace import Op


class Check(Protocol):
    """What a program has promised up to now, and whether a directory keeps it."""

    def said(self, words: list[str]) -> None: ...

    def known(self, tree: Tree, path: str, digest: bytes) -> bool:
        """Whether `look` needs this file's name only: it has read the same before. digest: of the tree."""

    def look(self, directory: Path, tree: Tree, seen: "Contents", digest: bytes) -> Any:
        """What a start-up finds there; the directory holds the tree, and may be spoilt."""

    def judge(self, found: Any, killed: bool) -> str:
        """killed: only the process was, and nothing that was written is lost. What is wrong; empty: nothing."""


class Contents:
    """Files by what is in them: one that is never written to again is linked from here, and read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[bytes, Path] = {}
        self.of_inode: dict[int, Any] = {}  # whatever a check wants to keep of one
        self.tables: dict[int, dict[tuple[str, ...], Any]] = {}  # by inode and columns

    def link(self, path: Path, digest: bytes, data: bytes) -> None:
        if digest not in self._known:
            self._known[digest] = self.folder / digest.hex()
            self._known[digest].write_bytes(data)
        os.link(self._known[digest], path)


def digest_of(tree: Tree) -> bytes:
    total = blake2b(digest_size=16)
    for path in sorted(tree):
        found = tree[path]
        total.update(path.encode() + b"\0" + (found[0] if found else b"/"))
    return total.digest()


@contextmanager
def fast_folder() -> Iterator[Path]:
    """In memory, where there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


class Result:
    """How much was looked at, and what was wrong, by its first words, with the first example."""

    def __init__(self) -> None:
        self.operations = self.points = self.states = self.same = 0
        self.wrong: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def __str__(self) -> str:
        lines = [
            f"{self.operations} operations, {self.points} crash points, {self.states} states checked, "
            f"{self.same} that were the same; {self.wrong.total()} wrong"
        ]
        return "\n".join([*lines, *(f"{count} × {what}: {self.first[what]}" for what, count in self.wrong.items())])


def total(results: Sequence[Result]) -> Result:
    """Of several runs."""
    found = Result()
    for result in results:
        found.operations += result.operations
        found.points += result.points
        found.states += result.states
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
        self._found: dict[bytes, Any] = {}  # by digest of the tree: a directory is opened once
        (place.parent / "contents").mkdir()
        self._contents = Contents(place.parent / "contents")

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
            digest = digest_of(tree)
            if digest in self._found:
                self.result.same += 1
            else:
                self.result.states += 1
                self._build(tree, digest)
                self._found[digest] = self._check.look(self._place, tree, self._contents, digest)
                shutil.rmtree(self._place)
            wrong = self._check.judge(self._found[digest], killed=number == 0)
            if wrong:
                what = wrong.partition(":")[0]
                self.result.wrong[what] += 1
                self.result.first.setdefault(what, f"{wrong} (point {self._point}, state {number}, after {_said(op)})")

    def _build(self, tree: Tree, digest: bytes) -> None:
        self._place.mkdir()
        for path, found in tree.items():
            if found is None:
                (self._place / path).mkdir(mode=0o700)
            elif self._check.known(tree, path, digest):
                (self._place / path).touch()
            elif path.endswith(".parquet"):
                self._contents.link(self._place / path, *found)
            else:
                (self._place / path).write_bytes(found[1])


def enumerate_states(ops: Sequence[Op], check: Check, place: Path, **more: Any) -> Result:
    with nothing_to_wait_for():
        walk = Walk(ops, check, place, **more)
        walk.to(len(ops))
    return walk.result


@contextmanager
def nothing_to_wait_for() -> Iterator[None]:
    """The checks' own fsync: what they write is in memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


def _said(op: Op) -> str:
    return f"{op.kind} {op.path} {op.to} {op.offset if op.kind != 'said' else op.data!r}"
