# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them: names, containers, and which of them are ranks of a training job."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from netmon.kernel.owners.containers import container_name
from netmon.marks import RankIdentity, rank_from_environment

PROC = Path("/proc")
_FIRST_NAMESPACE = 0xEFFFFFF9  # NET_NS_INIT_INO (Linux 6.18), for those who may not look at process 1

# An environment is final once the launcher has called exec; until a process is so old it is read again.
_SETTLED_NS = 3_000_000_000


@dataclass(frozen=True)
class Process:
    """A process by pid and start, so that a pid that is used again is another process."""

    pid: int
    start_ticks: int
    name: str
    container: str
    rank: RankIdentity | None


def machine_wide() -> bool:
    """Whether the caller watches for the whole machine, or for its own network namespace only.

    From the machine's own network namespace every process belongs to this host, those in containers with a network
    of their own included: their traffic leaves through the interfaces here. From any other one (a host of a testbed,
    an agent inside a container) it is those that share it.
    """
    return namespace_of("self") in (namespace_of("1"), _FIRST_NAMESPACE)


def on_this_host(pid: int) -> bool:
    """Whether a process belongs to the host that the caller watches."""
    return machine_wide() or namespace_of("self") == namespace_of(str(pid))


def namespace_of(pid: str) -> int:
    """Inode of a process's network namespace; 0 where it is gone or not ours to see."""
    try:
        return (PROC / pid / "ns/net").stat().st_ino
    except OSError:
        return 0


def pids() -> Iterator[int]:
    """All processes that we can see."""
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; -1 where it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[19])


def describe(pid: int) -> Process | None:
    """One process; None where it is gone. What we may not read is left empty."""
    started = start_ticks(pid)
    if started < 0:
        return None
    directory = PROC / str(pid)
    name = _read(directory / "comm").strip()
    container = container_name(_read(directory / "cgroup"))
    environment = dict(pair.partition("=")[::2] for pair in _read(directory / "environ").split("\0"))
    rank = rank_from_environment(environment)
    if start_ticks(pid) != started:  # it went while we looked: half of that may be empty
        return None
    return Process(pid, started, name, container, rank if rank and on_this_host(pid) else None)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


class ProcessTable:
    """Every process, looked at when it is new and until its environment can be trusted."""

    def __init__(self) -> None:
        """Nothing has been looked at."""
        self._known: dict[int, Process] = {}
        self._first_seen_ns: dict[int, int] = {}

    def scan(self, now_ns: int) -> None:
        """Takes in what has begun and ended since the last scan."""
        alive = set(pids())
        for pid in (self._known.keys() | self._first_seen_ns.keys()) - alive:
            self._known.pop(pid, None)
            self._first_seen_ns.pop(pid, None)
        for pid in alive:
            if now_ns - self._first_seen_ns.setdefault(pid, now_ns) < _SETTLED_NS:
                self._look(pid)

    def _look(self, pid: int) -> None:
        process = describe(pid)
        if process is None:
            self._known.pop(pid, None)
            self._first_seen_ns.pop(pid, None)  # who gets this pid next is looked at anew
        else:
            self._known[pid] = process

    def get(self, pid: int) -> Process | None:
        """The process of this pid, looked at now if it is unknown."""
        if pid not in self._known:
            self._look(pid)
        return self._known.get(pid)

    def current(self, pid: int) -> Process | None:
        """As get, but never a process that had the number before."""
        known = self._known.get(pid)
        if known and known.start_ticks != start_ticks(pid):
            del self._known[pid]
        return self.get(pid)

    def ranks(self) -> list[Process]:
        """Every process that carries the environment a launcher gave a rank, oldest first: its children do, too.

        Which of them trains is settled by who maps and calls the training library.
        """
        ranks = [process for process in self._known.values() if process.rank]
        return sorted(ranks, key=lambda process: (process.start_ticks, process.pid))
