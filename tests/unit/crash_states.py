# SPDX-License-Identifier: Apache-2.0
"""Every state in which a power cut may leave a recorded run, each opened by the real start-up and looked at."""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import pytest
from crash_model import Model, Tree
from crash_trace import Op


class Check(Protocol):
    """What a program has promised up to now, and whether a directory keeps it."""

    def said(self, words: list[str]) -> None: ...

    def check(self, directory: Path, seen: "Contents", killed: bool) -> str:
        """killed: only the process was, and nothing that was written is lost. What is wrong; empty: nothing."""


class Contents:
    """Files by what is in them: one that is never written to again is linked from here, and read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[bytes, Path] = {}
        self.of_inode: dict[int, object] = {}  # whatever a check wants to keep of one

    def put(self, path: Path, digest: bytes, data: bytes, linked: bool) -> None:
        if not linked:
            path.write_bytes(data)
            return
        if digest not in self._known:
            self._known[digest] = self.folder / digest.hex()
            self._known[digest].write_bytes(data)
        os.link(self._known[digest], path)


def digest_of(tree: Tree, promised: object) -> bytes:
    total = blake2b(repr(promised).encode(), digest_size=16)
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
            f"{self.same} more were the same; {self.wrong.total()} wrong"
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


def enumerate_states(
    ops: Sequence[Op],
    check: Check,
    place: Path,
    draws: int = 4,
    every: int = 1,
    tell: Callable[[str], None] = lambda line: None,
) -> Result:
    """place: where it was recorded, empty now: SQLite's journals name each other by path.

    draws: of states by lot at each point. every: so many points apart.
    """
    model, result, known = Model(), Result(), set[bytes]()
    promised: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)  # of the checks: there is nothing to wait for
        (place.parent / "contents").mkdir()
        contents = Contents(place.parent / "contents")
        for op in ops:
            if op.kind == "said":
                words = op.data.decode().split()
                check.said(words)
                promised = words  # what holds from now on differs from before by this
            else:
                result.operations += 1
                model.do(op)
            result.points += 1
            if result.points % every:
                continue
            for number, tree in enumerate(model.states(random.Random(result.points), draws)):
                digest = digest_of(tree, promised)
                if digest in known:
                    result.same += 1
                    continue
                known.add(digest)
                result.states += 1
                build(tree, place, contents)
                wrong = check.check(place, contents, killed=number == 0)
                shutil.rmtree(place)
                if wrong:
                    what = wrong.partition(":")[0]
                    result.wrong[what] += 1
                    result.first.setdefault(what, f"{wrong} (point {result.points}, state {number}, after {_said(op)})")
            if result.points // every % 1000 == 0:
                tell(f"{result.points} points, {result.states} states, {result.wrong.total()} wrong")
    return result


def _said(op: Op) -> str:
    return f"{op.kind} {op.path} {op.to} {op.offset if op.kind != 'said' else op.data!r}"


def build(tree: Tree, place: Path, contents: Contents) -> None:
    place.mkdir()
    for path, found in tree.items():
        if found is None:
            (place / path).mkdir(mode=0o700)
        else:
            contents.put(place / path, *found, linked=path.endswith(".parquet"))
