# SPDX-License-Identifier: Apache-2.0
"""Probes on the training libraries that running processes have mapped.

A probe sits on the library's file, so one attachment serves every process that maps it, those that start later and
those in containers included. It is held by a perf descriptor and vanishes with it; nothing is written into tracefs.
"""

import ctypes
import os
import re
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from netmon.errors import KernelError
from netmon.kernel.processes import PROC, start_ticks
from netmon.kernel.training.symbols import function_offsets

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SET_BPF, _ENABLE = 0x40042408, 0x2400  # PERF_EVENT_IOC_*
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_PMU = Path("/sys/bus/event_source/devices/uprobe")
_ATTRIBUTE_SIZE = 112
_SETUP_S = 1.0  # a process needs more than this to import a framework and to set a job up
_EAGER_LOOKS = 100  # at a new process, which imports its libraries one after the other; later every tenth


class Probe(NamedTuple):
    """Where a program of bpf/steps.c is attached: a library by its path, a function by its mangled name's beginning."""

    library: "re.Pattern[str]"
    symbol: str
    program: str
    cow: str = ""  # the program for libraries whose std::string is the one before C++11's; "": it reads no strings

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
_NCCL = re.compile(r"/libnccl\.so(\.\d+)*$")
_OTHER_COLLECTIVES = (
    *("22EnqueueTensorAllgather", "23EnqueueTensorAllgathers", "22EnqueueTensorBroadcast", "21EnqueueTensorAlltoall"),
    *("26EnqueueTensorReducescatter", "27EnqueueTensorReducescatters"),
)
PROBES = (
    Probe(_HOROVOD, "_ZN7horovod6common23EnqueueTensorAllreducesE", "horovod_enqueue", "horovod_enqueue_cow"),
    *(Probe(_HOROVOD, f"_ZN7horovod6common{name}E", "horovod_other") for name in _OTHER_COLLECTIVES),
    Probe(_HOROVOD_TORCH, "_ZN7horovod5torch12WaitAndClearE", "horovod_wait_begin"),
    Probe(_HOROVOD_TORCH, "_ZN7horovod5torch13HandleManager13ReleaseHandleE", "horovod_wait_end"),
    Probe(_HOROVOD_OTHERS, "_ZN7horovod6common8Timeline3EndE", "horovod_done", "horovod_done_cow"),
    Probe(_HOROVOD, "_ZN7horovod6common10RendezvousE", "horovod_rank", "horovod_rank_cow"),
    Probe(_TORCH, "_ZN4c10d7Reducer17all_reduce_bucketE", "reducer_enqueue"),
    Probe(_TORCH, "_ZN4c10d7Reducer17finalize_backwardE", "reducer_wait_begin"),
    Probe(_TORCH, "_ZN4c10d7Reducer21finalize_bucket_denseE", "reducer_wait_end"),
    Probe(_NCCL, "ncclAllReduce", "nccl_enqueue"),
    Probe(_TORCH_CUDA, "_ZN4c10d16ProcessGroupNCCL9allreduceE", "nccl_call"),  # of a PyTorch that contains NCCL
    Probe(_TORCH, "_ZN4c10d16ProcessGroupGloo9allreduceE", "gloo_call"),
    Probe(_TORCH, "_ZN4gloo9allreduceER", "gloo_enqueue"),
    Probe(_TORCH, "_ZN4c10d4Work4waitE", "work_wait_begin"),
    Probe(_TORCH, "_ZN4c10d4Work11synchronizeE", "work_wait_end"),
)


class Uprobes:
    """The probes attached so far. Needs CAP_PERFMON and, to see other users' processes, CAP_SYS_PTRACE."""

    def __init__(self, programs: dict[str, int]) -> None:
        """programs: descriptors of the loaded uprobe programs by name."""
        self._programs = programs
        self._descriptors: list[int] = []
        self._files: dict[tuple[int, int], float] = {}  # device and inode → when it was probed
        self._looks: dict[int, int] = {}  # at each process
        self._mapped: dict[int, set[str]] = {}  # training libraries by process
        self.late: set[int] = set()
        """The processes that may have trained before their library was probed."""

    @property
    def training(self) -> set[int]:
        """The processes that map a training library."""
        return {pid for pid, libraries in self._mapped.items() if libraries}

    def follow(self, pids: Iterable[int]) -> list[str]:
        """Attaches to the libraries that these processes map and that are not probed yet; returns their paths.

        pids: all ranks that are alive. Raises KernelError; a library that cannot be probed is not tried again.
        """
        alive = set(pids)
        self._looks = {pid: self._looks.get(pid, 0) for pid in alive}
        self._mapped = {pid: self._mapped.get(pid, set()) for pid in alive}
        self.late &= alive
        added = []
        for pid, looks in self._looks.items():
            self._looks[pid] += 1
            if looks < _EAGER_LOOKS or looks % 10 == 0:
                libraries = _training_libraries(pid)
                for path in libraries.keys() - self._mapped[pid]:
                    self._mapped[pid].add(path)
                    probed_s, new = self._probe(path, libraries[path])
                    added += [path] if new else []
                    self._judge(pid, path, not looks and _began(pid) + _SETUP_S < probed_s)
        return added

    def _judge(self, pid: int, path: str, late: bool) -> None:
        """What a process may have done with this library before it was probed; Horovod tells more than what it uses."""
        if late:
            self.late.add(pid)
        elif _HOROVOD.search(path):
            self.late.discard(pid)

    def _probe(self, path: str, inside: str) -> tuple[float, bool]:
        """When a library was probed, and whether that was now."""
        status = os.stat(inside)
        file = status.st_dev, status.st_ino
        new = file not in self._files
        if new:
            self._files[file] = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._attach_all(inside, path)
        return self._files[file], new

    def _attach_all(self, inside: str, path: str) -> None:
        wanted = [probe for probe in PROBES if probe.library.search(path)]
        offsets = function_offsets(inside, [probe.symbol for probe in wanted])
        for probe in wanted:
            for offset, name in offsets[probe.symbol].items():
                self._descriptors.append(_attach(self._programs[probe.program_for(name)], inside, offset))

    def close(self) -> None:
        """Detaches all."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _began(pid: int) -> float:
    """When a process began, in seconds of CLOCK_BOOTTIME, a clock tick early at most."""
    return start_ticks(pid) / os.sysconf("SC_CLK_TCK")


def _training_libraries(pid: int) -> dict[str, str]:
    """Path as the process maps it → path by which we can open it, also in a container."""
    try:
        maps = (PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return {}
    mapped = {line[line.index("/") :] for line in maps.splitlines() if ".so" in line and "/" in line}
    wanted = [path for path in mapped if any(probe.library.search(path) for probe in PROBES)]
    # A process that called chroot maps it by a path of our own.
    ways = {path: [way for way in (f"{PROC}/{pid}/root{path}", path) if os.path.exists(way)] for path in wanted}
    return {path: reachable[0] for path, reachable in ways.items() if reachable}


def _attach(program: int, path: str, offset: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    name = ctypes.create_string_buffer(path.encode())
    attribute = bytearray(_ATTRIBUTE_SIZE)
    # struct perf_event_attr: type, size, config, …, config1 = path, config2 = offset
    struct.pack_into("<II", attribute, 0, int((_PMU / "type").read_text()), _ATTRIBUTE_SIZE)
    struct.pack_into("<QQ", attribute, 56, ctypes.addressof(name), offset)
    buffer = (ctypes.c_char * _ATTRIBUTE_SIZE).from_buffer(attribute)
    call = _PERF_EVENT_OPEN[os.uname().machine]
    descriptor: int = libc.syscall(call, buffer, -1, 0, -1, _CLOEXEC)
    if descriptor < 0:
        raise KernelError(f"cannot probe {path}: {os.strerror(ctypes.get_errno())}")
    for request, argument in ((_SET_BPF, program), (_ENABLE, 0)):
        if libc.ioctl(descriptor, ctypes.c_ulong(request), argument) < 0:
            error = os.strerror(ctypes.get_errno())
            os.close(descriptor)
            raise KernelError(f"cannot probe {path}: {error}")
    return descriptor
