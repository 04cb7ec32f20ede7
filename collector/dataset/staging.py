# SPDX-License-Identifier: Apache-2.0
"""A folder alongside the tables in which files are made, and how they get from there into their places."""

import ctypes
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from collector.dataset.files import Disk
from collector.dataset.manifest import StoredFile
from netmon.past import replaced_path

_AT_CWD, _EXCHANGE = -100, 2
_LISTED_S = 10.0  # longer than anybody lists a folder, on a network file system too
_READ_S = 600.0  # longer than most who have listed a file take until they open it


class Staging:
    """One writer's of a dataset."""

    def __init__(self, directory: Path, own: Path, disk: Disk) -> None:
        """directory: the dataset's; own: the writer's, below which it is made where it is missing. Raises OSError."""
        self.directory, self.disk = directory, disk
        self.folder = own / "staging"
        disk.make_directory(self.folder, directory)
        self._replaced = replaced_path(directory / "table/date/hour/file").parent
        self._looked_s = 0.0
        self._token = secrets.token_hex(6)  # another one in every run: what lies in two datasets can be put together
        self._number = 0
        self._left: list[tuple[float, Path]] = []  # folders whose files were replaced, and when

    def stem(self) -> str:
        """A name that no other file has, whoever writes it."""
        self._number += 1
        return f"part-{self._token}-{self._number:06}"

    def clear(self) -> None:
        """Remove what was never committed, and what has been replaced. Raises OSError."""
        self._left = []
        for unfinished in self.folder.iterdir():
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            else:
                unfinished.unlink()

    def remove_replaced(self) -> None:
        """Remove replaced files that nobody can be listing or reading any more; a later call takes what is left."""
        now_s = time.monotonic()
        while self._left and self._left[0][0] <= now_s - _LISTED_S:
            shutil.rmtree(self._left.pop(0)[1], ignore_errors=True)
        if now_s < self._looked_s + _LISTED_S:
            return
        self._looked_s = now_s
        with suppress(OSError):
            for path in self._replaced.iterdir():
                if path.stat().st_ctime < time.time() - _READ_S:  # when its last other name went
                    path.unlink()

    def retire(self, path: Path) -> None:
        """Take a file out of its table; who has listed it finds it for some minutes. Raises OSError."""
        self._replaced.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            path.replace(replaced_path(path))
            path.unlink()  # where both are links to one file already, renaming does nothing

    def _keep_readable(self, paths: Iterable[Path]) -> None:
        """Before files go with their folder: who has listed them finds them for some minutes. Raises OSError."""
        self._replaced.mkdir(exist_ok=True)
        for path in paths:
            with suppress(FileExistsError, FileNotFoundError):
                replaced_path(path).hardlink_to(path)

    def discard(self, files: Iterable[StoredFile]) -> None:
        """Remove files that are not going to be committed."""
        for file in files:
            (self.folder / file.staged).unlink(missing_ok=True)

    def publish(self, files: Iterable[StoredFile], removed: Iterable[str], at_once: bool = True) -> None:
        """Put committed files into their places, and remove what they replace; may be repeated. Raises OSError.

        A file that is staged in a folder (its name ends in a slash) comes with all that its hour is to hold from now
        on: the two folders change places at once, so that a reader lists either the old files or the new one. Who has
        the old folder open finds all of it, and learns from the files that they were replaced.
        at_once=False: somebody else may have come into the hour since; the file is renamed as all others are.
        """
        folders = set()
        for file in files:
            final = self.directory / file.path
            self.disk.make_directory(final.parent, self.directory)
            folders.add(final.parent)
            if file.staged.endswith("/"):
                self._swap(self.folder / file.staged, final, at_once)
            else:
                with suppress(FileNotFoundError):  # it was renamed before a crash
                    (self.folder / file.staged).replace(final)
        for path in removed:
            self.retire(self.directory / path)
            folders.add((self.directory / path).parent)
        for folder in folders:
            if folder.is_dir():
                self.disk.sync_directory(folder)
                self.disk.sync_directory(folder.parent)

    def prepare_swap(self, staged: Path, leave: Iterable[Path], partition: Path) -> str:
        """Let a file's folder hold all that the partition does but `leave`; how the file is staged then."""
        gone = set(leave)
        try:
            self._keep_readable(gone)
            for path in partition.iterdir():
                if path not in gone:
                    (staged.parent / path.name).hardlink_to(path)
        except OSError:  # a file system without links: one after the other, then
            return str(staged.relative_to(self.folder))
        self.disk.sync_directory(staged.parent)
        self.disk.sync_directory(self.folder)
        return f"{staged.parent.name}/"

    def drop(self, partition: Path) -> None:
        """Remove a folder of a table, for readers at once. Raises OSError."""
        away = self.folder / self.stem()
        with suppress(OSError):  # a file system without links
            self._keep_readable(partition.iterdir())
        partition.rename(away)
        self.disk.sync_directory(partition.parent)
        self._left.append((time.monotonic(), away))
        with suppress(OSError):  # not empty
            partition.parent.rmdir()

    def _swap(self, folder: Path, final: Path, at_once: bool) -> None:
        if not folder.is_dir():
            return
        exchanged = False
        if not final.exists():
            exchanged = at_once and _exchange(folder, final.parent)
            if not exchanged:
                (folder / final.name).replace(final)
        # Before: until the new names outlive a power cut, those that go may be the only ones of other files.
        for changed in (folder, folder.parent, final.parent, final.parent.parent):
            self.disk.sync_directory(changed)
        if exchanged:  # a reader may be listing it
            self._left.append((time.monotonic(), folder.rename(self.folder / self.stem())))
        else:
            shutil.rmtree(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places at once; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux 3.15, glibc 2.28
    return rename is not None and rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0
