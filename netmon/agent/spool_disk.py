# SPDX-License-Identifier: Apache-2.0
"""A spool's file, on a disk that may fail, go away, or not answer for as long as it likes.

Everything that touches the disk is done in a thread of its own and waited for, but not for long: who calls goes on, and
is told that the disk does not answer until it does. What was under way then may have been done or not, so when the disk
is back, what is in the file is made what it should be: batches that came late stay there if they still wait in memory,
and what was acknowledged or given up meanwhile goes.
"""

import contextlib
import logging
import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from netmon.agent.batch_table import BatchTable
from netmon.agent.link_totals import summed
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError
from netmon.kernel.stalling import StalledError, StallingCalls
from netmon.records import Table

log = logging.getLogger(__name__)

R = TypeVar("R")
_ANSWERS_S = 0.5
_OPENS_S = 10.0
_OPEN_AGAIN_S = 5.0
_REASONS = 5  # logged of one trouble


class StalledDiskError(sqlite3.OperationalError):
    """The disk has not answered yet; nothing is known of what was asked of it."""


class SpoolDisk:
    """One session's file. Methods raise sqlite3.Error. Used under the spool's lock; `back` is called without it."""

    def __init__(
        self,
        folder: SpoolFolder,
        session: str,
        left: BatchTable | None,
        memory: BatchTable,
        lose: Callable[[Table], None],
        back: Callable[[], None],
    ) -> None:
        """left: what a session left behind; it is waited for, however long it takes.

        memory: what waits to be put into the file; a batch that came there late is taken out of it.
        lose: counts what has lost its buckets after all (dtype LINK_TOTALS). back(): the disk answers again.
        """
        self._memory = memory
        self.folder, self._session, self._lose, self._back = folder, session, lose, back
        self._table = left
        self._calls = None if left else StallingCalls(_ANSWERS_S, most=1)
        self.link_totals = left.link_totals() if left else {}
        """What each batch in the file carries, by its number, in their order: also where the file cannot be read."""
        self._hello = left.hello() if left else b""
        self._files = 0
        self._open_again = math.inf if left else 0.0
        self._found: BatchTable | None = None  # opened too late for whoever has asked for it
        self._hello_waits = False  # to be written
        self._doubtful = False  # whether what is in the file is what should be there
        self._silent_since = 0.0
        self._silent_s = 0.0
        self.trouble = ""
        self._reasons: set[str] = set()  # that were reported, of the trouble that there is

    @property
    def silent(self) -> bool:
        """Whether it has not answered yet."""
        return self._silent_since > 0

    @property
    def silent_s(self) -> float:
        """For how long the disk has not answered, all in all."""
        since = self._silent_since
        return self._silent_s + (time.monotonic() - since if since else 0.0)

    @property
    def size(self) -> int:
        """Bytes of all messages in the file."""
        return self._table.size if self._table else 0

    @property
    def hello(self) -> bytes:
        """As it was to be written last."""
        return self._hello

    def first_after(self, sequence: int) -> int | None:
        """The lowest number of a batch above this one."""
        if sequence + 1 in self.link_totals:
            return sequence + 1
        return next((number for number in self.link_totals if number > sequence), None)

    @property
    def is_open(self) -> bool:
        """Whether there is a file."""
        return self._table is not None

    def opened(self) -> bool:
        """Whether there is a file; where there is none, now and then one is tried for."""
        if self._found:
            self._table, self._found, self._hello_waits = self._found, None, True
        if self._table is None and time.monotonic() >= self._open_again:
            self._open_again = time.monotonic() + _OPEN_AGAIN_S
            try:
                self._table = self._call(lambda: self.folder.open_session(self._file), self._keep_found)
                self._hello_waits = True
            except (sqlite3.Error, OSError) as error:
                self.note(str(error))
        return self._table is not None

    def do(self, action: Callable[[BatchTable], R]) -> R:
        """With the file, which has been opened. Raises sqlite3.Error, StalledDiskError."""
        table = self._table
        assert table
        return self._call(lambda: action(table))

    def ready(self) -> None:
        """There is a file, with what should be in it. Raises as `do`, and where there is none."""
        if not self.opened():
            raise sqlite3.OperationalError(self.trouble)
        if self._doubtful:
            self._put_right()
        if self._hello_waits:
            self.do(self._write_hello)

    def attempt(self, action: Callable[[BatchTable], object]) -> None:
        """Change the file, where there is one or can be one. Raises as `ready`."""
        self.ready()
        self.do(action)
        self.note("")

    def write_hello(self, message: bytes) -> None:
        """In place of the one before. Where that cannot be now, as soon as it can."""
        self._hello, self._hello_waits = message, True
        self.attempt(lambda table: None)

    def _write_hello(self, table: BatchTable) -> None:
        if self._hello_waits:
            table.write_hello(self._hello)
            self._hello_waits = False

    def note(self, trouble: str) -> None:
        """Says it, each reason once; empty: all is well."""
        if trouble and not self.trouble:
            log.warning("cannot write to %s: %s; batches wait in memory", self.folder.directory, trouble)
        elif trouble and trouble not in self._reasons and len(self._reasons) < _REASONS:
            log.info("%s takes no batches yet: %s", self.folder.directory, trouble)
        self._reasons = {*self._reasons, trouble} if trouble else set()
        if self.trouble and not trouble:
            log.warning("%s takes batches again", self.folder.directory)
        self.trouble = trouble

    def doubt(self) -> None:
        """The file may hold batches that it should have forgotten."""
        self._doubtful = True

    def leave(self, remove: bool) -> None:
        """Goes on without this file; remove: it, else it is set aside. The next is another one."""
        self.close()
        then: Callable[[str], object] = self.folder.remove if remove else self.folder.set_aside
        with contextlib.suppress(StalledDiskError):
            self._call(lambda: then(self._file))
        self.link_totals.clear()
        self._files += 1

    def close(self) -> None:
        """Lets go of the file; what is in it stays."""
        table, self._table = self._table, None
        if table:
            with contextlib.suppress(sqlite3.Error):
                self._call(table.close)
        self._rest()

    def remove(self) -> None:
        """The file of a session that is closed."""
        with contextlib.suppress(StalledDiskError):
            self._call(lambda: self.folder.remove(self._file))
        self._rest()

    def _rest(self) -> None:
        if self._calls:
            self._calls.rest()

    @property
    def _file(self) -> str:
        return f"{self._session}.{self._files}" if self._files else self._session

    def _put_right(self) -> None:
        try:
            there = self.do(BatchTable.link_totals)
            stripped = [number for number, totals in there.items() if self.link_totals.get(number, totals) != totals]
            if stripped:
                self._lose(summed([self.link_totals[number] for number in stripped]))
                self.link_totals.update(dict.fromkeys(stripped, b""))
            for number, totals in self._memory.link_totals().items():
                if there.get(number) != totals:  # not there, or without its buckets by now: none passes it
                    break
                self.link_totals[number] = totals
                self._memory.delete(self._memory.read(number))
            self.do(lambda table: table.keep_only(self.link_totals))
            self._doubtful = False
        except StalledDiskError:
            raise
        except sqlite3.Error as error:  # a full one may still forget, and then have room
            self.note(str(error))

    def _call(self, function: Callable[[], R], late: Callable[[Any], None] = lambda result: None) -> R:
        if self._calls is None:
            return function()

        def answered(result: R | None) -> None:
            late(result)
            self._doubtful = self._hello_waits = True
            self._silent_s, self._silent_since = self.silent_s, 0.0
            self._back()

        try:
            return self._calls.call(None, function, answered)
        except StalledError as error:
            if error.under_way:
                self._silent_since = time.monotonic() - _ANSWERS_S
            raise StalledDiskError("the disk does not answer") from error

    def _keep_found(self, table: BatchTable | None) -> None:
        self._found = table


def open_folder(path: Path, durability: str) -> SpoolFolder:
    """A spool's folder. Raises DataError, also where the disk does not answer for ten seconds."""
    try:
        return StallingCalls(_OPENS_S).call(None, lambda: SpoolFolder(path, durability), lambda late: None)
    except StalledError:
        raise DataError(
            f"cannot use {path} as a spool: its disk has not answered for {_OPENS_S:.0f} s; give another --spool"
        ) from None
