# SPDX-License-Identifier: Apache-2.0
"""Which functions of which training libraries are probed, and how a probe is attached."""

import ctypes
import errno
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

from netmon.errors import KernelError
from netmon.kernel.bpf_calls import uprobe_link

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
_OTHER_COLLECTIVES = {
    **dict.fromkeys(("22EnqueueTensorAllgather", "23EnqueueTensorAllgathers"), "horovod_gather"),
    "22EnqueueTensorBroadcast": "horovod_broadcast",
    **dict.fromkeys(
        ("21EnqueueTensorAlltoall", "26EnqueueTensorReducescatter", "27EnqueueTensorReducescatters"), "horovod_other"
    ),
}
# What else ranks send each other: steps that are known by sums do not explain it.
_GLOO_TRANSFERS = ("9allgatherE", "10allgathervE", "8alltoallE", "9alltoallvE", "6gatherE")
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
    Probe(_NCCL, "ncclAllReduce", "nccl_enqueue"),
    *(Probe(_NCCL, name, "nccl_gather") for name in ("ncclAllGather", "ncclReduceScatter", "ncclAlltoAll")),
    Probe(_NCCL, "ncclBroadcast", "nccl_broadcast"),
    *(Probe(_NCCL, name, "nccl_send") for name in ("ncclSend", "ncclRecv")),
    Probe(_TORCH_CUDA, "_ZN4c10d16ProcessGroupNCCL9allreduceE", "nccl_call"),  # of a PyTorch that contains NCCL
    Probe(_TORCH, "_ZN4c10d16ProcessGroupGloo9allreduceE", "gloo_call"),
    Probe(_TORCH, "_ZN4gloo9allreduceER", "gloo_enqueue"),
    *(Probe(_TORCH, f"_ZN4gloo{name}R", "gloo_transfer") for name in _GLOO_TRANSFERS),
    *(Probe(_TORCH, f"_ZN4gloo{name}R", "gloo_broadcast") for name in ("9broadcastE", "6reduceE")),
    *(Probe(_TORCH, f"_ZN4c10d16ProcessGroupGloo{name}E", "gloo_send") for name in ("4send", "4recv")),
    Probe(_TORCH, "_ZN4c10d4Work4waitE", "work_wait_begin"),
    Probe(_TORCH, "_ZN4c10d4Work11synchronizeE", "work_wait_end"),
)


def is_training_library(path: str) -> bool:
    """Whether a file of this name may be one."""
    return any(probe.library.search(path) for probe in PROBES)


def attach_probe(program: int, path: str, offset: int) -> int:
    """A descriptor, for as long as which the program runs at this offset of the file. Raises KernelError."""
    try:
        return uprobe_link(program, path, offset)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise KernelError(error.strerror) from error
    return _attach_by_perf(program, path, offset)  # before Linux 6.6


def _attach_by_perf(program: int, path: str, offset: int) -> int:
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
        raise KernelError(os.strerror(ctypes.get_errno()))
    for request, argument in ((_SET_BPF, program), (_ENABLE, 0)):
        if libc.ioctl(descriptor, ctypes.c_ulong(request), argument) < 0:
            error = os.strerror(ctypes.get_errno())
            os.close(descriptor)
            raise KernelError(error)
    return descriptor
