# SPDX-License-Identifier: Apache-2.0
"""Compiles and loads the BPF programs, hands their descriptors over, and ends.

Run as a program of its own (`python -m netmon.kernel.loader`), because libclang costs more than a hundred megabytes
that a monitor should not keep. Standard input is a socket: a JSON line with the geometry comes in, the
descriptors go out (SCM_RIGHTS) beside a JSON list of their names. Standard error carries what the compiler or the
verifier has to say.
"""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from netmon.errors import KernelError, NetmonError, UnsupportedError
from netmon.kernel import layout, libbpf
from netmon.kernel.meter.meter import Geometry
from netmon.kernel.owners import births
from netmon.kernel.processes import pid_namespace

METER_PROGRAMS = ("meter_xdp", "meter_tc_ingress", "meter_tc_egress")
STEP_PROGRAMS = (
    *("horovod_enqueue", "horovod_other", "horovod_wait_begin", "horovod_wait_end", "horovod_done"),
    *("horovod_rank", "horovod_enqueue_cow", "horovod_done_cow", "horovod_rank_cow"),
    *("reducer_enqueue", "reducer_wait_begin", "reducer_wait_end", "nccl_enqueue", "nccl_call"),
    *("gloo_call", "gloo_enqueue", "work_wait_begin", "work_wait_end"),
)
PROGRAMS = (*METER_PROGRAMS, *STEP_PROGRAMS)
XDP_FRAGS = "meter_xdp_frags"
"""Loaded where the kernel can (Linux 5.18)."""

MAPS = ("slots", "ledger", "buckets", "flows", "steps", "steps_lost")

_TIME_LIMIT_S = 60
_INSTRUCTION_BYTES = 8


def sources() -> Path:
    """Where the BPF C is: beside the packages in a checkout, inside the package once installed."""
    for place in (Path(__file__).parents[2] / "bpf", Path(__file__).parents[1] / "bpf"):
        if (place / "netmon.h").exists():
            return place
    raise UnsupportedError("cannot find bpf/netmon.h beside the netmon package: the installation is incomplete")


def load(geometry: Geometry) -> dict[str, int]:
    """Descriptors of PROGRAMS and MAPS, of XDP_FRAGS and those of births where there is support, loaded by a
    child that is gone on return.

    Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Raises KernelError with the last lines of compiler or verifier.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            command = [sys.executable, "-m", __name__]
            child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            ours.sendall(json.dumps(vars(geometry)).encode() + b"\n")
            message, descriptors, *_ = socket.recv_fds(ours, 4096, len(PROGRAMS) + 1 + len(MAPS) + 3)
            _, complaint = child.communicate(timeout=_TIME_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            child.kill()
            child.communicate()
            raise KernelError(f"cannot load the BPF programs: the loader did not answer ({error})") from error
    if not message:
        raise KernelError(f"cannot load the BPF programs: {_last_lines(complaint.decode(errors='replace'))}")
    return dict(zip(json.loads(message), descriptors, strict=True))


def _last_lines(complaint: str) -> str:
    """The compiler's errors, or the verifier's last words, which say what it could not accept."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return " | ".join(errors or lines[-4:]) or "the loader ended without a word"


def compiler_flags(geometry: Geometry) -> list[str]:
    """For bcc, on a machine without kernel headers: bpf/headers stands in for them. Warnings are errors."""
    bpf = sources()
    architecture = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    page = resource.getpagesize()
    device, inode = pid_namespace() or (0, 0)
    defines = {
        "NETMON_BUCKET_NS": f"{geometry.bucket_ns}ULL",
        "NETMON_SLOTS": geometry.slots,
        "NETMON_CPUS": geometry.cpus,
        "NETMON_LINKS": geometry.links,
        "NETMON_RING_PAGES": geometry.ring_bytes // page,
        "NETMON_FLOW_PAGES": geometry.flow_ring_bytes // page,
        "NETMON_STEP_PAGES": geometry.step_ring_bytes // page,
        "NETMON_PID_NAMESPACE_DEVICE": device,
        "NETMON_PID_NAMESPACE_INODE": inode,
    }
    includes = [f"-I{bpf}", f"-I/usr/include/{architecture}", "-I/usr/include"]
    return ["-Werror", *includes, *(f"-D{name}={value}" for name, value in defines.items())]


def _compile(geometry: Geometry) -> dict[str, int]:
    os.environ["BCC_KERNEL_SOURCE"] = str(sources() / "headers")
    try:
        from bcc import BPF, lib
    except ImportError as error:
        raise UnsupportedError(
            f"cannot load BPF programs: this Python ({sys.executable}) cannot import bcc ({error}); "
            "install python3-bpfcc and use the distribution's Python"
        ) from error
    _lift_memory_limit()
    flags = compiler_flags(geometry)
    descriptors: dict[str, int] = {}
    for source, structures, programs, maps in (
        ("meter.c", layout.METER, METER_PROGRAMS, MAPS[:4]),
        ("steps.c", layout.STEPS, STEP_PROGRAMS, MAPS[4:]),
    ):
        text = (sources() / source).read_text() + layout.assertions(structures)
        module: Any = BPF(text=text.encode(), cflags=flags)
        _keep.append(module)
        for name in programs:
            kind = BPF.KPROBE if source == "steps.c" else BPF.XDP if name == "meter_xdp" else BPF.SCHED_CLS
            descriptors[name] = module.load_func(name.encode(), kind).fd
        if source == "meter.c":
            with contextlib.suppress(OSError, AttributeError):  # an older kernel or libbpf: small frames only
                descriptors[XDP_FRAGS] = _load_frags(module)
        for name in maps:
            descriptors[name] = lib.bpf_table_fd(module.module, name.encode())
    with contextlib.suppress(Exception):  # owners are then only looked up
        descriptors |= _load_births(flags)
    return descriptors


def _load_births(flags: list[str]) -> dict[str, int]:
    """The program that tells of connections being made, and its rings. bcc raises bare exceptions."""
    from bcc import BPF, lib

    defines = [f"-D{name}={value}" for name, value in births.definitions().items()]
    text = (sources() / "sockets.c").read_text() + layout.assertions(layout.BIRTHS)
    module: Any = BPF(text=text.encode(), cflags=[*flags, *defines])
    _keep.append(module)
    program = module.load_func(births.PROGRAM.encode(), BPF.RAW_TRACEPOINT).fd
    rings = {name: lib.bpf_table_fd(module.module, name.encode()) for name in (births.MAP, births.TOLD_MAP)}
    return {births.PROGRAM: program, **rings}


def _load_frags(module: Any) -> int:
    from bcc import lib

    name = XDP_FRAGS.encode()
    size = lib.bpf_function_size(module.module, name)
    start, license_ = lib.bpf_function_start(module.module, name), lib.bpf_module_license(module.module)
    return libbpf.load_xdp_frags(XDP_FRAGS[:15], license_, start, size // _INSTRUCTION_BYTES)


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
        descriptors = _compile(geometry)
    except NetmonError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # bcc raises bare exceptions; its own output stands before this line
        print(f"{error}", file=sys.stderr)
        return 1
    socket.send_fds(parent, [json.dumps(list(descriptors)).encode()], list(descriptors.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
