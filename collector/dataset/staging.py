# SPDX-License-Identifier: Apache-2.0
"""A folder alongside the tables in which files are made, and how they get from there into their places."""

import os
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from collector.dataset.files import Disk
from collector.dataset.manifest import StoredFile
from netmon.past import DROPPED, RECENT

_READ_S = 600.0  # longer than most who have listed a file take until they open it
_LOOK_S = 10.0


class Staging:
    """One writer's of a dataset."""

    def __init__(self, directory: Path, own: Path, disk: Disk) -> None:
        """directory: the dataset's; own: the writer's, below which it is made where it is missing. Raises OSError."""
        self.directory, self.disk = directory, disk
        self.folder = own / "staging"
        disk.make_directory(self.folder, directory)
        self._looked_s = 0.0
        self._token = secrets.token_hex(6)  # another one in every run: what lies in two datasets can be put together
        self._number = 0

    def stem(self) -> str:
        """A name that no other file has, whoever writes it."""
        self._number += 1
        return f"part-{self._token}-{self._number:06}"

    def clear(self) -> None:
        """Remove what was never committed. Raises OSError."""
        for unfinished in self.folder.iterdir():
            unfinished.unlink()

    def discard(self, files: Iterable[StoredFile]) -> None:
        """Remove files that are not going to be committed."""
        for file in files:
            (self.folder / file.staged).unlink(missing_ok=True)

    def publish(self, files: Iterable[StoredFile], removed: Iterable[str]) -> None:
        """Put committed files into their places, and remove others; may be repeated. Raises OSError."""
        folders = set()
        for file in files:
            final = self.directory / file.path
            self.disk.make_directory(final.parent, self.directory)
            with suppress(FileNotFoundError):  # it was renamed before a crash
                (self.folder / file.staged).replace(final)
            folders.add(final.parent)
        for path in removed:
            (self.directory / path).unlink(missing_ok=True)
            folders.add((self.directory / path).parent)
        for folder in folders:
            if folder.is_dir():
                self.disk.sync_directory(folder)
                self.disk.sync_directory(folder.parent)

    def drop(self, name: str, partition: str) -> None:
        """Take an hour out of its table, for readers at once. Raises OSError."""
        shutil.rmtree(self.directory / RECENT / name / partition, ignore_errors=True)
        hour, away = self.directory / name / partition, self.directory / DROPPED / name / partition
        shutil.rmtree(away, ignore_errors=True)
        away.parent.mkdir(parents=True, exist_ok=True)
        os.utime(hour)  # since when it is there
        hour.rename(away)
        self.disk.sync_directory(hour.parent)
        with suppress(OSError):  # not empty
            hour.parent.rmdir()

    def remove(self, files: Iterable[StoredFile]) -> None:
        """Take files of an hour out of their table, and what they were made of; the folder, if it is empty then."""
        for file in files:
            hour = f"{file.name}/{file.partition}"
            shutil.rmtree(self.directory / RECENT / hour / (file.roll or file.stem), ignore_errors=True)
            (self.directory / file.path).unlink(missing_ok=True)
            for folder in (self.directory / hour, (self.directory / hour).parent):
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def remove_old(self) -> None:
        """Remove what nobody can be reading any more: small files that are a part of another one, hours dropped."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        before_s = time.time() - _READ_S
        for roll in (self.directory / RECENT).glob("*/date=*/hour=*/*"):
            hour = roll.parent.relative_to(self.directory / RECENT)
            _remove_if(self.directory / hour / f"{roll.name}.parquet", roll, before_s)
        for hour in (self.directory / DROPPED).glob("*/date=*/*=*"):
            _remove_if(hour, hour, before_s)


def _remove_if(dated: Path, folder: Path, before_s: float) -> None:
    """Remove a folder, and those above it that are empty then, if what dates it is there and older."""
    with suppress(OSError):
        if dated.stat().st_mtime < before_s:
            shutil.rmtree(folder)
            folder.parent.rmdir()
            folder.parent.parent.rmdir()
