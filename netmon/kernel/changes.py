# SPDX-License-Identifier: Apache-2.0
"""Whether processes or interfaces have come or gone: cheap to ask again and again, without walking /proc."""

import os
import socket
from pathlib import Path

from netmon.kernel.processes import PROC

_RTMGRP_LINK = 1
_LINE = 256


class Changes:
    """What the caller's namespaces have. Needs no privilege; never blocks."""

    def __init__(self, proc: Path = PROC) -> None:
        """Everything is new. Raises OSError where there is no routing socket."""
        self._proc = proc
        self._before = b"", 0
        self._links = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        self._links.bind((0, _RTMGRP_LINK))

    def seen(self) -> bool:
        """Whether anything may have come or gone since the last call; true where that is not known."""
        processes, links = self._processes_changed(), self._links_changed()
        return processes or links

    def _processes_changed(self) -> bool:
        """By the number that was given to a process or thread last (proc(5): loadavg), and how many processes are."""
        try:
            with open(self._proc / "loadavg", "rb", buffering=0) as file:
                # A container's /proc may be put together by somebody else, who tells it seldom.
                own = os.fstat(file.fileno()).st_dev == (folder := os.stat(self._proc)).st_dev
                now = file.read(_LINE).rpartition(b" ")[2], folder.st_nlink
        except OSError:
            return True
        before, self._before = self._before, now
        return now != before or not own

    def _links_changed(self) -> bool:
        changed = False
        while True:
            try:
                self._links.recv(1)  # the rest of a message is cut off
                changed = True
            except BlockingIOError:
                return changed
            except OSError:  # more came than the socket holds
                changed = True

    def close(self) -> None:
        """Closes the socket."""
        self._links.close()
