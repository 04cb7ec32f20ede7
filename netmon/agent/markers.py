# SPDX-License-Identifier: Apache-2.0
"""Marks that training scripts send themselves (netmon.horovod), each process on a connection of its own."""

import logging
import os
import socket
import stat
import struct
import time
from dataclasses import replace
from pathlib import Path

from netmon.errors import UsageError
from netmon.marks import MAX_PACKET, MarkPacket, decode
from netmon.records import Mark, Moment, Source

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG = 128
_MAX_CONNECTIONS = 1024
ERROR_NS = 2_000
"""The clock is read in the script, beside the moment it stands for."""

_OLDEST_NS = 600_000_000_000  # an agent that hung for longer has other troubles
_AHEAD_NS = 1_000_000
_LARGEST = 2**53  # a count beyond it is none, and would not fit into a table


class _Connection:
    """One training process."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket = connection
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid = _CREDENTIALS.unpack(peer)[0]  # by the kernel, whatever the process thinks it is
        self._last: Mark | None = None
        self.open = True
        self.refused: list[str] = []  # why marks could not be used, since they were last asked for

    def take(self) -> list[Mark]:
        """Marks that have come; LEAVE as the last one when the process is gone without a word. Raises ValueError."""
        marks = []
        while self.open:
            try:
                packet, sent_by, *_ = self._socket.recvmsg(MAX_PACKET + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if packet and _pid(sent_by) not in (self.pid, 0):
                self._refuse("marks through a child of its")  # which has inherited the connection, and may outlive it
            elif packet:
                marks += [mark for told in decode(packet) for mark in self._use(_mark(told, self.pid))]
            else:
                marks += self._farewell()
        return marks

    def _use(self, mark: Mark) -> list[Mark]:
        """The mark, unless it contradicts those before; a process that joins as another rank leaves the old one."""
        last, joins = self._last, mark.moment is Moment.JOIN
        if last is None and not joins:
            return self._refuse("a mark before it joined")
        if not time.monotonic_ns() - _OLDEST_NS < mark.time_ns < time.monotonic_ns() + _AHEAD_NS:
            return self._refuse("a mark with a time of another clock")
        if not 0 <= mark.iteration < _LARGEST or not mark.parameters < _LARGEST:
            return self._refuse("a mark with a number that no training has")
        if last and not joins and (last.job, last.rank) != (mark.job, mark.rank):
            return self._refuse(f"a mark of rank {mark.rank} while it is rank {last.rank}")
        if last and mark.time_ns < last.time_ns:
            return self._refuse("a mark that is older than one before it")
        if last and mark.moment == last.moment and mark.iteration == last.iteration and not joins:
            return self._refuse("a mark twice")
        self._last = mark
        moved = joins and last and last.moment is not Moment.LEAVE and (last.job, last.rank) != (mark.job, mark.rank)
        if last and moved:
            return [replace(last, moment=Moment.LEAVE, time_ns=mark.time_ns), mark]
        return [mark]

    def _refuse(self, reason: str) -> list[Mark]:
        self.refused.append(reason)
        return []

    def _farewell(self) -> list[Mark]:
        self.close()
        if self._last is None or self._last.moment is Moment.LEAVE:
            return []
        return [replace(self._last, moment=Moment.LEAVE, time_ns=time.monotonic_ns())]

    def close(self) -> None:
        self.open = False
        self._socket.close()


def _pid(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Whose process sent a packet, as the kernel says; 0: it does not."""
    credentials = [data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
    return int(_CREDENTIALS.unpack(credentials[0])[0]) if credentials else 0


class MarkSocket:
    """Where training scripts on this host send their marks. Never blocks."""

    def __init__(self, path: Path) -> None:
        """Takes the path, also from an agent that is gone. Raises UsageError where it is another's."""
        self._path = path
        self._connections: list[_Connection] = []
        self.refused = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            self._socket.bind(str(path))
            self._socket.listen(_BACKLOG)
            path.chmod(0o666)  # whoever trains may mark
        except OSError as error:
            self._socket.close()
            raise UsageError(f"cannot listen for marks on {path}: {error.strerror}; give another --socket") from error

    def take(self) -> list[Mark]:
        """All marks that have come. Who sends what is not a mark is cut off and counted, the first with a line."""
        self._accept()
        marks: list[Mark] = []
        for connection in self._connections:
            try:
                marks += connection.take()
            except ValueError as error:
                connection.close()
                self._refuse(f"process {connection.pid} sent {error}")
            while connection.refused:
                self._refuse(f"process {connection.pid} sent {connection.refused.pop()}")
        self._connections = [connection for connection in self._connections if connection.open]
        return marks

    def _accept(self) -> None:
        while len(self._connections) < _MAX_CONNECTIONS:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            self._connections.append(_Connection(connection))

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            log.warning("a message on %s was refused: %s; further ones are only counted", self._path, reason)
        self.refused += 1

    def close(self) -> None:
        """Stops listening."""
        for connection in self._connections:
            connection.close()
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _mark(told: MarkPacket, pid: int) -> Mark:
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            return
