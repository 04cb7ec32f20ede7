# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of NCCL's jobs on this host are, as NCCL says itself: its RAS, on by default since 2.24.

It listens on the loopback of the network namespace that a job is in; one of the processes there does. Anybody can
listen in its place. So whoever may enter that namespace makes the connection, and a child that may nothing speaks with
it, for so long and so many bytes and no more.
"""

import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from netmon.errors import KernelError
from netmon.kernel.owners.namespaces import Namespace, inside
from netmon.kernel.processes import namespace_of, pids
from netmon.kernel.training.symbols import Reading, confine, say
from netmon.kernel.training.uprobes import NCCL, mapped_libraries
from netmon.marks import MOST_RANKS, printable

_PORT = 28028
_CONNECT_S, _ANSWER_S = 0.5, 4.0
_READING_S = 3.0  # of processor time; twice as long by the clock
_MEMORY_BYTES, _MOST_BYTES, _MOST_LINE = 512 << 20, 4 << 20, 4096
_MOST_NAMESPACES, _MOST_PROCESSES = 16, 256
_MOST_COMMUNICATORS, _MOST_RANKS = 64, 512  # ranks that are reported, in all
_MOST_WORD, _MOST_PID, _MOST_DEVICE = 64, 1 << 22, 1024
_PEERS_S = 2  # that RAS waits for other hosts


class Rank(NamedTuple):
    """host: an address, as its NCCL has it; pid: as it has it itself; gpu: number in its process."""

    rank: int
    host: str
    pid: int
    gpu: int


class Communicator(NamedTuple):
    """missing: ranks that RAS does not reach."""

    size: int
    missing: int
    ranks: tuple[Rank, ...]


class Said(NamedTuple):
    """What NCCL says in a network namespace. pids: of processes here that use it; reason: why it says nothing."""

    pids: tuple[int, ...]
    version: str = ""
    communicators: tuple[Communicator, ...] = ()
    reason: str = ""


def query() -> list[Said]:
    """In each network namespace in which a process maps NCCL. Blocks: a second, ten where nobody answers."""
    readings: list[tuple[tuple[int, ...], Reading | str]] = []
    for inode, own in sorted(_processes().items())[:_MOST_NAMESPACES]:
        try:
            connection = _connect(inode, own[0])
        except OSError as error:
            readings.append((tuple(own), f"its RAS does not listen on port {_PORT} ({error.strerror or error})"))
            continue
        if connection is None:
            continue
        with connection:
            readings.append((tuple(own), Reading(connection.fileno(), (), __name__, _READING_S)))
    return [_said(own, reading) for own, reading in readings]


def _processes() -> dict[int, list[int]]:
    """By network namespace: those that map NCCL."""
    found: dict[int, list[int]] = {}
    for pid in sorted(pids()):
        if mapped_libraries(pid, lambda path: bool(NCCL.search(path))) and (inode := namespace_of(str(pid))):
            found.setdefault(inode, []).append(pid)
        if sum(map(len, found.values())) >= _MOST_PROCESSES:
            break
    return found


def _connect(inode: int, pid: int) -> socket.socket | None:
    """None: the process has gone elsewhere. Raises OSError."""

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", _PORT), _CONNECT_S)

    return connect() if inode == namespace_of("self") else inside(Namespace(inode, pid), connect)


def _said(own: tuple[int, ...], reading: Reading | str) -> Said:
    if isinstance(reading, str):
        return Said(own, reason=reading)
    try:
        return checked(own, reading.answer())
    except KernelError as error:
        return Said(own, reason=printable(str(error), 200))


def checked(own: tuple[int, ...], answer: dict[str, Any]) -> Said:
    """The child's answer, checked: it comes from an untrusted process. Raises KernelError."""
    try:
        communicators = tuple(
            Communicator(int(one["size"]), int(one["missing"]), tuple(Rank(*rank) for rank in one["ranks"]))
            for one in answer["communicators"]
        )
        return Said(own, printable(str(answer["version"]), _MOST_WORD), communicators)
    except (KeyError, TypeError, ValueError) as error:
        raise KernelError(f"what it says has no form ({type(error).__name__})") from None


# --- The child.


def main() -> None:
    """A connection on standard input, the answer on standard output."""
    confine(((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, int(_READING_S))))
    say(lambda: read(socket.socket(fileno=0), time.monotonic() + _ANSWER_S))


def read(connection: socket.socket, until: float) -> dict[str, Any]:
    """What `checked` takes. Raises ValueError with the reason."""
    said = _Line(connection, until)
    if not re.fullmatch(rb"SERVER PROTOCOL \d{1,9}", said.request(b"CLIENT PROTOCOL 2")):
        raise ValueError("what listens there is not NCCL's RAS")
    if said.request(b"TIMEOUT %d" % _PEERS_S) != b"OK" or said.request(b"SET FORMAT json") != b"OK":
        raise ValueError("its RAS has no JSON (NCCL 2.28.7 and later have it)")
    text = said.rest(b"VERBOSE STATUS")
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("what its RAS says is nested too deep") from None
    except ValueError:
        raise ValueError("what its RAS says is no JSON") from None
    return checked_answer(document)


def checked_answer(document: Any) -> dict[str, Any]:
    """Of the whole document what is of use, where it is of the form. Raises ValueError."""
    left, communicators = _MOST_RANKS, []
    for one in _list(_get(document, "communicators"))[:_MOST_COMMUNICATORS]:
        ranks = [
            (
                _number(each, "rank", MOST_RANKS),
                printable(_word(each, "host"), _MOST_WORD),
                _number(each, "pid", _MOST_PID),
                _number(each, "cuda_dev", _MOST_DEVICE),
            )
            for each in _list(_get(one, "ranks"))[:left]
        ]
        left -= len(ranks)
        size = _number(one, "size", MOST_RANKS)
        communicators.append({"size": size, "missing": len(_list(_get(one, "missing_ranks"))), "ranks": ranks})
    return {"version": printable(_word(document, "nccl_version"), _MOST_WORD), "communicators": communicators}


def _get(of: Any, name: str) -> Any:
    if not isinstance(of, dict) or name not in of:
        raise ValueError(f"its RAS says no {name}")
    return of[name]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("what its RAS says has another form")
    return value


def _word(of: Any, name: str) -> str:
    return str(_get(of, name))[:_MOST_WORD]


def _number(of: Any, name: str, most: int) -> int:
    value = _get(of, name)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"its RAS says a {name} that is none")
    return value


class _Line:
    """What a stranger says, up to a time and a size."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self._until = connection, until
        self._received = bytearray()

    def request(self, words: bytes) -> bytes:
        """The line that comes after. Raises ValueError."""
        self._say(words)
        for _ in self._hearing(_MOST_LINE):
            line, end, rest = self._received.partition(b"\n")
            if end:
                self._received = rest
                return bytes(line)
        raise ValueError("its RAS closes the connection")

    def rest(self, words: bytes) -> bytes:
        """All that comes after. Raises ValueError."""
        self._say(words)
        for _ in self._hearing(_MOST_BYTES):
            pass
        return bytes(self._received)

    def _say(self, words: bytes) -> None:
        try:
            self._connection.sendall(words + b"\n")
        except OSError:
            raise ValueError("its RAS closes the connection") from None

    def _hearing(self, most: int) -> Iterator[None]:
        """Whenever there is more, until the other end closes."""
        while True:
            self._connection.settimeout(max(0.001, self._until - time.monotonic()))
            try:
                received = self._connection.recv(65536)
            except TimeoutError:
                raise ValueError("its RAS does not answer in time") from None
            except OSError:
                raise ValueError("its RAS closes the connection") from None
            if not received:
                return
            self._received += received
            if len(self._received) > most:
                raise ValueError("its RAS says too much")
            if time.monotonic() > self._until:
                raise ValueError("its RAS does not answer in time")
            yield
