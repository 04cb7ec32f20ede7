# SPDX-License-Identifier: Apache-2.0
"""A directory that is made into one state after the other, and files that are read once whatever states have them."""

import os
import shutil
from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from crash_model import Tree

R = TypeVar("R")
_WHOLE = ".parquet"
"""So end the names of files that nobody writes to once they are closed: they are linked, not copied."""

_UNTOUCHED_NS = 1_000_000_000
"""When a folder was changed last, as it is set; whoever changes a name in it sets the present time."""


def fixed(path: str) -> bool:
    """Whether the file is one that is never written to again."""
    return path.endswith(_WHOLE)


def digests_of(tree: Tree) -> tuple[bytes, bytes]:
    """Of all, and of all but what is in the fixed files."""
    everything, outline = blake2b(digest_size=16), blake2b(digest_size=16)
    for path in sorted(tree):
        found, name = tree[path], path.encode() + b"\0"
        everything.update(name + (found[0] if found else b"/"))
        outline.update(name + (found[0] if found and not fixed(path) else b"/"))
    return everything.digest(), outline.digest()


class Contents:
    """Fixed files by what is in them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.read: set[bytes] = set()
        """The digests of those that somebody has looked into since this was emptied last."""
        self._folder = folder
        self._known: dict[bytes, Path] = {}
        self._of_inode: dict[int, bytes] = {}
        self._kept: dict[bytes, dict[Hashable, Any]] = {}

    def link(self, path: str, digest: bytes, data: bytes) -> None:
        if digest not in self._known:
            own = self._known[digest] = self._folder / digest.hex()
            own.write_bytes(data)
            self._of_inode[own.stat().st_ino] = digest
        os.link(self._known[digest], path)

    def once(self, inode: int, what: Hashable, read: Callable[[], R]) -> R:
        """What is read of a file, where it is one of these from the second time on as it was the first time."""
        digest = self._of_inode.get(inode)
        if digest is None:
            return read()
        self.read.add(digest)
        kept = self._kept.setdefault(digest, {})
        if what not in kept:
            kept[what] = read()
        found: R = kept[what]
        return found

    def intact(self) -> bool:
        """Whether nobody has written to one of them after all."""
        return all(
            blake2b(path.read_bytes(), digest_size=16).digest() == digest for digest, path in self._known.items()
        )


class Place:
    """What is changed between one state and the next is little: folders of fixed files stay, others are made anew.

    A folder stays as it was made where it is still the same folder and no name in it was made, removed or replaced
    since, which its time of change tells; then only the names are changed in which the two states differ.
    """

    def __init__(self, root: Path, contents: Contents) -> None:
        """root: not there yet."""
        self._root, self._contents = f"{root}/", contents
        self._kept: dict[str, tuple[int, dict[str, bytes]]] = {}  # by path: inode, digests by name
        root.mkdir()

    def hold(self, tree: Tree, known: Callable[[str], bool]) -> None:
        """Make it so. known(path): only the name is needed."""
        wanted: dict[str, dict[str, tuple[bytes, bytes]]] = {"": {}}
        for path, found in tree.items():
            if found is None:
                wanted[path] = {}
            else:
                folder, _, name = path.rpartition("/")
                wanted[folder and f"{folder}/"][name] = found
        there = {""}
        self._clear("", wanted, there)
        self._kept = {path: kept for path, kept in self._kept.items() if path in there}
        inner = {path.rpartition("/")[0].rpartition("/")[0] + "/" for path in wanted if path}
        for path, files in wanted.items():
            if path not in there:
                os.mkdir(self._root + path, 0o700)
            if files and path not in inner and all(map(fixed, files)):
                self._link(path, files)
            else:
                self._write(path, files, known)

    def _clear(self, folder: str, wanted: Mapping[str, Any], there: set[str]) -> None:
        """Leave nothing but wanted folders: empty, but for those that are kept."""
        with os.scandir(self._root + folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}/"
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                elif path not in wanted:
                    shutil.rmtree(entry.path)
                else:
                    there.add(path)
                    inode, _ = self._kept.get(path, (0, None))
                    if inode != entry.inode() or os.stat(entry.path).st_mtime_ns != _UNTOUCHED_NS:
                        self._kept.pop(path, None)
                        self._clear(path, wanted, there)

    def _link(self, folder: str, files: Mapping[str, tuple[bytes, bytes]]) -> None:
        place = self._root + folder
        _, names = self._kept.get(folder, (0, {}))
        digests = {name: digest for name, (digest, _) in files.items()}
        if names == digests:
            return
        for name, digest in names.items():
            if digests.get(name) != digest:
                os.unlink(place + name)
        for name, found in files.items():
            if names.get(name) != found[0]:
                self._contents.link(place + name, *found)
        os.utime(place, ns=(_UNTOUCHED_NS, _UNTOUCHED_NS))
        self._kept[folder] = os.stat(place).st_ino, digests

    def _write(self, folder: str, files: Mapping[str, tuple[bytes, bytes]], known: Callable[[str], bool]) -> None:
        if self._kept.pop(folder, None):
            for entry in os.scandir(self._root + folder):
                os.unlink(entry.path)
        for name, (digest, data) in files.items():
            path = self._root + folder + name
            if fixed(name):
                self._contents.link(path, digest, data)
            else:
                with open(path, "xb", buffering=0) as file:
                    if not known(folder + name):
                        file.write(data)
