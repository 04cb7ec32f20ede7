# SPDX-License-Identifier: Apache-2.0
"""What processes hand to RDMA devices by libibverbs: bytes and requests of each queue pair, as bpf/verbs.c counts them.

A program posts by tables in its memory (ibv_post_send, ibv_wr_send and others), which lead into the device's provider,
a library that exports no such functions. Probes on libibverbs report where they are as soon as a process opens a
device, or requests the functions that build requests; the probes put there serve every process that maps this provider.
What a process says of its memory is no reason to believe it: code is probed only where a function of a file begins that
is called like a provider, and no more where it is called as something else.

Where there is no RDMA device there is nothing to post to: nothing is loaded.
"""

import contextlib
import ipaddress
import os
import re
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.kernel.meter.memory import RingBuffer
from netmon.kernel.processes import PROC, Process, ProcessTable, on_this_host, pids, read_bounded, uid_of
from netmon.kernel.stalling import StalledError, StallingCalls, close_late
from netmon.kernel.training.symbols import AT, Reading
from netmon.kernel.training.uprobes import MappedLibrary, Probe, Uprobes, attach_probe, mapped_libraries
from netmon.marks import printable
from netmon.rate_limiter import TimeLimiter
from netmon.records import PROVIDER, QUEUE, QUEUE_KEY, distinct

# --- queue pairs as the kernel lists them, by netlink

_NETLINK_RDMA, _NLDEV = 20, 5
_GET, _GET_QUEUES = 1, 10  # RDMA_NLDEV_CMD_GET, RDMA_NLDEV_CMD_RES_QP_GET
_REQUEST_DUMP = 1 | 0x300  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_DEVICE, _DEVICE_NAME = 1, 2  # RDMA_NLDEV_ATTR_…
_QUEUES, _QUEUE, _NUMBER, _REMOTE_NUMBER, _PID = 19, 20, 21, 22, 28
_HEAD = struct.Struct("=IHHII")  # length, type, flags, sequence, pid
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NESTED = 0x3FFF
_MOST_MESSAGES, _MESSAGE_BYTES = 4096, 1 << 16
_LIMIT_S = 0.5


class QueuePair(NamedTuple):
    """Of a process; a kernel's own are left out. remote: number of the other end's; 0: not known."""

    device: str
    number: int
    remote: int
    pid: int


def queue_pairs() -> list[QueuePair]:
    """Of all devices; empty where there are none, or the kernel does not report them."""
    found: list[QueuePair] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as own:
        own.settimeout(_LIMIT_S)
        devices = [_attributes(body) for body in _dump(own, _GET, b"")]
        for number in sorted({_u32(device.get(_DEVICE, b"")) for device in devices if _DEVICE in device}):
            for body in _dump(own, _GET_QUEUES, _ATTRIBUTE.pack(8, _DEVICE) + struct.pack("=I", number)):
                found += read_queues(body)
    return found


def read_queues(body: bytes) -> list[QueuePair]:
    """Of one message of the kernel's."""
    top = _attributes(body)
    name = top.get(_DEVICE_NAME, b"").rstrip(b"\0").decode(errors="replace")
    pairs = []
    for kind, value in _each(top.get(_QUEUES, b"")):
        own = _attributes(value) if kind == _QUEUE else {}
        if _PID in own and _NUMBER in own:
            pairs.append(QueuePair(name, _u32(own[_NUMBER]), _u32(own.get(_REMOTE_NUMBER, b"")), _u32(own[_PID])))
    return pairs


def _dump(own: socket.socket, command: int, attributes: bytes) -> Iterator[bytes]:
    """Bodies of the messages of an answer."""
    kind = _NLDEV << 10 | command
    own.send(_HEAD.pack(_HEAD.size + len(attributes), kind, _REQUEST_DUMP, 1, 0) + attributes)
    for _ in range(_MOST_MESSAGES):
        data = own.recv(_MESSAGE_BYTES)
        while len(data) >= _HEAD.size:
            length, got, *_ = _HEAD.unpack_from(data)
            if got in (_ERROR, _DONE) or not _HEAD.size <= length <= len(data):
                return
            yield data[_HEAD.size : length]
            data = data[length + 3 & ~3 :]
    raise OSError(f"more than {_MOST_MESSAGES} messages")


def _each(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            return
        yield kind & _NESTED, data[_ATTRIBUTE.size : length]
        data = data[length + 3 & ~3 :]


def _attributes(data: bytes) -> dict[int, bytes]:
    return dict(_each(data))


def _u32(value: bytes) -> int:
    return int.from_bytes(value[:4], sys.byteorder)


DEVICES = Path("/sys/class/infiniband")
EVERYWHERE = "NETMON_VERBS"
"""Set in the environment: processes are looked at where there is no device, too. For tests."""

WAYS = ("verbs_post", "verbs_build")
"""What counts, by the way in which a function of a provider posts, as bpf/netmon.h numbers them."""

_WAYS_SAID = ("for requests that are posted", "for requests that are built")

PROGRAMS = ("verbs_context", "verbs_domain", "verbs_modify", "verbs_extended", *WAYS)
QUEUES, USERS, STRANGE = "verbs_queues", "verbs_users", "verbs_strange"
KNOWN, FOUND, UNCOUNTED = "verbs_known", "verbs_providers", "verbs_uncounted"
MAPS = (QUEUES, USERS, STRANGE, KNOWN, FOUND, UNCOUNTED)
KINDS = ("send", "write", "read", "other")
"""Of requests, as bpf/netmon.h numbers them."""

MOST_ROWS = 256
"""Of one answer, which has to go into a packet."""

_LIBRARY = re.compile(r"/libibverbs\.so(\.\d+)*$")
_PROBES = (
    *(Probe(_LIBRARY, name, "verbs_context") for name in ("ibv_alloc_pd", "ibv_create_cq")),
    *(Probe(_LIBRARY, name, "verbs_domain") for name in ("ibv_create_qp", "ibv_reg_mr")),
    Probe(_LIBRARY, "ibv_modify_qp", "verbs_modify"),
    Probe(_LIBRARY, "ibv_qp_to_qp_ex", "verbs_extended"),
)
_INSTALLED = ("/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/local/lib", "/usr/local/lib64")
PROVIDER_FILE = re.compile(r"/lib(\w+-rdmav\d+|bnxt_re|cxgb4|efa|erdma|hns|ionic|irdma|mana|mlx4|mlx5)\.so[.\d]*$")
"""How rdma-core calls them."""

_MAPPED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) [0-9a-f]+:[0-9a-f]+ (\d+) +(/[^\n]*)$", re.MULTILINE)
_MOST_MAPS = 4 << 20  # bytes
_MOST_QUEUES, _MOST_UNCOUNTED, _RING_BYTES = 32768, 3, 65536  # as bpf/netmon.h has them
_MOST_FUNCTIONS, _MOST_OF_USER = 384, 320  # probed at a time, with a descriptor each; a file of mlx5 has some thirty
_MOST_WANTED, _MOST_OF_PROCESS, _TRIES = 256, 4, 3  # files of processes
_MOST_OF_FILE = 64  # functions
_NEVER = 1 << 63  # ns
_MOST_LIMITERS = 256
_WAIT_S = 0.5  # for files to be read
_STRANGE_A_SECOND = 2000  # calls of what is probed that post nothing, before it is probed no more
_READING_SHARE, _READING_BURST_NS = 0.01, 1_500_000_000
_MOST_WARNINGS = 16
_LIST_EVERY_NS = 2_000_000_000

Counts = npt.NDArray[np.uint64]


def wanted() -> bool:
    """Whether there is an RDMA device now."""
    with contextlib.suppress(OSError):
        return bool(os.environ.get(EVERYWHERE)) or any(DEVICES.iterdir())
    return False


class Posted(NamedTuple):
    """What a process has handed over on a queue pair in a time (mono).

    peer: address or GID, "lid N", or empty where it is not known; kind: of KINDS by its number; unread: lists and
    requests that were longer than is read, or lists that were given up; whole: all that was ever posted on it has been
    counted.
    """

    start_ns: int
    end_ns: int
    pid: int
    queue: int
    device: str
    peer: str
    peer_queue: int
    kind: int
    bytes: int
    requests: int
    unread: int
    whole: bool


@dataclass
class _Function:
    """Of a provider, that is probed. since_ns: mono."""

    path: str
    uid: int
    way: int
    descriptor: int
    since_ns: int


@dataclass
class Place:
    """An address of a process, as its file has it."""

    library: MappedLibrary
    offset: int


@dataclass
class _Reported:
    """Of queue pairs: what has been reported, and when; in the order in which they were found."""

    indices: dict[bytes, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=lambda: np.zeros((0, 9), np.uint64))
    at_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


_Key = tuple[int, int, int, int]
"""Of a function that posts: device, inode, offset and way."""


@dataclass
class _PendingFunctions:
    """Functions of a file by which a process says that it posts: offsets and ways."""

    pid: int
    library: MappedLibrary
    functions: set[tuple[int, int]]
    tries: int = 0
    descriptor: int = -1
    status: os.stat_result | None = None
    reading: Reading | None = None

    def as_keys(self) -> list[_Key]:
        """Once it is open."""
        assert self.status
        return [(self.status.st_dev, self.status.st_ino, *function) for function in sorted(self.functions)]

    def end_reading(self) -> None:
        if self.reading:
            self.reading.close()
            self.reading = None

    def close(self) -> None:
        self.end_reading()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Verbs:
    """One per privileged part. Needs CAP_BPF, CAP_PERFMON and, for other users' processes, CAP_SYS_PTRACE."""

    def __init__(self, programs: dict[str, int], processes: ProcessTable) -> None:
        """programs: descriptors of PROGRAMS and MAPS by name."""
        self._programs, self._processes = programs, processes
        self._libraries = Uprobes(programs, _PROBES)
        self._ring = RingBuffer(programs[FOUND], _RING_BYTES, PROVIDER)
        self.descriptor = programs[FOUND]
        """Readable when a probe has reported where a process posts."""
        self._functions: dict[_Key, _Function] = {}
        self._refused: set[_Key] = set()
        self._pending: list[_PendingFunctions] = []
        self._taken_ns = 0
        self._found: list[str] = []  # files that are probed, and for what, to be said
        self._opening = StallingCalls(0.2)
        self._limiters: dict[int, TimeLimiter] = {}  # by user
        self._reported = _Reported()
        self._of: dict[int, Process] = {}  # who posts, as it was when that was seen first
        self._since_of: dict[int, int] = {}  # since when all that they post has been counted
        self._users: set[int] = set()  # who may use RDMA devices
        self._listed_ns = 0
        self._said: set[int] = set()  # of whom it is said that nothing is known
        self._gone: set[int] = set()
        self._left: list[Posted] = []
        self._read_ns = time.monotonic_ns()
        self._strange: dict[bytes, int] = {}
        self._uncounted = (0,) * _MOST_UNCOUNTED
        self._warnings: list[str] = []
        for folder in _INSTALLED:
            for path in Path("/").glob(f"{folder[1:]}/libibverbs.so.1"):
                with contextlib.suppress(OSError):
                    self._libraries.want_file(str(path))
        self._libraries.follow(())

    # --- where

    def follow(self, ranks: Iterable[int]) -> list[str]:
        """Attaches to what these processes, and those that have queue pairs, map; returns what is new."""
        if time.monotonic_ns() >= self._listed_ns + _LIST_EVERY_NS:
            self._listed_ns = time.monotonic_ns()
            self._users, before = verbs_users(), self._users
            self._say_who_is_not_counted(before)
        found = self._libraries.follow({*ranks, *self._of, *self._users})
        self.take()
        found, self._found = [*found, *self._found], []
        return found

    def _say_who_is_not_counted(self, before: set[int]) -> None:
        """Of those that have queue pairs, and had them when these were listed last."""
        queues = Counter(pair.pid for pair in queue_pairs())
        for pid in sorted((queues.keys() & before) - self._since_of.keys() - self._said):
            self._said.add(pid)
            self._warn(
                f"what process {pid} posts on {queues[pid]} queue pairs of RDMA devices is not known yet: it has made "
                "them before it was watched, or posts in another way than by libibverbs"
            )
        self._said &= queues.keys()

    def take(self) -> None:
        """Attaches to where processes have said that they post. Half a second at most: what is left is done the next
        time.
        """
        self._want()
        until = time.monotonic() + _WAIT_S
        for pending in list(self._pending):
            try:
                functions = self._probed(pending, until)
            except (KernelError, OSError) as error:
                pending.tries += 1
                if isinstance(error, StalledError) and pending.tries < _TRIES:
                    continue
                functions = []
                self._miss(pending.pid, str(error))
            if functions is None:
                continue
            pending.close()
            self._pending.remove(pending)
            for function in functions:
                self._since_of[pending.pid] = max(self._since_of.get(pending.pid, 0), function.since_ns)
                found = f"{function.path} {_WAYS_SAID[function.way]}"
                if function.since_ns >= self._taken_ns and found not in self._found:
                    self._found.append(found)
        self._taken_ns = time.monotonic_ns()

    def _miss(self, pid: int, reason: str) -> None:
        self._since_of[pid] = _NEVER
        self._warn(f"cannot count what process {pid} posts to an RDMA device: {reason}")

    def _want(self) -> None:
        """What processes have said since the last time, by their files."""
        said: dict[int, set[tuple[int, int]]] = {}
        for address, pid, way in self._ring.take().tolist():
            said.setdefault(pid, set()).add((address, way))
        for pid, functions in said.items():
            locations = locations_of(pid, {address for address, _ in functions})
            of_files: dict[tuple[str, int], _PendingFunctions] = {}
            for address, way in functions:
                if place := locations.get(address):
                    library = place.library
                    pending = of_files.setdefault((library.path, library.inode), _PendingFunctions(pid, library, set()))
                    pending.functions.add((place.offset, way))
            of_process = sum(one.pid == pid for one in self._pending)
            most = min(_MOST_OF_PROCESS - of_process, _MOST_WANTED - len(self._pending))
            self._pending += list(of_files.values())[: max(0, most)]

    def _probed(self, pending: _PendingFunctions, until: float) -> list[_Function] | None:
        """Those that are probed there; None: it is still read. Raises KernelError with the reason, OSError,
        StalledError.
        """
        if self._remember(pending.pid) is None:
            return []
        path = pending.library.path
        if not PROVIDER_FILE.search(path):
            raise KernelError(f"it posts by {printable(path)}, which is no provider's library")
        uid = uid_of(pending.pid, gone=-1)
        if pending.descriptor < 0:
            opened = self._opening.call(uid, lambda: pending.library.open(pending.pid), close_late)
            pending.descriptor, pending.status = opened
        keys = [key for key in pending.as_keys() if key not in self._refused]
        new = [key for key in keys if key not in self._functions]
        if new:
            of_user = sum(function.uid == uid for function in self._functions.values())
            most = min(_MOST_FUNCTIONS - len(self._functions), _MOST_OF_USER - of_user)
            if len(new) > min(most, _MOST_OF_FILE):
                raise KernelError("too many functions of providers are counted already")
            begun = self._beginnings(pending, {offset for _, _, offset, _ in new}, uid, until)
            if begun is None:
                return None
            wrong = {key for key in new if key[2] not in begun}
            if wrong:
                self._miss(pending.pid, "it posts by something that is no function")
            keys = [key for key in keys if key not in wrong]
            for key in keys:
                if key in self._functions:
                    continue
                program = self._programs[WAYS[key[3]]]
                link = attach_probe(program, f"/proc/self/fd/{pending.descriptor}", key[2])
                self._functions[key] = _Function(path, uid, key[3], link, time.monotonic_ns())
        return [self._functions[key] for key in keys]

    def _beginnings(self, pending: _PendingFunctions, offsets: set[int], uid: int, until: float) -> set[int] | None:
        """Those of the offsets at which a function begins: a probe in the midst of an instruction would break whoever
        executes it. None: that is still read. Raises KernelError with the reason, StalledError.
        """
        limiter = self._limiters.setdefault(uid, TimeLimiter(_READING_SHARE, _READING_BURST_NS))
        if pending.reading is None:
            if len(self._limiters) > _MOST_LIMITERS:
                del self._limiters[next(iter(self._limiters))]
            if not limiter.allows():
                raise StalledError("too much of what its user says has been read", under_way=False)
            pending.reading = Reading(pending.descriptor, [f"{AT}{offset:x}" for offset in sorted(offsets)])
        if not pending.reading.ends_within(until - time.monotonic()):
            return None
        reading, pending.reading = pending.reading, None
        try:
            return {offset for found in reading.result().values() for offset in found}
        finally:
            limiter.spend(reading.cost_ns)

    # --- what

    def read(self) -> tuple[list[Posted], dict[int, Process | None], bool]:
        """What has been posted since the last report, MOST_ROWS at most; by whom; whether there is more.

        What is left is reported before anything newer.
        """
        self.take()
        if not self._left:
            self._left = self._take_rows()
        rows, self._left = self._left[:MOST_ROWS], self._left[MOST_ROWS:]
        return rows, {row.pid: self._remember(row.pid) for row in rows}, bool(self._left)

    def _take_rows(self) -> list[Posted]:
        now_ns = time.monotonic_ns()
        self._forget_gone()
        keys, values = self._entries()
        counts = np.column_stack([values["bytes"], values["requests"], values["unread"]]).astype(np.uint64, copy=False)
        before = self._before(keys)
        rows: list[Posted] = []
        for index in np.flatnonzero((counts != self._reported.counts[before]).any(axis=1)).tolist():
            self._remember(int(keys["pid"][index]))
            rows += self._rows(keys[index], values[index], counts[index], int(before[index]), now_ns)
        known = {*distinct(keys["pid"]).tolist(), *self._of}  # also who has posted nothing
        self._gone = {pid for pid in known if not (PROC / str(pid)).exists()}
        self._look_at_strange(now_ns)
        self._warn_of_uncounted()
        self._read_ns = now_ns
        return rows

    def _entries(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        raw = bpf_calls.entries(self._programs[QUEUES], QUEUE_KEY.itemsize, QUEUE.itemsize, _MOST_QUEUES)
        return np.frombuffer(raw[0], QUEUE_KEY), np.frombuffer(raw[1], QUEUE)

    def _before(self, keys: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
        """The index of each queue pair in what has been reported."""
        reported, raw = self._reported, keys.view(f"V{QUEUE_KEY.itemsize}").tolist()
        new = [key for key in raw if key not in reported.indices]
        for key in new:
            reported.indices[key] = len(reported.indices)
        reported.counts = np.concatenate([reported.counts, np.zeros((len(new), 9), np.uint64)])
        reported.at_ns = np.concatenate([reported.at_ns, np.full(len(new), self._read_ns, np.int64)])
        return np.array([reported.indices[key] for key in raw], np.intp)

    def _rows(self, key: Any, value: Any, counts: Counts, place: int, now_ns: int) -> list[Posted]:
        reported = self._reported
        grown = (counts - reported.counts[place]).tolist()
        since_ns = int(reported.at_ns[place])
        reported.counts[place], reported.at_ns[place] = counts, now_ns
        whose = int(key["pid"]), int(key["number"]), _text(value["device"]), _peer(value), int(value["remote"])
        pending = any(one.pid == whose[0] for one in self._pending)
        whole = not pending and 0 < self._since_of.get(whose[0], _NEVER) < int(value["begun_ns"])
        rows = [
            Posted(since_ns, now_ns, *whose, kind, grown[kind], grown[len(KINDS) + kind], 0, whole)
            for kind in range(len(KINDS))
            if grown[len(KINDS) + kind]
        ]
        if unread := grown[-1]:
            first = rows[0] if rows else Posted(since_ns, now_ns, *whose, len(KINDS) - 1, 0, 0, 0, whole)
            rows[:1] = [first._replace(unread=unread)]
        return rows

    def _forget_gone(self) -> None:
        """Processes that had ended when their queue pairs were read last: everything has been reported of them."""
        gone, self._gone = self._gone, set()
        if not gone:
            return
        keys, values = self._entries()
        raw = keys.view(f"V{QUEUE_KEY.itemsize}").tolist()
        over = np.isin(keys["pid"], list(gone))
        for index in np.flatnonzero(over).tolist():
            bpf_calls.delete_entry(self._programs[QUEUES], raw[index])
        kept = [key for key in self._reported.indices if int.from_bytes(key[8:12], "little") not in gone]
        indices = np.array([self._reported.indices[key] for key in kept], np.intp)
        counts, at_ns = self._reported.counts[indices], self._reported.at_ns[indices]
        self._reported = _Reported({key: place for place, key in enumerate(kept)}, counts, at_ns)
        for uid in distinct(values["uid"][over]).tolist():
            left = int(np.count_nonzero(values["uid"][~over] == uid))
            bpf_calls.set_entry(self._programs[USERS], uid.to_bytes(4, "little"), left.to_bytes(4, "little"))
        for pid in gone:
            self._of.pop(pid, None)
            self._since_of.pop(pid, None)

    def _look_at_strange(self, now_ns: int) -> None:
        """What is called all the time as something else is no post_send, whoever has said so."""
        seconds = max(0.1, (now_ns - self._read_ns) / 1e9)
        raw = bpf_calls.entries(self._programs[STRANGE], PROVIDER.itemsize, 8, 8192)
        keys, calls = np.frombuffer(raw[0], f"V{PROVIDER.itemsize}").tolist(), np.frombuffer(raw[1], np.uint64).tolist()
        before, self._strange = self._strange, dict(zip(keys, calls, strict=True))
        for key, count in self._strange.items():
            if (count - before.get(key, 0)) / seconds > _STRANGE_A_SECOND:
                address, pid, way = np.frombuffer(key, PROVIDER)[0].tolist()
                self._detach(pid, address, way)

    def _detach(self, pid: int, address: int, way: int) -> None:
        place = place_of(pid, address)
        if place is None:
            return
        for key, function in list(self._functions.items()):
            if function.path == place.library.path and key[2:] == (place.offset, way):
                os.close(self._functions.pop(key).descriptor)
                self._refused.add(key)
                self._warn(
                    f"what is posted by {printable(function.path)} is not counted any more: process {pid} calls it "
                    "thousands of times a second as something else"
                )

    def _warn_of_uncounted(self) -> None:
        raw = [bpf_calls.array_entry(self._programs[UNCOUNTED], which, 8) for which in range(_MOST_UNCOUNTED)]
        now = tuple(int.from_bytes(one, "little") for one in raw)
        if now != self._uncounted:
            self._uncounted = now
            requests, sum_bytes, _ = now
            self._warn(
                f"{requests} requests of {sum_bytes} bytes were posted to RDMA devices by queue pairs for which there "
                "was no room: they are in no row"
            )

    def _remember(self, pid: int) -> Process | None:
        if pid not in self._of and (process := self._processes.current(pid)):
            self._of[pid] = process
        return self._of.get(pid)

    # --- all

    def warnings(self) -> list[str]:
        """What could not be done since the last call."""
        warnings, self._warnings = [*self._libraries.warnings(), *self._warnings], []
        return warnings

    def _warn(self, text: str) -> None:
        if len(self._warnings) < _MOST_WARNINGS:
            self._warnings.append(text)

    def close(self) -> None:
        self._libraries.close()
        for pending in self._pending:
            pending.close()
        for function in self._functions.values():
            os.close(function.descriptor)
        self._functions = {}
        self._ring.close()


def verbs_users() -> set[int]:
    """The processes of this host that may use RDMA devices."""
    if os.environ.get(EVERYWHERE):
        return {pid for pid in pids() if on_this_host(pid)}
    return {pair.pid for pair in queue_pairs()}


class User(NamedTuple):
    """A process that uses RDMA devices. providers: libraries that it may post by, of which posts are counted."""

    pid: int
    process: str
    queues: int  # queue pairs that the kernel lists; 0: it lists none
    providers: tuple[str, ...]
    has_library: bool  # it maps libibverbs


def users() -> list[User]:
    """For people: they may post in a way that is not counted, too."""
    queues = Counter(pair.pid for pair in queue_pairs())
    found = []
    for pid in sorted(verbs_users()):
        providers, library = providers_of(pid), bool(mapped_libraries(pid, lambda path: bool(_LIBRARY.search(path))))
        if providers or library or queues[pid]:
            name = printable(read_bounded(PROC / str(pid) / "comm", 64).decode(errors="replace").strip())
            paths = tuple(printable(Path(path).name) for path in providers)
            found.append(User(pid, name, queues[pid], paths, library))
    return found


def place_of(pid: int, address: int) -> Place | None:
    """None: the process has no code of a file there."""
    return locations_of(pid, [address]).get(address)


def locations_of(pid: int, addresses: Collection[int]) -> dict[int, Place]:
    """Of those addresses where the process has code of a file."""
    found = {}
    for line in _MAPPED.finditer(read_bounded(PROC / str(pid) / "maps", _MOST_MAPS)):
        begin, end, offset = (int(part, 16) for part in line.groups()[:3])
        for address in addresses:
            if begin <= address < end:
                library = MappedLibrary(os.fsdecode(line[5]), int(line[4]), [range(offset, offset + end - begin)])
                found[address] = Place(library, offset + address - begin)
    return found


def providers_of(pid: int) -> list[str]:
    """Paths of the providers' libraries that a process maps; empty where it is gone or not ours to see."""
    lines = _MAPPED.finditer(read_bounded(PROC / str(pid) / "maps", _MOST_MAPS))
    paths = dict.fromkeys(os.fsdecode(line[5]) for line in lines)
    return [path for path in paths if PROVIDER_FILE.search(path)]


def _text(raw: bytes) -> str:
    return printable(raw.split(b"\0")[0].decode(errors="replace"))


def _peer(value: Any) -> str:
    raw = bytes(value["gid"])
    if any(raw):
        address = ipaddress.IPv6Address(raw)
        return str(address.ipv4_mapped or address)
    return f"lid {int(value['lid'])}" if value["lid"] else ""
