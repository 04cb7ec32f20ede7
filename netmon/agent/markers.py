# SPDX-License-Identifier: Apache-2.0
"""Marks that training scripts send themselves (netmon.horovod), one datagram each."""

import contextlib
import logging
import os
import socket
import stat
import struct
from pathlib import Path

from netmon.errors import UsageError
from netmon.marks import MAX_DATAGRAM, decode
from netmon.records import Mark, Moment, Source

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: filled in by the kernel
_QUEUE_BYTES = 1 << 20
ERROR_NS = 2_000
"""The clock is read in the script, beside the moment it stands for."""


class MarkSocket:
    """Where training scripts on this host send their marks. Never blocks."""

    def __init__(self, path: Path) -> None:
        """Takes the path, also from an agent that is gone. Raises UsageError where it is another's."""
        self._path = path
        self.refused = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            self._socket.bind(str(path))
            path.chmod(0o666)  # whoever trains may mark
        except OSError as error:
            raise UsageError(f"cannot listen for marks on {path}: {error.strerror}; give another --socket") from error

    def take(self) -> list[Mark]:
        """All marks that have come. What is not a mark is counted, with one line for the first."""
        marks = []
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram, ancillary, _, _ = self._socket.recvmsg(MAX_DATAGRAM + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
                pid = _CREDENTIALS.unpack(ancillary[0][2])[0] if ancillary else 0
                try:
                    marks.append(_mark(datagram, pid))
                except ValueError as error:
                    self._refuse(f"process {pid} sent {error}")
        return marks

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            log.warning("a message on %s was refused: %s; further ones are only counted", self._path, reason)
        self.refused += 1

    def close(self) -> None:
        """Stops listening."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _mark(datagram: bytes, pid: int) -> Mark:
    told = decode(datagram)
    return Mark(
        job=told.job,
        rank=told.rank,
        size=told.size,
        pid=pid,
        iteration=told.iteration,
        moment=Moment(told.moment),
        time_ns=told.time_ns,
        source=Source.HOOK,
        error_ns=ERROR_NS,
        parameters=told.parameters,
    )


def _remove_stale(path: Path) -> None:
    """Removes a socket that nobody listens on any more; leaves everything else to fail the bind."""
    if not path.exists() or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
