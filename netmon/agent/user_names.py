# SPDX-License-Identifier: Apache-2.0
"""What users are called: by /etc/passwd at once, by a directory service (LDAP, sssd) as soon as it has answered."""

import logging
import os
import pwd
import queue
import threading
from pathlib import Path

from netmon.marks import printable

_log = logging.getLogger(__name__)
PASSWORDS = Path("/etc/passwd")
_MOST_BYTES = 4 << 20  # of the file that are read
_MOST_USERS = 4_096  # that are remembered
_MOST_WAITING = 256


class UserNames:
    """Used by one thread, which never waits: a directory service is asked on another one, once for each number."""

    def __init__(self, passwords: Path = PASSWORDS) -> None:
        """passwords: a file as passwd(5) describes it."""
        self._passwords = passwords
        self._read_of = (-1, -1)  # the file's time and size
        self._local: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._questions: queue.Queue[int] = queue.Queue(_MOST_WAITING)
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def name(self, uid: int) -> str:
        """Login name, of bounded length and printable; the number where none is known, or not yet."""
        number = str(uid)
        if number not in self._known:
            self._read()
            if len(self._known) >= _MOST_USERS:
                del self._known[next(iter(self._known))]
            self._known[number] = self._local.get(number, number)
            if number not in self._local:
                self._ask(uid)
        return self._known[number]

    def learnt(self) -> dict[str, str]:
        """Names that have come since the last call, by the number that `name` gave for them."""
        found = {}
        while not self._answers.empty():
            number, name = self._answers.get_nowait()
            if number in self._known:
                self._known[number] = found[number] = name
        return found

    def _read(self) -> None:
        try:
            status = os.stat(self._passwords)
            if (status.st_mtime_ns, status.st_size) == self._read_of:
                return
            self._read_of = status.st_mtime_ns, status.st_size
            with self._passwords.open("rb") as file:
                text = file.read(_MOST_BYTES).decode(errors="replace")
        except OSError:  # a root without one
            return
        fields = (line.split(":", 3) for line in text.splitlines())
        named = [(own[2], printable(own[0])) for own in fields if len(own) == 4 and own[0] and own[2].isdecimal()]
        self._local = dict(reversed(named))  # of two names of one number the first, as getpwuid has it

    def _ask(self, uid: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer_for_ever, name="names of users", daemon=True)
            self._thread.start()
        try:
            self._questions.put_nowait(uid)
        except queue.Full:
            _log.debug("user %d keeps its number: %d others are being asked for", uid, _MOST_WAITING)

    def _answer_for_ever(self) -> None:
        while True:
            uid = self._questions.get()
            try:
                name = printable(pwd.getpwuid(uid).pw_name)
            except (KeyError, OSError, ValueError, OverflowError):  # nobody of that number, or nobody to ask
                continue
            if name:
                self._answers.put((str(uid), name))
