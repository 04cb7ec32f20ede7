# SPDX-License-Identifier: Apache-2.0
"""Loads the BPF programs: as they were compiled at an earlier start, or else by a child that compiles them."""

import hashlib
import json
import logging
import os
import resource
import socket
import subprocess
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from netmon.errors import KernelError, NetmonError, UnsupportedError
from netmon.kernel import bpf_calls, stops, verbs
from netmon.kernel.btf import KernelTypes
from netmon.kernel.meter import memory
from netmon.kernel.meter.memory import WAKES, Geometry
from netmon.kernel.owners import socket_events
from netmon.kernel.preemption import require_serial_bottom_halves
from netmon.kernel.privilege import because
from netmon.kernel.processes import pid_namespace
from netmon.kernel.program_cache import cache_folder, keep_image, read_image
from netmon.own_module import own_module
from netmon.records import (
    FLOW_KEY,
    KERNEL_BUCKET,
    KERNEL_CONSUMER,
    KERNEL_FLOW,
    KERNEL_INTERFACE,
    KERNEL_LEDGER,
    KERNEL_PRODUCER,
    PROVIDER,
    QUEUE,
    QUEUE_KEY,
    SLOT,
    SOCKET_EVENT,
    STEP,
    STOP,
    TRANSFER,
    TRANSFER_LAYOUT,
)

METER = {
    "netmon_flow_key": FLOW_KEY,
    "netmon_slot": SLOT,
    "netmon_flow": KERNEL_FLOW,
    "netmon_bucket": KERNEL_BUCKET,
    "netmon_interface": KERNEL_INTERFACE,
    "netmon_producer": KERNEL_PRODUCER,
    "netmon_consumer": KERNEL_CONSUMER,
    "netmon_ledger": KERNEL_LEDGER,
}
STEPS = {"netmon_step": STEP}
SOCKET_EVENTS = {"netmon_birth": SOCKET_EVENT}
STOPS = {"netmon_stop": STOP}
COLLECTIVES = {"netmon_transfer": TRANSFER, "netmon_layout": TRANSFER_LAYOUT}
VERBS = {"netmon_queue_key": QUEUE_KEY, "netmon_queue": QUEUE, "netmon_provider": PROVIDER}


def assertions(structures: "dict[str, np.dtype[Any]]") -> str:
    """C source that compiles only where every structure has its dtype's size, fields, offsets and widths."""
    lines = []
    for struct, dtype in structures.items():
        assert dtype.fields is not None
        lines.append(_require(f"sizeof(struct {struct}) == {dtype.itemsize}", f"size of {struct}"))
        for name, (field, offset, *_) in dtype.fields.items():
            member = f"((struct {struct} *)0)->{name}"
            index = f"__builtin_offsetof(struct {struct}, {name}) == {offset}"
            lines.append(_require(f"{index} && sizeof({member}) == {field.itemsize}", f"{struct}.{name}"))
    return "\n".join(lines) + "\n"


def _require(condition: str, what: str) -> str:
    return f'_Static_assert({condition}, "bpf/netmon.h and netmon/records.py differ: {what}");'


METER_PROGRAMS = ("meter_xdp", "meter_tc_ingress", "meter_tc_egress")
STEP_PROGRAMS = (
    *(
        "horovod_enqueue",
        "horovod_other",
        "horovod_gather",
        "horovod_broadcast",
        "horovod_wait_begin",
        "horovod_wait_end",
        "horovod_done",
    ),
    *("horovod_rank", "horovod_shape", "horovod_enqueue_cow", "horovod_done_cow", "horovod_rank_cow"),
    *("reducer_enqueue", "reducer_wait_begin", "reducer_wait_end", "nccl_enqueue", "nccl_call"),
    *("nccl_gather", "nccl_broadcast", "nccl_send", "gloo_transfer", "gloo_broadcast", "gloo_send"),
    *("gloo_call", "gloo_enqueue", "work_wait_begin", "work_wait_end", "gloo_work", "gloo_send_work"),
    *("gloo_receive_work", "transfer_wait", "work_over", "backward", "gloo_group", "gloo_context"),
    *("group_name", "group_name_cow"),
)
PROGRAMS = (*METER_PROGRAMS, *STEP_PROGRAMS)
COLLECTIVE_PROGRAMS = ("nccl_queued", "nccl_moved", "nccl_arrived", "nccl_over")
XDP_FRAGS = "meter_xdp_frags"
"""Loaded where the kernel can (Linux 5.18)."""

log = logging.getLogger(__name__)

METER_MAPS = (*memory.MAPS, "interfaces", WAKES)
STEP_MAPS = ("steps", "steps_lost")
MAPS = (*METER_MAPS, *STEP_MAPS)
COLLECTIVE_MAPS = ("transfers", "transfer_counts", "layouts")
TRANSFER_RING_BYTES = 1 << 20

_OPTIONAL = 4 + len(socket_events.MAPS) + len(verbs.PROGRAMS) + len(verbs.MAPS)
"""XDP_FRAGS, the programs of births and stops, and the latter's map, and all of verbs.c."""

_IMAGE_FORMAT = "2"
_TIME_LIMIT_S = 60
_MESSAGE_BYTES = 1 << 16
_SOURCES = {
    "meter.c": METER,
    "steps.c": STEPS,
    "sockets.c": SOCKET_EVENTS,
    "stops.c": STOPS,
    "collectives.c": COLLECTIVES,
    "verbs.c": VERBS,
}


def sources() -> Path:
    """Where the BPF C is: alongside the packages in a checkout, inside the package once installed."""
    for index in (Path(__file__).parents[2] / "bpf", Path(__file__).parents[1] / "bpf"):
        if (index / "netmon.h").exists():
            return index
    raise UnsupportedError("cannot find bpf/netmon.h beside the netmon package: the installation is incomplete")


def source_text(source: str, structures: "dict[str, Any]") -> str:
    """A source, with the proof that we mean the same by its structures."""
    return (sources() / source).read_text() + assertions(structures)


def load(geometry: Geometry) -> dict[str, int]:
    """Descriptors of METER_PROGRAMS and MAPS, of XDP_FRAGS, STEP_PROGRAMS and those of births and stops where there is
    support, of verbs where there is a device. What is not there is said in one line, which names what is missed.

    What was compiled before is loaded as it is, in a few hundredths of a second; else a child compiles for some
    seconds and is gone on return. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Raises KernelError with what the
    kernel refuses, or the last lines of compiler or verifier; UnsupportedError where counts would be wrong.
    """
    require_serial_bottom_halves()
    key = image_key(geometry)
    descriptors = _loaded_before(key) or _compiled_by_child(geometry, key)
    if socket_events.NAMESPACE_MAP in descriptors:
        socket_events.choose_namespace(descriptors.pop(socket_events.NAMESPACE_MAP))
    return descriptors


def load_collectives(geometry: Geometry) -> dict[str, int]:
    """Descriptors of COLLECTIVE_PROGRAMS and COLLECTIVE_MAPS, which are loaded where a library is found for them.

    They were compiled with the others. Raises KernelError with the reason why they are not there.
    """
    if not bpf_calls.has_uprobe_links():
        raise KernelError("this kernel cannot tell probes apart (Linux 6.6 can)")
    key = image_key(geometry)
    image = read_image(cache_folder(), collectives_key(key)) if key else None
    if image is None:
        raise KernelError(f"the programs for it could not be compiled, or not be kept in {cache_folder()}")
    try:
        return image.load()
    except (OSError, IndexError) as error:
        raise KernelError(f"the kernel does not take the programs for it: {error}") from error


def collectives_key(key: str) -> str:
    """Of the programs of COLLECTIVE_PROGRAMS; key: of the others."""
    return f"{key}-collectives"


def prepare(geometry: Geometry) -> None:
    """Loads the programs and lets go of them: what had to be compiled is kept for the next load. Raises as load."""
    for descriptor in load(geometry).values():
        os.close(descriptor)


def image_key(geometry: Geometry) -> str:
    """The same for the same programs: of all that they are made from, and by. Empty where something of it is not
    known.
    """
    try:
        types = KernelTypes()
        defined = socket_events.definitions(types) | stops.definitions(types)
        compiler = _compiler_version()
        texts = [source_text(source, structures) for source, structures in _SOURCES.items()]
        texts += [str(path) + path.read_text() for path in sorted(sources().rglob("*.h"))]
    except (NetmonError, OSError, LookupError):
        return ""
    system = os.uname()
    parts = [_IMAGE_FORMAT, compiler, system.release, system.version, system.machine, *compiler_flags(geometry)]
    parts += [f"verbs={verbs.wanted()}"]
    parts += [f"{name}={value}" for name, value in defined.items()]
    return hashlib.sha256("\0".join([*parts, *PROGRAMS, *texts]).encode()).hexdigest()


def _compiler_version() -> str:
    """bcc's, without importing it. Raises LookupError, OSError."""
    found = find_spec("bcc")
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise LookupError("bcc is no package here")
    return (Path(folders[0]) / "version.py").read_text()


def _loaded_before(key: str) -> dict[str, int]:
    """Descriptors; none where nothing is kept under the key, or the kernel does not take it."""
    image = read_image(cache_folder(), key) if key else None
    if not image:
        return {}
    keep_image(cache_folder(), collectives_key(key))
    lift_memory_limit()
    try:
        return image.load()
    except (OSError, KernelError, IndexError) as error:  # the compiler's way says why, where it fails as well
        log.info("compiling the BPF programs anew: the kernel does not take those in %s: %s", cache_folder(), error)
        return {}


def _compiled_by_child(geometry: Geometry, key: str) -> dict[str, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            program = own_module("netmon.kernel.compiler")
            child = subprocess.Popen(
                **program, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        try:
            ours.sendall(json.dumps({"geometry": vars(geometry), "key": key}).encode() + b"\n")
            message, descriptors, *_ = socket.recv_fds(ours, _MESSAGE_BYTES, len(PROGRAMS) + len(MAPS) + _OPTIONAL)
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
    for what, attempt in (
        ("a ring buffer (Linux 5.8)", bpf_calls.create_ring_buffer),
        ("a mappable array (Linux 5.5)", bpf_calls.create_mapped_array),
        ("a packet program", bpf_calls.load_packet_program),
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
        "NETMON_PAGE_BYTES": memory.PAGE_BYTES,
        "NETMON_STEP_PAGES": geometry.step_ring_bytes // memory.PAGE_BYTES,
        "NETMON_TRANSFER_PAGES": TRANSFER_RING_BYTES // memory.PAGE_BYTES,
        "NETMON_PID_NAMESPACE_DEVICE": device,
        "NETMON_PID_NAMESPACE_INODE": inode,
    }
    if os.uname().machine not in ("x86_64", "i686"):
        defines["NETMON_WEAK_ORDER"] = 1
    includes = [f"-I{bpf}", f"-I/usr/include/{architecture}", "-I/usr/include"]
    return ["-Werror", *includes, *(f"-D{name}={value}" for name, value in defines.items())]


def lift_memory_limit() -> None:
    """Kernels before 5.11 charge maps to RLIMIT_MEMLOCK; later ones do not look at it."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return
