# SPDX-License-Identifier: Apache-2.0
"""What a process that stands still is doing: its state, what it waits for, and whether it or its children get on."""

from typing import NamedTuple

from netmon.evidence import UNKNOWN, ProcessState, WaitsFor
from netmon.kernel.processes import PROC, read_bounded

_MOST_BYTES, _MOST_CHILDREN = 4_096, 64
_STATES = {
    b"R": ProcessState.RUNS,
    b"S": ProcessState.SLEEPS,
    b"I": ProcessState.SLEEPS,
    b"D": ProcessState.DISK,
    b"T": ProcessState.STOPPED,
    b"t": ProcessState.STOPPED,
    b"Z": ProcessState.GONE,
    b"X": ProcessState.GONE,
}
_USER, _SYSTEM = 11, 12  # fields of stat after the name: clock ticks
_TICK_NS = 10_000_000
_IO = (b"read_bytes", b"write_bytes")  # of storage: what goes through sockets and pipes is waiting, too
_CHANNELS: tuple[tuple[bytes, WaitsFor], ...] = (
    (b"futex", WaitsFor.THREAD),
    (b"nanosleep", WaitsFor.TIME),
    (b"poll", WaitsFor.EVENT),
    (b"select", WaitsFor.EVENT),
    (b"pipe", WaitsFor.PIPE),
    (b"do_wait", WaitsFor.CHILD),
    (b"wait4", WaitsFor.CHILD),
    (b"tcp", WaitsFor.SOCKET),
    (b"sk_", WaitsFor.SOCKET),
    (b"unix", WaitsFor.SOCKET),
    (b"lock", WaitsFor.LOCK),
    (b"nfs", WaitsFor.STORAGE),
    (b"folio", WaitsFor.STORAGE),
    (b"page", WaitsFor.STORAGE),
    (b"io_schedule", WaitsFor.STORAGE),
    (b"fsync", WaitsFor.STORAGE),
)


class Look(NamedTuple):
    """cpu_ns, io_bytes: of it and its children since they began; UNKNOWN: not to be read."""

    state: ProcessState
    waits_for: WaitsFor
    cpu_ns: int
    io_bytes: int


def look(pid: int) -> Look:
    """Blocks for some tens of microseconds."""
    fields = _stat(pid)
    if not fields:
        return Look(ProcessState.GONE, WaitsFor.UNKNOWN, UNKNOWN, UNKNOWN)
    channel = read_bounded(f"{PROC}/{pid}/wchan", _MOST_BYTES)
    waits_for = next((one for part, one in _CHANNELS if part in channel), WaitsFor.UNKNOWN)
    state = _STATES.get(fields[0], ProcessState.UNKNOWN)
    children = _children(pid)
    ticks = [int(own[_USER]) + int(own[_SYSTEM]) for one in (pid, *children) if len(own := _stat(one)) > _SYSTEM]
    io_bytes = [found for one in (pid, *children) if (found := _io_bytes(one)) != UNKNOWN]
    return Look(state, waits_for, sum(ticks) * _TICK_NS, sum(io_bytes) if io_bytes else UNKNOWN)


def _stat(pid: int) -> list[bytes]:
    return read_bounded(f"{PROC}/{pid}/stat", _MOST_BYTES).rpartition(b")")[2].split()


def _io_bytes(pid: int) -> int:
    lines = (line.partition(b":") for line in read_bounded(f"{PROC}/{pid}/io", _MOST_BYTES).splitlines())
    values = [int(value) for name, _, value in lines if name in _IO]
    return sum(values) if values else UNKNOWN


def _children(pid: int) -> list[int]:
    """All below it, as many as are looked at: those of its first thread come first."""
    found, at = list[int](), [pid]
    while at and len(found) < _MOST_CHILDREN:
        one = at.pop(0)
        own = list(map(int, read_bounded(f"{PROC}/{one}/task/{one}/children", _MOST_BYTES).split()))
        found += own
        at += own
    return found[:_MOST_CHILDREN]
