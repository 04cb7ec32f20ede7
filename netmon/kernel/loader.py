# SPDX-License-Identifier: Apache-2.0
"""Compiles and loads the BPF programs, hands their descriptors over, and ends.

Run as a program of its own (`python -m netmon.kernel.loader`), because libclang costs more than a hundred megabytes
that a monitor should not keep. Standard input is a socket: a JSON line with the geometry comes in, the
descriptors go out (SCM_RIGHTS) beside a JSON document with their names. Standard error carries what the compiler or the
verifier has to say.
"""

import contextlib
import functools
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netmon.errors import KernelError, NetmonError, UnsupportedError
from netmon.kernel import bpf_calls, layout, pages, stops
from netmon.kernel.btf import KernelTypes
from netmon.kernel.meter import memory
from netmon.kernel.meter.geometry import Geometry
from netmon.kernel.meter.wakes import WAKES
from netmon.kernel.owners import births
from netmon.kernel.processes import pid_namespace
from netmon.kernel.refusal import because

METER_PROGRAMS = ("meter_xdp", "meter_tc_ingress", "meter_tc_egress")
STEP_PROGRAMS = (
    *("horovod_enqueue", "horovod_other", "horovod_wait_begin", "horovod_wait_end", "horovod_done"),
    *("horovod_rank", "horovod_shape", "horovod_enqueue_cow", "horovod_done_cow", "horovod_rank_cow"),
    *("reducer_enqueue", "reducer_wait_begin", "reducer_wait_end", "nccl_enqueue", "nccl_call"),
    *("gloo_call", "gloo_enqueue", "work_wait_begin", "work_wait_end"),
)
PROGRAMS = (*METER_PROGRAMS, *STEP_PROGRAMS)
XDP_FRAGS = "meter_xdp_frags"
"""Loaded where the kernel can (Linux 5.18)."""

log = logging.getLogger(__name__)

METER_MAPS = (*memory.MAPS, "interfaces", WAKES)
STEP_MAPS = ("steps", "steps_lost")
MAPS = (*METER_MAPS, *STEP_MAPS)

_TIME_LIMIT_S = 60
_MESSAGE_BYTES = 1 << 16
_INSTRUCTION_BYTES = 8


def sources() -> Path:
    """Where the BPF C is: beside the packages in a checkout, inside the package once installed."""
    for place in (Path(__file__).parents[2] / "bpf", Path(__file__).parents[1] / "bpf"):
        if (place / "netmon.h").exists():
            return place
    raise UnsupportedError("cannot find bpf/netmon.h beside the netmon package: the installation is incomplete")


def load(geometry: Geometry) -> dict[str, int]:
    """Descriptors of METER_PROGRAMS and MAPS, of XDP_FRAGS, STEP_PROGRAMS and those of births and stops where there is
    support, loaded by a child that is gone on return. What is not there is said in a line, which names what is missed.

    Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Raises KernelError with what the kernel refuses, or the last lines of
    compiler or verifier.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            command = [sys.executable, "-m", __name__]
            child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            ours.sendall(json.dumps(vars(geometry)).encode() + b"\n")
            message, descriptors, *_ = socket.recv_fds(ours, _MESSAGE_BYTES, len(PROGRAMS) + 1 + len(MAPS) + 5)
            _, complaint = child.communicate(timeout=_TIME_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            child.kill()
            child.communicate()
            raise KernelError(f"cannot load the BPF programs: the loader did not answer ({error})") from error
    if not message:
        reason = lacking() or _last_lines(complaint.decode(errors="replace"))
        raise KernelError(f"cannot load the BPF programs: {reason}")
    reply = json.loads(message)
    for remark in reply["remarks"]:
        log.warning("%s", remark)
    return dict(zip(reply["names"], descriptors, strict=True))


def lacking() -> str:
    """Why the kernel cannot load the meter at all, by trying; empty where it can."""
    from netmon.kernel.probe import bpf  # not needed by the child, nor where all goes well

    for what, attempt in (
        ("a ring buffer (Linux 5.8)", bpf.create_ring_buffer),
        ("a mappable array (Linux 5.5)", bpf.create_mapped_array),
        ("a packet program", bpf.load_packet_program),
    ):
        try:
            attempt()
        except OSError as error:
            return f"the kernel refuses {what}: {error.strerror}{because(error)}"
    return ""


def _last_lines(complaint: str) -> str:
    """The compiler's errors, or the verifier's last words, which say what it could not accept."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return " | ".join(errors or lines[-4:]) or "the loader ended without a word"


def compiler_flags(geometry: Geometry) -> list[str]:
    """For bcc, on a machine without kernel headers: bpf/headers stands in for them. Warnings are errors."""
    bpf = sources()
    architecture = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    device, inode = pid_namespace() or (0, 0)
    defines = {
        "NETMON_BUCKET_NS": f"{geometry.bucket_ns}ULL",
        "NETMON_SLOTS": geometry.slots,
        "NETMON_CPUS": geometry.cpus,
        "NETMON_LINKS": geometry.links,
        "NETMON_BUCKETS": geometry.ring_records,
        "NETMON_FLOWS": geometry.flow_records,
        "NETMON_PAGE_BYTES": pages.PAGE_BYTES,
        "NETMON_STEP_PAGES": geometry.step_ring_bytes // pages.PAGE_BYTES,
        "NETMON_PID_NAMESPACE_DEVICE": device,
        "NETMON_PID_NAMESPACE_INODE": inode,
    }
    if os.uname().machine not in ("x86_64", "i686"):
        defines["NETMON_WEAK_ORDER"] = 1
    includes = [f"-I{bpf}", f"-I/usr/include/{architecture}", "-I/usr/include"]
    return ["-Werror", *includes, *(f"-D{name}={value}" for name, value in defines.items())]


def _compile(geometry: Geometry) -> tuple[dict[str, int], list[str]]:
    """Descriptors by name, and a remark on each part that had to be left out."""
    os.environ["BCC_KERNEL_SOURCE"] = str(sources() / "headers")
    try:
        from bcc import BPF
    except Exception as error:  # a broken installation fails in its own ways: ImportError, OSError, AttributeError
        raise UnsupportedError(
            f"cannot load BPF programs: this Python ({sys.executable}) cannot import bcc ({error}); "
            "install python3-bpfcc and use the distribution's Python"
        ) from error
    _lift_memory_limit()
    flags = compiler_flags(geometry)
    meter = _module("meter.c", layout.METER, flags)
    descriptors = {
        name: meter.load_func(name.encode(), BPF.XDP if name == "meter_xdp" else BPF.SCHED_CLS).fd
        for name in METER_PROGRAMS
    }
    with contextlib.suppress(OSError):  # an older kernel: small frames only
        descriptors[XDP_FRAGS] = _load_frags(meter)
    steps = _module("steps.c", layout.STEPS, flags)
    for module, names in ((meter, METER_MAPS), (steps, STEP_MAPS)):
        descriptors |= {name: _map(module, name) for name in names}
    remarks = []
    parts: tuple[tuple[str, Callable[[], dict[str, int]]], ...] = (
        ("iterations are not seen without a hook in the training script", lambda: _load_steps(steps)),
        ("whose a connection of a few milliseconds is, may stay unknown", lambda: _load_births(flags)),
        ("that a rank was stopped for less than a tenth of a second is not seen", lambda: _load_stops(flags)),
    )
    for missed, load_part in parts:
        try:
            descriptors |= load_part()
        except Exception as error:  # bcc raises bare ones
            remarks.append(f"{missed}: {' '.join(str(error).split())}")
    return descriptors, remarks


def _module(source: str, structures: "dict[str, Any]", flags: list[str]) -> Any:
    """A compiled source, with the proof that we mean the same by its structures; its maps are made."""
    from bcc import BPF

    text = (sources() / source).read_text() + layout.assertions(structures)
    module: Any = BPF(text=text.encode(), cflags=flags)
    _keep.append(module)
    return module


def _map(module: Any, name: str) -> int:
    from bcc import lib

    descriptor: int = lib.bpf_table_fd(module.module, name.encode())
    return descriptor


def _load_steps(module: Any) -> dict[str, int]:
    from bcc import BPF

    return {name: module.load_func(name.encode(), BPF.KPROBE).fd for name in STEP_PROGRAMS}


def _load_births(flags: list[str]) -> dict[str, int]:
    """The program that tells of connections being made, and its rings."""
    from bcc import BPF

    module = _module("sockets.c", layout.BIRTHS, [*flags, *_defined(births.definitions(_types()))])
    program = module.load_func(births.PROGRAM.encode(), BPF.RAW_TRACEPOINT).fd
    return {births.PROGRAM: program, **{name: _map(module, name) for name in (births.MAP, births.TOLD_MAP)}}


def _load_stops(flags: list[str]) -> dict[str, int]:
    """The program that tells of stops, and its memory."""
    from bcc import BPF

    module = _module("stops.c", layout.STOPS, [*flags, *_defined(stops.definitions(_types()))])
    program = module.load_func(stops.PROGRAM.encode(), BPF.RAW_TRACEPOINT).fd
    return {stops.PROGRAM: program, stops.MAP: _map(module, stops.MAP)}


@functools.cache
def _types() -> KernelTypes:
    return KernelTypes()


def _defined(values: dict[str, int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in values.items()]


def _load_frags(module: Any) -> int:
    from bcc import lib

    name = XDP_FRAGS.encode()
    size = lib.bpf_function_size(module.module, name)
    start, license_ = lib.bpf_function_start(module.module, name), lib.bpf_module_license(module.module)
    return bpf_calls.load_xdp_frags(XDP_FRAGS[:15], license_, start, size // _INSTRUCTION_BYTES)


_keep: list[Any] = []  # bcc closes a module's descriptors when it is collected


def _lift_memory_limit() -> None:
    """Kernels before 5.11 charge maps to RLIMIT_MEMLOCK; later ones do not look at it."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return


def main() -> int:
    """The child: geometry in, descriptors out."""
    parent = socket.socket(fileno=os.dup(0))
    geometry = Geometry(**json.loads(parent.makefile().readline()))
    try:
        descriptors, remarks = _compile(geometry)
    except NetmonError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # bcc raises bare exceptions; its own output stands before this line
        print(f"{error}", file=sys.stderr)
        return 1
    reply = {"names": list(descriptors), "remarks": remarks}
    socket.send_fds(parent, [json.dumps(reply).encode()], list(descriptors.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
