# SPDX-License-Identifier: Apache-2.0
"""What the ranks on this host say and show of their steps: training scripts, calls of their libraries, timelines."""

import contextlib
import logging
import os
import resource
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from netmon.agent.collectives import Collectives
from netmon.agent.counting import Counting
from netmon.agent.exchange import Clock
from netmon.agent.flow_owners import FlowOwners
from netmon.agent.steps import StepMarks
from netmon.agent.timeline import TimelineMarks
from netmon.agent.waits import Active
from netmon.dl.iterations import HostIterations
from netmon.dl.operations import in_order
from netmon.errors import UsageError
from netmon.kernel.training.timelines import Opened
from netmon.marks import MAX_PACKET, MOST_MARKS, MarkPacket, decode
from netmon.rate_limiter import RateLimiters
from netmon.records import Mark, Moment, Source, Training

# --- Marks that training scripts send themselves (netmon.horovod), each process on a connection of its own.
#
# Anybody may connect and send. So many connections and marks each process and user may have; what is beyond it stays
# in its own connection's buffer, where it holds up nobody else: a script does not wait for room there.

log = logging.getLogger(__name__)


_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG = 4096
_MOST_CONNECTIONS, _MOST_OF_USER, _MOST_OF_PROCESS = 512, 128, 32
_DESCRIPTORS_SHARE = 4  # of the files that this process may have open, one part at most are connections
_MOST_ACCEPTED = 64  # at a time
_MARKS_OF_PROCESS = 1_000, 1_024  # a second in the long run, and at once: five in each of 200 steps a second
_MARKS_OF_USER = 4_000, 8_192
_JOINS_OF_USER = 4, 512
_PACKETS_AT_ONCE = 256  # of one connection, before it is the next one's turn
ERROR_NS = 2_000
"""The clock is read in the script, alongside the moment it stands for."""

_OLDEST_NS = 600_000_000_000  # an agent that hung for longer has other troubles
_AHEAD_NS = 1_000_000
_LARGEST = 2**53  # a count beyond it is none, and would not fit into a table


class _Budgets:
    """What processes and users may send."""

    def __init__(self) -> None:
        self.process, self.user = RateLimiters(*_MARKS_OF_PROCESS), RateLimiters(*_MARKS_OF_USER)
        self.joins = RateLimiters(*_JOINS_OF_USER)

    def allow(self, pid: int, uid: int, now_ns: int) -> bool:
        """Whether a packet of it may be taken now: as many marks as the largest one has."""
        least = min(self.process.left(pid, now_ns), self.user.left(uid, now_ns))
        return least >= MOST_MARKS

    def spend(self, pid: int, uid: int, marks: int, now_ns: int) -> None:
        self.process.spend(pid, marks, now_ns)
        self.user.spend(uid, marks, now_ns)


class _Connection:
    """One training process."""

    def __init__(self, connection: socket.socket, budgets: _Budgets) -> None:
        """Raises OSError."""
        self._socket, self._budgets = connection, budgets
        self._last: Mark | None = None
        self.open = True
        self.refused: list[str] = []  # why marks could not be used, since they were last read
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(peer)  # by the kernel, whatever the process thinks it is

    @property
    def rank(self) -> tuple[str, int] | None:
        """Who it has joined as, while it has not left."""
        joined = self._last is not None and self._last.moment is not Moment.LEAVE
        return (self._last.job, self._last.rank) if joined and self._last else None

    def take(self, others: "list[_Connection]") -> list[Mark]:
        """Marks that have come, as far as the budget goes; LEAVE as the last one when the process is gone.

        others: connections of the same process, which is one rank only. Raises ValueError.
        """
        marks: list[Mark] = []
        now = time.monotonic_ns()
        ranks = {other.rank for other in others if other is not self and other.rank}
        for _ in range(_PACKETS_AT_ONCE):
            if not self.open or not self._budgets.allow(self.pid, self.uid, now):
                break
            try:
                packet, sent_by, *_ = self._socket.recvmsg(MAX_PACKET + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            packets = decode(packet) if packet else []
            self._budgets.spend(self.pid, self.uid, len(packets) or 1, now)
            if packet and _pid(sent_by) not in (self.pid, 0):
                self._refuse("marks through a child of its")  # which has inherited the connection, and may outlive it
            elif packet:
                marks += [mark for one in packets for mark in self._use(_mark(one, self.pid), ranks)]
            else:
                marks += self.leave()
        return marks

    def _use(self, mark: Mark, ranks: set[tuple[str, int]]) -> list[Mark]:
        """The mark, unless it contradicts those before; a process that joins as another rank leaves the old one.

        ranks: what else it is. Raises ValueError where it joins too often: then it has to connect again.
        """
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
        if joins and ranks - {(mark.job, mark.rank)}:
            return self._refuse("that it is a second rank")
        if joins and not self._budgets.joins.take_one(self.uid, time.monotonic_ns()):
            raise ValueError("that it joins, which its user has done too often")
        self._last = mark
        moved = joins and last and last.moment is not Moment.LEAVE and (last.job, last.rank) != (mark.job, mark.rank)
        if last and moved:
            return [replace(last, moment=Moment.LEAVE, time_ns=mark.time_ns), mark]
        return [mark]

    def _refuse(self, reason: str) -> list[Mark]:
        self.refused.append(reason)
        return []

    def leave(self) -> list[Mark]:
        """Cuts it off; its last mark, if it has not said itself that it leaves."""
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
        self._budgets = _Budgets()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(_MOST_CONNECTIONS, descriptors // _DESCRIPTORS_SHARE)
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
        """The marks that have come, as many as their senders may send; each time another process is the first.

        Who sends what is not a mark is cut off and counted, the first with a line.
        """
        self._accept()
        marks: list[Mark] = []
        of_process: dict[int, list[_Connection]] = {}
        for connection in self._connections:
            of_process.setdefault(connection.pid, []).append(connection)
        for connection in self._connections:
            try:
                marks += connection.take(of_process[connection.pid])
            except ValueError as error:
                marks += connection.leave()
                self._refuse(f"process {connection.pid} sent {error}")
            while connection.refused:
                self._refuse(f"process {connection.pid} sent {connection.refused.pop()}")
        self._connections = [connection for connection in self._connections if connection.open]
        self._connections = self._connections[1:] + self._connections[:1]
        return marks

    def _accept(self) -> None:
        """Who is there already; nobody is left waiting, for that would hold up those behind."""
        of_user = Counter(connection.uid for connection in self._connections)
        of_process = Counter(connection.pid for connection in self._connections)
        for _ in range(_MOST_ACCEPTED):
            try:
                accepted, _ = self._socket.accept()
            except OSError:  # nobody is there, or has gone again, or this machine has no descriptors left: later
                return
            try:
                new = _Connection(accepted, self._budgets)
            except OSError:
                accepted.close()
                continue
            of_user[new.uid] += 1
            of_process[new.pid] += 1
            if (
                len(self._connections) < self._most
                and of_user[new.uid] <= _MOST_OF_USER
                and of_process[new.pid] <= _MOST_OF_PROCESS
            ):
                self._connections.append(new)
            else:
                new.close()
                self._refuse(f"process {new.pid} of user {new.uid} is one connection too many")

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            log.warning("a message on %s was refused: %s; further ones are only counted", self._path, reason)
        self.refused += 1

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._socket.close()
        with contextlib.suppress(OSError):  # in a folder of root's it stays, and the next agent takes its place
            self._path.unlink()


def _mark(packet: MarkPacket, pid: int) -> Mark:
    return Mark(
        job=packet.job,
        rank=packet.rank,
        size=packet.size,
        pid=pid,
        iteration=packet.iteration,
        moment=Moment(packet.moment),
        time_ns=packet.time_ns,
        source=Source.HOOK,
        error_ns=ERROR_NS,
        parameters=packet.parameters,
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


# --- What ranks say and show of their steps, as iterations.

_EXPECTED_NS = 1_000_000_000  # after a mark, others are for so long


class TrainingMarks:
    """What of it waits for a batch, as iterations. One per agent."""

    def __init__(self, socket: MarkSocket, counting: Counting, owners: FlowOwners, clock: Clock) -> None:
        """socket: of training scripts; owners: receives marks before the flows that come with them."""
        self._socket, self._counting, self._owners, self._clock = socket, counting, owners, clock
        self._steps, self._timelines = StepMarks(), TimelineMarks()
        self.collectives: Collectives | None = None  # nobody asks
        self._iterations = HostIterations()
        self._waiting: list[Mark] = []
        self._marked_ns = 0
        self._said: set[str] = set()  # why marks have led to nothing

    def expected(self, now_ns: int) -> bool:
        """Whether there was one lately."""
        return now_ns - self._marked_ns < _EXPECTED_NS

    @property
    def waits(self) -> bool:
        """Whether there is something to take or to send."""
        return bool(self._waiting or len(self._counting.steps))

    def receive(self, now_ns: int) -> None:
        """Takes what scripts and libraries have reported."""
        hooked, calls = self._socket.take(), in_order(self._counting.steps.take())
        marks = [*hooked, *self._steps.rename(hooked), *(self._steps.steps(calls) if len(calls) else ())]
        if hooked or len(calls):
            self._marked_ns = now_ns
        self._owners.marks(marks)
        self._waiting += marks
        if self.collectives and len(calls):
            self.collectives.add(calls)

    def look(self, ranks: list[dict[str, Any]], timelines: Iterable[Opened], now_ns: int) -> None:
        """All processes that are ranks now, as StepMarks.ranks takes them, and the timelines that they have opened."""
        self.receive(now_ns)  # also the calls of processes that have gone since the last call
        self._waiting += self._steps.ranks(ranks, now_ns)
        identities = self._steps.identities()
        self._waiting += self._timelines.retain(identities, now_ns)
        for opened in timelines:
            self._waiting += self._timelines.follow(opened, identities.get(opened.pid), now_ns)
        self._waiting += self._timelines.read(now_ns, self._clock.sample().offset_ns)

    def take(self) -> tuple[Training, list[Mark]]:
        """What a batch carries of it, and the marks that it was made of."""
        marks, self._waiting = self._waiting, []
        self._iterations.add(marks)
        training = self._iterations.take()
        for reason in self._iterations.unusable.keys() - self._said:
            self._said.add(reason)
            log.warning("marks %s lead to nothing; further ones are only counted", reason)
        return training, marks

    def active(self) -> list[Active]:
        """The ranks, and what their libraries are in the midst of."""
        return self._steps.active()

    def present(self) -> Training:
        """Of what was taken, who is there and the iterations under way: for whoever hears of them first."""
        return self._iterations.present()

    @property
    def refused(self) -> int:
        """Marks, calls and timelines that led to nothing, since the start."""
        of_socket_and_calls = self._socket.refused + self._steps.refused + self._counting.steps_lost
        return of_socket_and_calls + self._timelines.refused + self._iterations.unusable.total()

    def finish(self, now_ns: int) -> None:
        """The last ones of all ranks."""
        self._waiting += [*self._steps.finish(), *self._timelines.finish(now_ns, self._clock.sample().offset_ns)]

    def close(self) -> None:
        self._socket.close()
