# SPDX-License-Identifier: Apache-2.0
"""Probes on the training libraries that running processes have mapped.

A probe sits on the library's file, so one attachment serves every process that maps it, those that start later and
those in containers included. It belongs to a perf descriptor and vanishes with it; nothing is written into tracefs.

Anybody can map files with the right names, as many as a process may have, so everything here has a limit per user.
"""

import contextlib
import ctypes
import errno
import os
import re
import resource
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from netmon.errors import KernelError
from netmon.kernel.bpf_calls import uprobe_link
from netmon.kernel.processes import PROC, Identity, identity_of, in_turn, read_bounded, start_ticks, uid_of
from netmon.kernel.stalling import StalledError, StallingCalls, close_late
from netmon.kernel.training.nccl import Library
from netmon.kernel.training.symbols import LOCAL, Offsets, Reading, SlowError
from netmon.marks import printable
from netmon.rate_limiter import TimeLimiter

# --- Which functions of which training libraries are probed, and how a probe is attached.

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SET_BPF, _ENABLE = 0x40042408, 0x2400  # PERF_EVENT_IOC_*
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_PMU = Path("/sys/bus/event_source/devices/uprobe")
_ATTRIBUTE_SIZE = 112


class Probe(NamedTuple):
    """Where a program of bpf/steps.c is attached: a library by its path, a function by its mangled name's beginning."""

    library: "re.Pattern[str]"
    symbol: str
    program: str
    cow: str = ""  # the program for libraries whose std::string is the one before C++11's; "": it reads no strings
    returns: bool = False  # the program runs where the function returns

    def program_for(self, name: str) -> str:
        """The program for the function of this mangled name, which tells what its strings are."""
        return self.cow if self.cow and "__cxx11" not in name else self.program


# Horovod 0.21 to 0.28 call the library of PyTorch mpi_lib_v2, those of TensorFlow and MXNet mpi_lib. In all of them
# EnqueueTensorAllreduce and grouped all-reduces end in EnqueueTensorAllreduces, whose names are the fifth argument.
_HOROVOD = re.compile(r"/mpi_lib(_v2)?(\.[^/]+)?\.so$")
_HOROVOD_TORCH = re.compile(r"/mpi_lib_v2(\.[^/]+)?\.so$")
_HOROVOD_OTHERS = re.compile(r"/mpi_lib(\.[^/]+)?\.so$")
_TORCH = re.compile(r"/libtorch_(cpu|python)\.so$")
_TORCH_CUDA = re.compile(r"/libtorch_cuda\.so$")
NCCL = re.compile(r"/libnccl\.so(\.\d+)*$")
_CUDA = re.compile(r"/libcudart(-[0-9a-f]+)?\.so(\.\d+)*$")
# Of jaxlib 0.6 and later. It exports nothing of this.
_JAX = re.compile(r"/libjax_common\.so$")
_OTHER_COLLECTIVES = {
    **dict.fromkeys(("22EnqueueTensorAllgather", "23EnqueueTensorAllgathers"), "horovod_gather"),
    "22EnqueueTensorBroadcast": "horovod_broadcast",
    **dict.fromkeys(
        ("21EnqueueTensorAlltoall", "26EnqueueTensorReducescatter", "27EnqueueTensorReducescatters"), "horovod_other"
    ),
}
# What else ranks send each other: steps that are known by sums do not explain it.
_GLOO_TRANSFERS = ("9allgatherE", "10allgathervE", "8alltoallE", "9alltoallvE", "6gatherE")
_WORKS, _REPLACED_BY_WORKS = "gloo_work", ("gloo_call", "gloo_enqueue", "gloo_transfer", "gloo_broadcast")
_GLOO_GROUP = "_ZN4c10d16ProcessGroupGloo"
_CUDA_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
_WORK_OVER = (f"{_GLOO_GROUP}9AsyncWork19finishWorkGlooErrorE", "_ZN4c10d4Work14finishAndThrowE")
_XLA_GLOO = f"{LOCAL}_ZN3xla3cpu16GlooCommunicator"
_XLA_CALLS = {
    "9AllReduceEN": "xla_all_reduce",
    "9AllGatherEN": "xla_all_gather",
    "13ReduceScatterEN": "xla_reduce_scatter",
    "8AllToAllEN": "xla_all_to_all",
    "17CollectivePermuteEN": "xla_permute",
}
_XLA_OVER = {**dict.fromkeys(_XLA_CALLS.values(), "xla_collective_over"), "xla_permute": "xla_permute_over"}
PROBES = (
    Probe(_HOROVOD, "_ZN7horovod6common23EnqueueTensorAllreducesE", "horovod_enqueue", "horovod_enqueue_cow"),
    Probe(_HOROVOD, "_ZN7horovod6common7Request16set_tensor_shapeE", "horovod_shape"),
    *(Probe(_HOROVOD, f"_ZN7horovod6common{name}E", program) for name, program in _OTHER_COLLECTIVES.items()),
    Probe(_HOROVOD_TORCH, "_ZN7horovod5torch12WaitAndClearE", "horovod_wait_begin"),
    Probe(_HOROVOD_TORCH, "_ZN7horovod5torch13HandleManager13ReleaseHandleE", "horovod_wait_end"),
    Probe(_HOROVOD_OTHERS, "_ZN7horovod6common8Timeline3EndE", "horovod_done", "horovod_done_cow"),
    Probe(_HOROVOD, "_ZN7horovod6common10RendezvousE", "horovod_rank", "horovod_rank_cow"),
    Probe(_TORCH, "_ZN4c10d7Reducer17all_reduce_bucketE", "reducer_enqueue"),
    Probe(_TORCH, "_ZN4c10d7Reducer17finalize_backwardE", "reducer_wait_begin"),
    Probe(_TORCH, "_ZN4c10d7Reducer21finalize_bucket_denseE", "reducer_wait_end"),
    Probe(NCCL, "ncclAllReduce", "nccl_enqueue"),
    *(Probe(NCCL, name, "nccl_gather") for name in ("ncclAllGather", "ncclReduceScatter", "ncclAlltoAll")),
    Probe(NCCL, "ncclBroadcast", "nccl_broadcast"),
    *(Probe(NCCL, name, "nccl_send") for name in ("ncclSend", "ncclRecv")),
    Probe(_TORCH_CUDA, "_ZN4c10d16ProcessGroupNCCL9allreduceE", "nccl_call"),  # of a PyTorch that contains NCCL
    *(Probe(_CUDA, name, "cuda_wait") for name in _CUDA_WAITS),
    *(Probe(_CUDA, name, "cuda_waited", returns=True) for name in _CUDA_WAITS),
    Probe(_TORCH, "_ZN4c10d16ProcessGroupGloo9allreduceE", "gloo_call"),
    Probe(_TORCH, "_ZN4gloo9allreduceER", "gloo_enqueue"),
    *(Probe(_TORCH, f"_ZN4gloo{name}R", "gloo_transfer") for name in _GLOO_TRANSFERS),
    *(Probe(_TORCH, f"_ZN4gloo{name}R", "gloo_broadcast") for name in ("9broadcastE", "6reduceE")),
    *(Probe(_TORCH, f"_ZN4c10d16ProcessGroupGloo{name}E", "gloo_send") for name in ("4send", "4recv")),
    Probe(_TORCH, "_ZN4c10d4Work4waitE", "work_wait_begin"),
    Probe(_TORCH, "_ZN4c10d4Work11synchronizeE", "work_wait_end"),
    Probe(_TORCH, f"{_GLOO_GROUP}9AsyncWorkC2ESt10shared_ptrIN4gloo7ContextEE", "gloo_work"),  # PyTorch 2.7 and later
    Probe(_TORCH, f"{_GLOO_GROUP}8SendWorkC2E", "gloo_send_work"),
    Probe(_TORCH, f"{_GLOO_GROUP}8RecvWorkC2E", "gloo_receive_work"),
    *(Probe(_TORCH, f"{_GLOO_GROUP}8{way}Work4waitE", "transfer_wait") for way in ("Send", "Recv")),
    *(Probe(_TORCH, name, "work_over") for name in _WORK_OVER),
    Probe(_TORCH, "_ZN5torch8autograd6Engine7executeE", "backward"),
    Probe(_TORCH, f"{_GLOO_GROUP}C2E", "gloo_group"),
    Probe(_TORCH, "_ZN4gloo10rendezvous7ContextC2E", "gloo_context"),
    Probe(_TORCH, "_ZN4c10d12ProcessGroup12setGroupNameE", "group_name", "group_name_cow"),
    *(Probe(_JAX, f"{_XLA_GLOO}{name}", program) for name, program in _XLA_CALLS.items()),
    *(Probe(_JAX, f"{_XLA_GLOO}{name}", _XLA_OVER[program], returns=True) for name, program in _XLA_CALLS.items()),
    Probe(_JAX, f"{LOCAL}_ZN4gloo10rendezvous7ContextC1Eiii", "gloo_context"),
    Probe(_JAX, f"{LOCAL}_ZN4gloo10rendezvous11PrefixStoreC1ERK", "group_name"),
)


def is_training_library(path: str) -> bool:
    return any(probe.library.search(path) for probe in PROBES)


def _has_nccl(path: str) -> bool:
    return bool(NCCL.search(path) or _TORCH_CUDA.search(path))


def attach_probe(program: int, path: str, offset: int, returns: bool = False) -> int:
    """A descriptor, for as long as which the program runs at this offset of the file, or where the function that begins
    there returns. Raises KernelError."""
    try:
        return uprobe_link(program, path, offset, returns=returns)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise KernelError(error.strerror) from error
    return _attach_by_perf(program, path, offset, returns)  # before Linux 6.6


def _attach_by_perf(program: int, path: str, offset: int, returns: bool) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    name = ctypes.create_string_buffer(path.encode())
    attribute = bytearray(_ATTRIBUTE_SIZE)
    # struct perf_event_attr: type, size, config (bit 0: the return), …, config1 = path, config2 = offset
    struct.pack_into("<IIQ", attribute, 0, int((_PMU / "type").read_text()), _ATTRIBUTE_SIZE, int(returns))
    struct.pack_into("<QQ", attribute, 56, ctypes.addressof(name), offset)
    buffer = (ctypes.c_char * _ATTRIBUTE_SIZE).from_buffer(attribute)
    call = _PERF_EVENT_OPEN[os.uname().machine]
    descriptor: int = libc.syscall(call, buffer, -1, 0, -1, _CLOEXEC)
    if descriptor < 0:
        raise KernelError(os.strerror(ctypes.get_errno()))
    for request, argument in ((_SET_BPF, program), (_ENABLE, 0)):
        if libc.ioctl(descriptor, ctypes.c_ulong(request), argument) < 0:
            error = os.strerror(ctypes.get_errno())
            os.close(descriptor)
            raise KernelError(error)
    return descriptor


# --- The training libraries that a process has mapped, as the kernel tells: /proc/PID/maps, up to a limit.

_MOST_BYTES = 4 << 20  # of maps: a process with CUDA has thousands of lines of a hundred bytes
_MOST_LIBRARIES = 64  # of one process
_MOST_PARTS = 16  # of one library
_EXECUTABLE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) [0-9a-f]+:[0-9a-f]+ (\d+) +"
    rb"(/[^\n]*/(?:mpi_lib|libtorch_|libnccl|libcudart|libibverbs|libjax_common)[^/\n]*\.so[^/\n]*)$",
    re.MULTILINE,
)


@dataclass
class MappedLibrary:
    """A file that is called like a training library, as one process maps it."""

    path: str  # as the process sees it
    inode: int
    parts: list[range] = field(default_factory=list)  # of the file, that the process may execute

    def executes(self, offset: int) -> bool:
        """Whether the code at this offset of the file is mapped as code."""
        return any(offset in part for part in self.parts)

    def open(self, pid: int) -> tuple[int, os.stat_result]:
        """A descriptor for reading, of the very file that is mapped, and what it is.

        Blocks as long as its file system does. Raises OSError, and KernelError with the reason.

        What stands at that path now may be something else, such as a pipe that nobody writes to or a device: it is
        looked at before it is opened.
        """
        # A process that called chroot maps it by a path of our own.
        for root in (f"{PROC}/{pid}/root", "/"):
            try:
                index = _open_path(root, self.path)
            except OSError:
                continue
            try:
                status = os.fstat(index)
                # File systems that lie over others (overlayfs, by which containers have their files) have no device,
                # and inodes other than those that are mapped.
                same = status.st_ino == self.inode or os.major(status.st_dev) == 0
                if not stat.S_ISREG(status.st_mode) or not same:
                    continue
                descriptor = os.open(f"/proc/self/fd/{index}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                return descriptor, status
            finally:
                os.close(index)
        raise KernelError("what stands at its path is not what is mapped")


def _open_path(root: str, path: str) -> int:
    """A descriptor of what stands at a path below a root, for no use but to look at it. Raises OSError.

    What the kernel reports a mapping has no links in it. Whatever has become one since is not followed: in another
    process's root it would lead into ours.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    index = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, name = path.strip("/").split("/")
    for part, more in (*((folder, os.O_DIRECTORY) for folder in folders), (name, 0)):
        folder, index = index, -1
        try:
            if part == "..":
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            index = os.open(part, flags | more, dir_fd=folder)
        finally:
            os.close(folder)
    return index


def mapped_libraries(pid: int, wanted: Callable[[str], bool] = is_training_library) -> dict[str, MappedLibrary]:
    """By path. Empty where the process is gone. wanted: by path."""
    found: dict[str, MappedLibrary] = {}
    for line in _EXECUTABLE.finditer(read_bounded(PROC / str(pid) / "maps", _MOST_BYTES)):
        begin, end, offset, inode, name = line.groups()
        path = os.fsdecode(name)
        library = found.get(path)
        if library is None:
            if len(found) == _MOST_LIBRARIES:
                break
            if not wanted(path):
                continue
            library = found[path] = MappedLibrary(path, int(inode))
        if library.inode == int(inode) and len(library.parts) < _MOST_PARTS:
            length = int(end, 16) - int(begin, 16)
            library.parts.append(range(int(offset, 16), int(offset, 16) + length))
    return found


# --- uprobes


_SETUP_S = 1.0  # a process needs more than this to import a framework and to set a job up
_EAGER_LOOKS = 100  # at a new process, which imports its libraries one after the other; later every tenth
_LOOK_NS = 10_000_000  # at processes' maps; who was not looked at comes first the next time
_WAIT_S = 0.5  # for libraries to be read; what takes longer is attached to later
_OPEN_S = 0.2  # to open a library; what takes longer is on a file system that does not answer
_READING_SHARE, _READING_BURST_NS = 0.01, 1_500_000_000  # of a core, for one user's libraries
_MOST_FILES, _MOST_OF_USER = 192, 48  # probed at a time
_MOST_REFUSED = 4096  # files that are remembered as such
_AGAIN_S, _MOST_TRIES = 30.0, 5  # after what could not be read in time is tried again, twice as long each time
_MOST_WARNINGS = 16  # at a time
_MOST_LIMITERS = 256
_OTHER_DESCRIPTORS = 512  # for all else that this process opens

_File = tuple[int, int]
"""Device and inode."""


@dataclass
class _Watched:
    """A process. looks: at its maps. identity: at the last one; what was seen of it holds for no other."""

    uid: int
    began_s: float
    identity: Identity | None = None
    looks: int = 0
    looked_ns: int = 0
    libraries: dict[str, bool] = field(default_factory=dict)  # path → whether the first look has found it
    settled: dict[str, _File | None] = field(default_factory=dict)  # path → what is probed; None: nothing


@dataclass
class _Probed:
    """A file. path: for people."""

    uid: int
    path: str
    at_s: float
    descriptors: list[int]
    used: int = 0  # the last call of `follow` in which somebody mapped it


@dataclass
class _PendingFile:
    """A file that somebody maps and that is not probed. reading: None: it has not been begun."""

    pid: int
    uid: int
    library: MappedLibrary
    version: tuple[int, ...]
    descriptor: int
    reading: Reading | None = None


class Uprobes:
    """The probes attached so far. Needs CAP_PERFMON and, to see other users' processes, CAP_SYS_PTRACE."""

    def __init__(self, programs: dict[str, int], probes: Sequence[Probe] = PROBES) -> None:
        """programs: descriptors of the loaded uprobe programs by name."""
        self._programs, self._probes = programs, probes
        self._processes: dict[int, _Watched] = {}
        self._probed: dict[_File, _Probed] = {}
        self._refused: dict[tuple[int, ...], None] = {}
        self._slow: dict[tuple[int, ...], tuple[int, float]] = {}  # how often it was tried, and from when on it may be
        self._pending: dict[_File, _PendingFile] = {}  # in one call of `follow`, but for the one that is being read
        self._limiters: dict[int, TimeLimiter] = {}  # by user
        self._delayed_users: set[int] = set()  # users one of whose libraries is to be read later
        self._calls = 0
        self._opening = StallingCalls(_OPEN_S)
        self._most_probes = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_DESCRIPTORS
        self._warnings: list[str] = []
        self._with_nccl: list[Library] = []
        self.late: set[int] = set()
        """The processes that may have trained before their library was probed."""

    @property
    def training(self) -> set[int]:
        return {pid for pid, process in self._processes.items() if process.libraries}

    @property
    def probed(self) -> set[int]:
        """The processes whose calls are seen."""
        return {pid for pid, process in self._processes.items() if any(process.settled.values())}

    @property
    def trainers(self) -> dict[int, Identity]:
        """The same, with what each of them was when it was seen to map one."""
        processes = self._processes.items()
        return {pid: process.identity for pid, process in processes if process.libraries and process.identity}

    def follow(self, pids: Iterable[int]) -> list[str]:
        """Attaches to the libraries that these processes map and that are not probed yet; returns their paths.

        pids: all ranks that are alive. Takes half a second at most: what is left is done the next time. A library that
        cannot be probed is not tried again, unless it changes, or was not read in time; `warnings` says why.
        """
        self._calls += 1
        alive = set(pids)
        self._processes = {pid: self._processes.get(pid) or _begin(pid) for pid in sorted(alive)}
        self.late &= alive
        self._look_at_maps()
        for process in self._processes.values():
            for file in process.settled.values():
                if file in self._probed:
                    self._probed[file].used = self._calls
        return self._read_and_attach()

    def warnings(self) -> list[str]:
        """What could not be done since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    @property
    def files(self) -> Collection[_File]:
        """That are probed."""
        return self._probed.keys()

    def take_nccl(self) -> list[Library]:
        """Libraries that have been probed since the last call, and that may have NCCL in them."""
        found, self._with_nccl = self._with_nccl, []
        return found

    def spend(self, uid: int, cost_ns: int) -> None:
        """Processor time for a library of this user."""
        self._limiter(uid).spend(cost_ns)

    def _look_at_maps(self) -> None:
        until_ns = time.monotonic_ns() + _LOOK_NS
        waiting = sorted(self._processes, key=lambda pid: self._processes[pid].looked_ns)
        for pid in in_turn(waiting, lambda pid: self._processes[pid].uid):
            process = self._processes[pid]
            process.looked_ns = time.monotonic_ns()
            process.looks += 1
            if process.looks <= _EAGER_LOOKS or process.looks % 10 == 0:
                self._look_at(pid, process)
            if time.monotonic_ns() > until_ns:
                return

    def _look_at(self, pid: int, process: _Watched) -> None:
        identity = identity_of(pid)
        if identity is None or process.identity not in (None, identity):  # exec
            process = self._processes[pid] = replace(_begin(pid), looks=process.looks, looked_ns=process.looked_ns)
        process.identity = identity
        if identity is None:
            return
        found = mapped_libraries(pid, self._is_wanted)
        with_nccl = any(_has_nccl(path) for path in found)
        for path, library in found.items():
            if _CUDA.search(path) and not with_nccl:
                continue
            process.libraries.setdefault(path, process.looks == 1)
            if path not in process.settled:
                try:
                    self._want(pid, library)
                except StalledError as error:  # it may answer again
                    self._warn(path, str(error))
                except (KernelError, OSError) as error:
                    process.settled[path] = None
                    self._warn(path, str(error))

    def _is_wanted(self, path: str) -> bool:
        return any(probe.library.search(path) for probe in self._probes)

    def want_file(self, path: str) -> None:
        """One that nobody has to map: `follow` attaches to it. Raises OSError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        library = MappedLibrary(os.path.realpath(path), status.st_ino, [range(status.st_size)])
        file = status.st_dev, status.st_ino
        if file in self._probed or file in self._pending:
            os.close(descriptor)
            return
        version = (*file, status.st_size, status.st_mtime_ns)
        self._pending[file] = _PendingFile(0, status.st_uid, library, version, descriptor)

    def _want(self, pid: int, library: MappedLibrary) -> None:
        """What is known of the file is used, else it will be read."""
        process = self._processes[pid]
        uid = process.uid = process.identity.uid if process.identity else process.uid
        descriptor, status = self._opening.call(uid, lambda: library.open(pid), close_late)
        file = status.st_dev, status.st_ino
        version = (*file, status.st_size, status.st_mtime_ns)
        if file in self._probed or version in self._refused:
            os.close(descriptor)
            self._settle(pid, library.path, file)
        elif file in self._pending or self._slow.get(version, (0, 0.0))[1] > time.monotonic():
            os.close(descriptor)
        else:
            self._pending[file] = _PendingFile(pid, uid, library, version, descriptor)

    def _settle(self, pid: int, path: str, file: _File) -> None:
        """What a process may have done with this library before it was probed; Horovod tells more than what it uses."""
        process, probed = self._processes.get(pid), self._probed.get(file)
        if process is None:
            return
        process.settled[path] = file if probed else None
        if probed:
            probed.used = self._calls
            whole = _CUDA.search(path) or process.began_s + _SETUP_S >= probed.at_s  # no step begins in CUDA's
            if process.libraries[path] and not whole:
                self.late.add(pid)
            elif "/mpi_lib" in path:
                self.late.discard(pid)

    def _read_and_attach(self) -> list[str]:
        """One library after the other, of one user and then of the next."""
        added = []
        until = time.monotonic() + _WAIT_S
        files = list(self._pending)
        under_way = [number for number, file in enumerate(files) if self._pending[file].reading]
        users = [pending.uid for pending in self._pending.values()]
        in_order = in_turn(range(len(files)), users.__getitem__)
        try:
            for file in dict.fromkeys(files[number] for number in (*under_way, *in_order)):
                pending = self._pending[file]
                if not pending.reading and not self._begin_reading(pending):
                    continue
                if not pending.reading or not pending.reading.ends_within(until - time.monotonic()):
                    break
                del self._pending[file]
                added += self._finish(file, pending, pending.reading)
        finally:
            for file in [file for file, pending in self._pending.items() if not pending.reading]:
                os.close(self._pending.pop(file).descriptor)
        return added

    def _begin_reading(self, pending: _PendingFile) -> bool:
        if not self._limiter(pending.uid).allows():
            if pending.uid not in self._delayed_users:
                self._warn(pending.library.path, "its user's libraries took long to be read; it is read later")
            self._delayed_users.add(pending.uid)
            return False
        self._delayed_users.discard(pending.uid)
        if self._make_room(pending.uid):
            symbols = dict.fromkeys(probe.symbol for probe in self._probes_on(pending.library))
            pending.reading = Reading(pending.descriptor, [*symbols])
        return pending.reading is not None

    def _finish(self, file: _File, pending: _PendingFile, reading: Reading) -> list[str]:
        path = pending.library.path
        try:
            self._attach(file, pending, reading.result())
        except (KernelError, OSError) as error:
            if isinstance(error, SlowError) and self._is_tried_again(pending.version):
                self._warn(path, f"{error}; that is tried again")
                return []
            self._refused[pending.version] = None
            if len(self._refused) > _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._warn(path, str(error))
        finally:
            os.close(pending.descriptor)
            self._limiter(pending.uid).spend(reading.cost_ns)
        self._settle(pending.pid, path, file)
        return [path] if file in self._probed else []

    def _is_tried_again(self, version: tuple[int, ...]) -> bool:
        tries = self._slow.pop(version, (0, 0.0))[0] + 1
        if tries >= _MOST_TRIES:
            return False
        self._slow[version] = tries, time.monotonic() + _AGAIN_S * 2 ** (tries - 1)
        if len(self._slow) > _MOST_REFUSED:
            del self._slow[next(iter(self._slow))]
        return True

    def _attach(self, file: _File, pending: _PendingFile, offsets: Offsets) -> None:
        """offsets: as somebody says who has read a stranger's file: nothing but code of that file is probed."""
        works = any(offsets[probe.symbol] for probe in self._probes_on(pending.library) if probe.program == _WORKS)
        found = [
            (self._programs[probe.program_for(name)], offset, probe.returns)
            for probe in self._probes_on(pending.library)
            if not (works and probe.program in _REPLACED_BY_WORKS)
            for offset, name in offsets[probe.symbol].items()
        ]
        if not all(pending.library.executes(offset) for _, offset, _ in found):
            raise KernelError("its functions are not where its code is")
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        with contextlib.ExitStack() as undo:
            descriptors: list[int] = []
            for program, offset, returns in found:
                descriptors.append(attach_probe(program, f"/proc/self/fd/{pending.descriptor}", offset, returns))
                undo.callback(os.close, descriptors[-1])
            undo.pop_all()
        self._probed[file] = _Probed(pending.uid, pending.library.path, at_s, descriptors, self._calls)
        surely = bool(NCCL.search(pending.library.path))
        if _has_nccl(pending.library.path) and len(self._with_nccl) < _MOST_FILES:
            of = pending.uid, pending.library.path, os.dup(pending.descriptor), pending.library.executes
            self._with_nccl.append(Library(file, *of, surely))

    def _probes_on(self, library: MappedLibrary) -> list[Probe]:
        return [probe for probe in self._probes if probe.library.search(library.path)]

    def _make_room(self, uid: int) -> bool:
        """Whether one more file may be probed for this user; what nobody maps any more goes first."""
        of_user = [file for file, probed in self._probed.items() if probed.uid == uid]
        descriptors = sum(len(probed.descriptors) for probed in self._probed.values())
        if len(of_user) >= _MOST_OF_USER:
            return self._detach_oldest(of_user, f"user {uid}'s processes map more than {_MOST_OF_USER}")
        if len(self._probed) >= _MOST_FILES or descriptors >= self._most_probes:
            return self._detach_oldest(list(self._probed), f"processes map more than {len(self._probed)}")
        return True

    def _detach_oldest(self, files: list[_File], reason: str) -> bool:
        unused = [file for file in files if self._probed[file].used < self._calls]
        if not unused:
            self._warn_of(f"{reason} libraries: the others are not probed")
            return False
        probed = self._probed.pop(min(unused, key=lambda file: self._probed[file].used))
        for descriptor in probed.descriptors:
            os.close(descriptor)
        return True

    def _limiter(self, uid: int) -> TimeLimiter:
        limiter = self._limiters.pop(uid, None) or TimeLimiter(_READING_SHARE, _READING_BURST_NS)
        self._limiters[uid] = limiter
        if len(self._limiters) > _MOST_LIMITERS:
            gone = next(iter(self._limiters))
            del self._limiters[gone]
            self._delayed_users.discard(gone)
        return limiter

    def _warn(self, path: str, reason: str) -> None:
        self._warn_of(f"cannot probe {printable(path)}: {printable(reason)}")

    def _warn_of(self, text: str) -> None:
        if len(self._warnings) < _MOST_WARNINGS:
            self._warnings.append(text)

    def close(self) -> None:
        for pending in self._pending.values():
            if pending.reading:
                pending.reading.close()
            os.close(pending.descriptor)
        for probed in self._probed.values():
            for descriptor in probed.descriptors:
                os.close(descriptor)
        for library in self._with_nccl:
            os.close(library.descriptor)
        self._pending, self._probed, self._with_nccl = {}, {}, []


def _begin(pid: int) -> _Watched:
    began_s = start_ticks(pid) / os.sysconf("SC_CLK_TCK")  # seconds since boot
    return _Watched(uid_of(pid, gone=-1), began_s)
