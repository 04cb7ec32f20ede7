# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them: names, containers, and which of them are ranks of a training job.

Names and environments are what strangers wrote: they are read up to a limit, and made printable here.
"""

import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from netmon.evidence import UNKNOWN, ProcessState, WaitsFor
from netmon.marks import JOB_VARIABLE, RankIdentity, printable, rank_from_environment

# Docker, containerd, CRI-O and Podman: a 64-digit id, wherever it stands.
_CONTAINER_ID = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_LXC = re.compile(r"/lxc(?:\.payload\.|/)([^/\n]+)")
_SLURM = re.compile(r"/slurm[^\n]*?/job_(\d+)")
_UNIT = re.compile(r"/([^/\n]+\.(?:service|scope))(?=/|$)", re.MULTILINE)
_NOBODY = ("init.scope",)

_CGROUP2_MOUNT = re.compile(r"^\S+ (\S+) cgroup2 ", re.MULTILINE)
_WALK_NS = 10_000_000_000


def container_name(cgroup: str) -> str:
    """From the text of /proc/PID/cgroup or a path: the container's short id, else its LXC name, else `slurm-JOB`,
    else the innermost systemd unit; empty where there is none.
    """
    if found := _CONTAINER_ID.search(cgroup) or _LXC.search(cgroup):
        return found[1]
    if found := _SLURM.search(cgroup):
        return f"slurm-{found[1]}"
    units = [unit for unit in _UNIT.findall(cgroup) if unit not in _NOBODY]
    return units[-1] if units else ""


class ControlGroups:
    """Names of control groups by their ids, for processes that are gone before their /proc could be read."""

    def __init__(self, root: Path | None = None) -> None:
        """root: where cgroup v2 is mounted; looked up unless it is given."""
        self._root = root or _cgroup2_root()
        self._paths: dict[int, str] = {}
        self._walked_ns = -_WALK_NS

    def container(self, identity: int) -> str:
        """As container_name; empty where the group is unknown. Walks the tree when it is, every ten seconds at most."""
        now = time.monotonic_ns()
        if self._root and identity not in self._paths and now - self._walked_ns >= _WALK_NS:
            self._walked_ns = now
            # A control group's id is the inode of its directory.
            self._paths = {os.stat(path).st_ino: path for path, *_ in os.walk(self._root)}
        return container_name(self._paths.get(identity, ""))


def _cgroup2_root() -> Path | None:
    try:
        found = _CGROUP2_MOUNT.search(Path("/proc/self/mounts").read_text())
    except OSError:
        return None
    return Path(found[1]) if found else None


# --- What people call a job, out of what its launcher gave to all of its ranks.

MOST_JOB_NAME = 96  # bytes
_MOST_PART = 64
_MOST_READ = 1024  # characters of what has to be searched
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# As Kubeflow's operators, Volcano, JobSet and indexed jobs call their pods.
_REPLICA = re.compile(
    r"(?:-(?:master|worker|launcher|chief|ps|evaluator|head|replica|node|task|workers))?(?:-\d+){1,2}$"
)
_NAMESPACES = ("POD_NAMESPACE", "KUBERNETES_NAMESPACE", "NAMESPACE")
_LAUNCHERS = ("MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "SLURM_LAUNCH_NODE_IPADDR")
# Open MPI 5 and 4 say it among other things (PMIX_HOSTNAME is the rank's own host).
_OPEN_MPI = (
    ("PMIX_NAMESPACE", re.compile(r"prterun-(.+)-\d+@\d+$")),
    ("OMPI_MCA_orte_hnp_uri", re.compile(r"[^;]*;(?:[^;]*;)??tcp6?://(\[[^\]]+\]|[^,:;]+)")),
)
_NO_RUN = ("", "none")  # torchrun's own, where it was given none


def job_name(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Kubernetes' name of the job, Slurm's, torchrun's, or the script and the host of its launcher, in this order.

    Empty where nobody has a better name than what all ranks have in common. command: as the process was started.
    """
    if environment.get(JOB_VARIABLE):
        return ""
    found = _kubernetes(environment) or _slurm(environment) or _torchrun(environment) or _script(environment, command)
    return printable(found, MOST_JOB_NAME)


def script_name(command: Sequence[str]) -> str:
    """The program's file, module or script without its folder; "" where there is none."""
    words = [word for word in command if word]
    if not words:
        return ""
    program = PurePosixPath(words[0]).name
    if not _INTERPRETER.match(program):
        return _part(program)
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return _part(next(rest, ""))
        if word.startswith("-c"):
            return _part(program)
        if word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return _part(PurePosixPath(word).name)
    return _part(program)


def _kubernetes(environment: Mapping[str, str]) -> str:
    """The pod's, without which of the job's pods it is."""
    pod = environment.get("POD_NAME") or environment.get("HOSTNAME", "")
    if not environment.get("KUBERNETES_SERVICE_HOST") or not pod:
        return ""
    job = _part(_REPLICA.sub("", pod) or pod)
    namespace = next((environment[name] for name in _NAMESPACES if environment.get(name)), "")
    return f"{_part(namespace)}/{job}" if namespace else job


def _slurm(environment: Mapping[str, str]) -> str:
    name, number = environment.get("SLURM_JOB_NAME", ""), environment.get("SLURM_JOB_ID", "")
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    if array and task:
        number = f"{array}_{task}"
    if not number:
        return ""
    return f"{_part(name)} (Slurm {_part(number)})" if name else f"Slurm {_part(number)}"


def _torchrun(environment: Mapping[str, str]) -> str:
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return "" if run in _NO_RUN else _part(run)


def _script(environment: Mapping[str, str], command: Sequence[str]) -> str:
    script = script_name(command)
    host = _launcher(environment)
    return f"{script}@{_part(host)}" if script and host else script


def _launcher(environment: Mapping[str, str]) -> str:
    """The host that the job was started from, or where its ranks met, as all of them have it; "" where nobody says."""
    for name in _LAUNCHERS:
        if environment.get(name):
            return environment[name]
    for name, pattern in _OPEN_MPI:
        if found := pattern.match(environment.get(name, "")[:_MOST_READ]):
            return found[1]
    return ""


def _part(text: str) -> str:
    return printable(text.strip(), _MOST_PART)


# --- processes

PROC = Path("/proc")
_FIRST_NAMESPACE = 0xEFFFFFF9  # NET_NS_INIT_INO (Linux 6.18), for those who may not look at process 1
_MACHINE_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO

# An environment is final once the launcher has called exec; until a process is so old it is read again.
_SETTLED_NS = 3_000_000_000
_SCAN_NS, _FIRST_SCAN_NS = 15_000_000, 1_000_000_000  # of one scan; who was not looked at comes first in the next
MOST_ENVIRONMENT = 256 << 10
"""Bytes of an environment that are read; what stands behind a stranger's filling does not count."""
_STAT_FIELDS, _OF_PROGRAM = 48, (23, 45, 47)  # proc(5), from the state on: startcode, arg_start, env_start
_MOST_COMMAND, _MOST_WORDS = 4 << 10, 64  # bytes of a command, and words of it
_MOST_SMALL = 16 << 10  # bytes of a file of a few lines


@dataclass(frozen=True)
class Process:
    """A process by pid and start, so that a pid that is used again is another process."""

    pid: int
    start_ticks: int
    name: str
    container: str
    rank: RankIdentity | None
    uid: int = 0  # the real one, as the machine numbers users
    parent: int = 0
    job_name: str = ""  # what people call the job that it is a rank of


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


def pid_namespace() -> tuple[int, int] | None:
    """Device and inode of the PID namespace that we are in; None where it is the machine's own."""
    status = os.stat("/proc/self/ns/pid")
    return None if status.st_ino == _MACHINE_PID_NAMESPACE else (status.st_dev, status.st_ino)


PARTIAL_VIEW = "steps and connections are reported of processes in it, not of those nested in it or outside of it"
"""What it means that `pid_namespace` is not the machine's: the kernel reports a process's number in its own only."""


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdecimal())


class _Stat(NamedTuple):
    parent: int
    start_ticks: int
    program: tuple[bytes, ...]  # its name, and where its code, arguments and environment lie: all new after exec


def _stat(pid: int) -> _Stat | None:
    name, _, rest = read_bounded(f"{PROC}/{pid}/stat", _MOST_SMALL).rpartition(b")")
    fields = rest.split()
    if len(fields) < _STAT_FIELDS:
        return None
    return _Stat(int(fields[1]), int(fields[19]), (name, *(fields[index] for index in _OF_PROGRAM)))


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; -1 where it is gone."""
    stat = _stat(pid)
    return stat.start_ticks if stat else -1


def user_ids(pid: int) -> tuple[int, ...]:
    """Real, effective, saved and file system uid, in this order; empty where it is gone.

    Not the owner of /proc/PID, which is root for a process that says it is not to be dumped.
    """
    text = read_bounded(PROC / str(pid) / "status", _MOST_SMALL)
    return tuple(map(int, text.partition(b"\nUid:")[2].split(None, 4)[:4]))


def uid_of(pid: int, gone: int) -> int:
    """Its real uid; `gone` where it is gone."""
    return (*user_ids(pid), gone)[0]


class Identity(NamedTuple):
    """What a process is, as the kernel says: another program, user or mount namespace is another identity."""

    start_ticks: int
    uid: int
    executable: str  # its path, which is not opened
    layout: tuple[bytes, ...]  # where its code, arguments and environment lie
    mount_namespace: str


def identity_of(pid: int) -> Identity | None:
    """None where it is gone, not ours to see, or of two users at once, as a setuid program is. Opens no file."""
    stat, uids = _stat(pid), set(user_ids(pid))
    try:
        executable, mounts = (os.readlink(f"{PROC}/{pid}/{name}") for name in ("exe", "ns/mnt"))
    except OSError:
        return None
    if stat is None or len(uids) != 1:
        return None
    return Identity(stat.start_ticks, uids.pop(), executable, stat.program[1:], mounts)


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with, as far as it is read; empty where it is gone or not ours to see."""
    text = os.fsdecode(read_bounded(PROC / str(pid) / "environ", MOST_ENVIRONMENT))
    return dict(pair.partition("=")[::2] for pair in text.split("\0"))


def command_of(pid: int) -> list[str]:
    """How a process was started, as far as it is read; empty where it is gone or not ours to see."""
    text = read_bounded(PROC / str(pid) / "cmdline", _MOST_COMMAND)
    return text.decode(errors="replace").split("\0")[:_MOST_WORDS]


_READ_BYTES = 1 << 16  # at a time: the kernel gives a page or so, whatever room there is


def read_bounded(path: Path | str, most: int) -> bytes:
    """The first bytes of a file of /proc; empty where it cannot be read."""
    parts = []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while most > 0 and (part := os.read(descriptor, min(most, _READ_BYTES))):
            parts.append(part)
            most -= len(part)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _describe(pid: int, before: _Stat) -> Process | None:
    """One process; None where it is gone. What we may not read is left empty. before: as it was just now."""
    directory = PROC / str(pid)
    name = printable(read_bounded(directory / "comm", _MOST_SMALL).decode(errors="replace").strip())
    container = printable(container_name(read_bounded(directory / "cgroup", _MOST_SMALL).decode(errors="replace")))
    environment = environment_of(pid)
    rank = rank_from_environment(environment)
    called = job_name(environment, command_of(pid)) if rank else ""
    uid = uid_of(pid, gone=0)
    if start_ticks(pid) != before.start_ticks:  # it went while we looked: half of that may be empty
        return None
    mine = rank if rank and on_this_host(pid) else None
    return Process(pid, before.start_ticks, name, container, mine, uid, before.parent, called)


def in_turn(items: Iterable[int], user: Callable[[int], int]) -> Iterator[int]:
    """One of each user, then the second of each, and so on: nobody is behind all that somebody else has."""
    queues: dict[int, list[int]] = defaultdict(list)
    for item in items:
        queues[user(item)].append(item)
    index = 0
    while queues:
        for uid, queue in list(queues.items()):
            yield queue[index]
            if index + 1 == len(queue):
                del queues[uid]
        index += 1


class ProcessTable:
    """Every process, looked at when it is new and until its environment can be trusted."""

    def __init__(self) -> None:
        self._known: dict[int, Process] = {}
        self._first_seen_ns: dict[int, int] = {}
        self._looked_ns: dict[int, int] = {}
        self._stats: dict[int, int] = {}  # of those that are known: hash of their _Stat when they were looked at
        self._alive: set[int] = set()
        self._young: set[int] = set()  # not settled

    def scan(self, now_ns: int) -> None:
        """Takes in what has begun and ended since the last scan, as far as the time of one goes."""
        alive = set(pids())
        if alive != self._alive:
            for pid in (self._known.keys() | self._first_seen_ns.keys()) - alive:
                self._forget(pid)
            self._alive = alive
            self._young = alive
        for pid in self._young:
            self._first_seen_ns.setdefault(pid, now_ns)
        wanted = [pid for pid in self._young if self._looked_ns.get(pid, 0) < self._first_seen_ns[pid] + _SETTLED_NS]
        self._young = set(wanted)
        wanted.sort(key=lambda pid: self._looked_ns.get(pid, 0))
        until_ns = time.monotonic_ns() + (_SCAN_NS if self._known else _FIRST_SCAN_NS)
        for pid in in_turn(wanted, _owner):
            self._looked_ns[pid] = max(now_ns, 1)
            self._look_again(pid, settled=now_ns >= self._first_seen_ns[pid] + _SETTLED_NS)
            if time.monotonic_ns() > until_ns:
                break

    def _look_again(self, pid: int, settled: bool) -> None:
        """Only as far as it needs: what was started is another program after exec. settled: for the last time."""
        stat = _stat(pid)
        if settled or stat is None or hash(stat) != self._stats.get(pid):
            self._look(pid, stat)

    def _forget(self, pid: int) -> None:
        for memory in (self._known, self._first_seen_ns, self._looked_ns, self._stats):
            memory.pop(pid, None)

    def _look(self, pid: int, stat: _Stat | None) -> None:
        """stat: as it is now; None: it is gone."""
        process = _describe(pid, stat) if stat else None
        if process is None:
            self._forget(pid)
            self._alive.discard(pid)  # who gets this pid next is looked at anew
        else:
            self._known[pid], self._stats[pid] = process, hash(stat)

    def get(self, pid: int) -> Process | None:
        """The process of this pid, looked at now if it is unknown."""
        if pid not in self._known:
            self._look(pid, _stat(pid))
        return self._known.get(pid)

    def current(self, pid: int) -> Process | None:
        """As get, but never a process that had the number before, or what it was before exec."""
        if pid in self._known:
            stat = _stat(pid)
            if hash(stat) != self._stats.get(pid):
                self._look(pid, stat)
        return self.get(pid)

    def ranks(self) -> list[Process]:
        """Every process that carries the environment a launcher gave a rank, oldest first: its children do, too.

        Which of them trains is settled by who maps and calls the training library.
        """
        ranks = [process for process in self._known.values() if process.rank]
        return sorted(ranks, key=lambda process: (process.start_ticks, process.pid))


def _owner(pid: int) -> int:
    """Whose turn a look at this process is; cheaper than its uid, and good enough for that."""
    try:
        return os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return -1


# --- Whether processes or interfaces have come or gone: cheap to query again and again, without walking /proc.

_RTMGRP_LINK = 1
_LINE = 256


class Changes:
    """What the caller's namespaces have. Needs no privilege; never blocks."""

    def __init__(self, proc: Path = PROC) -> None:
        """Everything is new. Raises OSError where there is no routing socket."""
        self._folder = str(proc)
        self._loadavg = _own_file(self._folder, "loadavg")
        self._before = b"", 0
        self._links = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        self._links.bind((0, _RTMGRP_LINK))

    def seen(self) -> bool:
        """Whether anything may have come or gone since the last call; true where that is not known."""
        processes, links = self._processes_changed(), self._links_changed()
        return processes or links

    def _processes_changed(self) -> bool:
        """By the number that was given to a process or thread last (proc(5): loadavg), and how many processes are."""
        if self._loadavg is None:
            return True
        try:
            now = os.pread(self._loadavg, _LINE, 0).rpartition(b" ")[2], os.stat(self._folder).st_nlink
        except OSError:
            return True
        before, self._before = self._before, now
        return now != before

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
        self._links.close()
        if self._loadavg is not None:
            os.close(self._loadavg)


def _own_file(folder: str, name: str) -> int | None:
    """A descriptor; None where it cannot be read, or is not the kernel's: a container's /proc may be put together by
    somebody else, who tells it seldom.
    """
    try:
        descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(descriptor).st_dev == os.stat(folder).st_dev:
        return descriptor
    os.close(descriptor)
    return None


# --- What a process that stands still is doing: its state, what it waits for, and whether it or its children get on.


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
    fields = _fields(pid)
    if not fields:
        return Look(ProcessState.GONE, WaitsFor.UNKNOWN, UNKNOWN, UNKNOWN)
    channel = read_bounded(f"{PROC}/{pid}/wchan", _MOST_BYTES)
    waits_for = next((one for part, one in _CHANNELS if part in channel), WaitsFor.UNKNOWN)
    state = _STATES.get(fields[0], ProcessState.UNKNOWN)
    children = _children(pid)
    ticks = [int(own[_USER]) + int(own[_SYSTEM]) for one in (pid, *children) if len(own := _fields(one)) > _SYSTEM]
    io_bytes = [found for one in (pid, *children) if (found := _io_bytes(one)) != UNKNOWN]
    return Look(state, waits_for, sum(ticks) * _TICK_NS, sum(io_bytes) if io_bytes else UNKNOWN)


def _fields(pid: int) -> list[bytes]:
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
