# SPDX-License-Identifier: Apache-2.0
"""Loads the BPF programs: as they were compiled at an earlier start, or else by a child that compiles them."""

import base64
import contextlib
import gzip
import hashlib
import json
import logging
import os
import resource
import socket
import stat
import subprocess
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import KernelError, NetmonError, UnsupportedError
from netmon.kernel import bpf_calls, stops, verbs
from netmon.kernel.bpf_calls import MapShape
from netmon.kernel.btf import KernelTypes
from netmon.kernel.meter import memory
from netmon.kernel.meter.memory import WAKES, Geometry
from netmon.kernel.owners import socket_events
from netmon.kernel.privilege import because
from netmon.kernel.processes import pid_namespace
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

# --- Programs as they were compiled at an earlier start.


INSTRUCTION = np.dtype([("code", "u1"), ("registers", "u1"), ("offset", "<i2"), ("immediate", "<i4")])
_LOAD_64 = 0x18  # BPF_LD | BPF_DW | BPF_IMM
_BY_DESCRIPTOR = 1  # BPF_PSEUDO_MAP_FD, in the upper half of `registers`
_SUM_BYTES = 64


@dataclass(frozen=True)
class Program:
    """instructions: as the kernel takes them; kind: bpf_calls.PROGRAM_…; flags: of BPF_PROG_LOAD."""

    name: str
    kind: int
    flags: int
    license: str
    instructions: bytes


@dataclass(frozen=True)
class Image:
    """maps: in the order in which the instructions name them; named: those that user space opens, by their indices."""

    maps: tuple[MapShape, ...]
    named: Mapping[str, int]
    programs: tuple[Program, ...]

    def load(self, without: Collection[str] = ()) -> dict[str, int]:
        """Makes the maps and loads the programs: descriptors by name, of programs and of named maps, the caller's to
        close. without: programs that are left out.

        Raises OSError with what the kernel refuses; nothing is left open then.
        """
        opened: list[int] = []
        try:
            for shape in self.maps:
                opened.append(bpf_calls.map_create(shape))
            maps = np.array(opened, np.int32)
            programs = [program for program in self.programs if program.name not in without]
            for program in programs:
                opened.append(_load(program, maps))
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        kept = {name: opened[index] for name, index in self.named.items()}
        for index in set(range(len(self.maps))) - set(self.named.values()):
            os.close(opened[index])  # the programs hold theirs
        return kept | dict(zip((program.name for program in programs), opened[len(self.maps) :], strict=True))

    def encode(self) -> bytes:
        """A line with the checksum of what follows, and JSON."""
        programs = [
            asdict(program) | {"instructions": base64.b64encode(program.instructions).decode()}
            for program in self.programs
        ]
        document = {"maps": [asdict(shape) for shape in self.maps], "named": dict(self.named), "programs": programs}
        body = json.dumps(document).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(encoded: bytes) -> Image:
    """Raises ValueError for anything that `encode` has not written."""
    checksum, body = encoded[:_SUM_BYTES], encoded[_SUM_BYTES + 1 :]
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise ValueError("its checksum is not that of its content")
    try:
        document = json.loads(body)
        programs = tuple(
            Program(**program | {"instructions": base64.b64decode(program["instructions"], validate=True)})
            for program in document["programs"]
        )
        return Image(tuple(MapShape(**shape) for shape in document["maps"]), document["named"], programs)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is of another version ({error})") from error


def image_of(programs: Iterable[Program], named: Mapping[str, int]) -> Image:
    """programs: with descriptors in their instructions, as they were loaded; named: descriptors of maps that user space
    opens. Raises KernelError for an instruction that is not understood, OSError where the kernel does not describe a
    map.
    """
    programs = tuple(programs)
    used = [_instructions(program)["immediate"][_references(program)] for program in programs]
    descriptors = sorted({*named.values(), *(int(one) for each in used for one in each)})
    indices = np.array(descriptors, np.int32)
    moved = []
    for program in programs:
        instructions = _instructions(program)
        at = _references(program)
        instructions["immediate"][at] = np.searchsorted(indices, instructions["immediate"][at])
        moved.append(Program(program.name, program.kind, program.flags, program.license, instructions.tobytes()))
    shapes = tuple(bpf_calls.map_shape(descriptor) for descriptor in descriptors)
    return Image(shapes, {name: descriptors.index(one) for name, one in named.items()}, tuple(moved))


def _load(program: Program, maps: npt.NDArray[np.int32]) -> int:
    instructions = _instructions(program)
    at = _references(program)
    instructions["immediate"][at] = maps[instructions["immediate"][at]]
    address, count = instructions.ctypes.data, len(instructions)
    name = program.name[:15]
    return bpf_calls.program_load(program.kind, name, program.license.encode(), address, count, program.flags)


def _instructions(program: Program) -> npt.NDArray[np.void]:
    return np.frombuffer(program.instructions, INSTRUCTION).copy()


def _references(program: Program) -> npt.NDArray[np.bool_]:
    """Which instructions name a map. Raises KernelError where they name something that is not one."""
    instructions = np.frombuffer(program.instructions, INSTRUCTION)
    loads = instructions["code"] == _LOAD_64
    what = instructions["registers"] >> 4
    if (what[loads] > _BY_DESCRIPTOR).any():
        raise KernelError(f"cannot keep the program {program.name}: it refers to more than maps")
    references: npt.NDArray[np.bool_] = loads & (what == _BY_DESCRIPTOR)
    return references


# --- Compiled programs on the disk, so that a start needs no compiler.
#
# Who can write here decides what is loaded with our capabilities. So nothing is believed that anybody but root could
# have written, and whoever is not root only reads: an agent that has been broken into leaves nothing for its next
# start.

FOLDER = Path("/var/cache/netmon/bpf")
_MOST_FILES = 32
_MOST_CACHED_BYTES = 8 << 20  # of a file; they have a few hundred kilobytes
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    return Path(os.environ.get("NETMON_CACHE") or FOLDER)


def read_image(folder: Path, key: str, owner: int = 0) -> Image | None:
    """What was kept under the key, if it is there, whole, and nobody but `owner` (a uid) can have written it."""
    try:
        with _opened(folder, owner) as directory, open(_open(key, directory, owner), "rb") as file:
            with contextlib.suppress(OSError):
                os.utime(file.fileno())  # what is used stays
            return decode(file.read(_MOST_CACHED_BYTES + 1))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("compiling the BPF programs anew: what is kept in %s is not used: %s", folder, error)
        return None


def keep_image(folder: Path, key: str) -> None:
    """It stays as long as what is used, though it is not read now."""
    with contextlib.suppress(OSError):
        os.utime(folder / key, follow_symlinks=False)


def write_image(folder: Path, key: str, image: Image, owner: int = 0) -> None:
    """Keeps it under the key, and drops what has not been used for longest. Only `owner` writes; others do nothing.

    Raises OSError.
    """
    if os.geteuid() != owner:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opened(folder, owner) as directory:
        unfinished = f".{key}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(unfinished, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(image.encode())
        os.rename(unfinished, key, src_dir_fd=directory, dst_dir_fd=directory)
        _bound(directory)


@contextlib.contextmanager
def _opened(folder: Path, owner: int) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require_trust(os.fstat(descriptor), owner)
        yield descriptor
    finally:
        os.close(descriptor)


def _open(key: str, directory: int, owner: int) -> int:
    descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(descriptor)
        _require_trust(found, owner)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_CACHED_BYTES:
            raise PermissionError(f"{key[:12]}… is no file of ours")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_trust(found: os.stat_result, owner: int) -> None:
    if found.st_uid != owner:
        raise PermissionError(f"it belongs to uid {found.st_uid}, not to {owner}")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError("others than its owner may write there")


def _bound(directory: int) -> None:
    """The newest stay, and of what was never finished nothing that another process is not writing just now."""
    names = os.listdir(directory)
    used = sorted((os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime, name) for name in names)
    for _, name in used[:-_MOST_FILES]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)


# --- Whether packet programs of one CPU run one after the other, which bpf/meter.c relies on.
#
# They do wherever bottom halves are not preempted. On a kernel with PREEMPT_RT they are, and a lock per CPU separates
# them; a kernel that can be built without that lock names it in its configuration. No version is compared.


ROOT = Path("/")
_LOCK = "CONFIG_PREEMPT_RT_NEEDS_BH_LOCK"
_MOST_BYTES = 4 << 20


class BottomHalves(Enum):
    """How those of one CPU run; the value says it to people."""

    SERIAL = "one at a time on each CPU"
    LOCKED = "PREEMPT_RT; one at a time on each CPU, by its lock"
    PREEMPTED = f"PREEMPT_RT without {_LOCK}: packet programs interrupt each other, and counts would be wrong"
    UNKNOWN = f"PREEMPT_RT, whose configuration cannot be read: without {_LOCK} counts are wrong"


SERIAL_ADVICE = f"boot a kernel with {_LOCK}=y, or one without PREEMPT_RT"


def bottom_halves() -> BottomHalves:
    if _read("sys/kernel/realtime").strip() != "1" and "PREEMPT_RT" not in _read("proc/sys/kernel/version").split():
        return BottomHalves.SERIAL
    lines = _configuration().splitlines()
    if not lines:
        return BottomHalves.UNKNOWN
    # A kernel that does not know the option always has the lock.
    return BottomHalves.PREEMPTED if f"# {_LOCK} is not set" in lines else BottomHalves.LOCKED


def require_serial_bottom_halves() -> None:
    """Raises UnsupportedError where counts would be wrong; warns where that is unknown."""
    found = bottom_halves()
    if found is BottomHalves.PREEMPTED:
        raise UnsupportedError(f"cannot count on this kernel: {found.value}; {SERIAL_ADVICE}")
    if found is BottomHalves.UNKNOWN:
        log.warning("%s", found.value)


def _configuration() -> str:
    """Of the running kernel; empty where it cannot be read."""
    try:
        with gzip.open(ROOT / "proc/config.gz") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, EOFError):
        release = _read("proc/sys/kernel/osrelease").strip()
        return _read(f"boot/config-{release}") or _read(f"lib/modules/{release}/config")


def _read(path: str) -> str:
    try:
        with open(ROOT / path, errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""


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
SOCKET_EVENTS = {"netmon_socket_event": SOCKET_EVENT}
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
    *("group_name", "group_name_cow", "cuda_wait", "cuda_waited"),
    *("xla_all_reduce", "xla_all_gather", "xla_reduce_scatter", "xla_all_to_all", "xla_permute"),
    *("xla_collective_over", "xla_permute_over"),
)
PROGRAMS = (*METER_PROGRAMS, *STEP_PROGRAMS)
COLLECTIVE_PROGRAMS = ("nccl_queued", "nccl_moved", "nccl_arrived", "nccl_over")
XDP_FRAGS = "meter_xdp_frags"
"""Loaded where the kernel can (Linux 5.18)."""
XDP_PROGRAMS = ("meter_xdp", XDP_FRAGS)


METER_MAPS = (*memory.MAPS, "interfaces", WAKES)
STEP_MAPS = ("steps", "steps_lost")
MAPS = (*METER_MAPS, *STEP_MAPS)
COLLECTIVE_MAPS = ("transfers", "transfer_counts", "layouts")
TRANSFER_RING_BYTES = 1 << 20

_OPTIONAL = 4 + len(socket_events.MAPS) + len(verbs.PROGRAMS) + len(verbs.MAPS)
"""XDP_FRAGS, the programs of socket creations and stops, and the latter's map, and all of verbs.c."""

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
    raise UnsupportedError("cannot find bpf/netmon.h next to the netmon package: the installation is incomplete")


def source_text(source: str, structures: "dict[str, Any]") -> str:
    """A source, with the proof that we mean the same by its structures."""
    return (sources() / source).read_text() + assertions(structures)


def load(geometry: Geometry, without: Collection[str] = ()) -> dict[str, int]:
    """Descriptors of METER_PROGRAMS and MAPS, of XDP_FRAGS, STEP_PROGRAMS and those of socket creations and stops where
    there is support, of verbs where there is a device. One log line names what is missing. without: programs that the
    kernel need not verify, for nobody attaches them; they may be there all the same.

    What was compiled before is loaded as it is, in a few hundredths of a second; else a child compiles for some
    seconds and is gone on return. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Raises KernelError with what the
    kernel refuses, or the last lines of compiler or verifier; UnsupportedError where counts would be wrong.
    """
    require_serial_bottom_halves()
    key = image_key(geometry)
    descriptors = _loaded_before(key, without) or _compiled_by_child(geometry, key)
    if socket_events.NAMESPACE_MAP in descriptors:
        socket_events.choose_namespace(descriptors.pop(socket_events.NAMESPACE_MAP))
    return descriptors


def load_collectives(geometry: Geometry) -> dict[str, int]:
    """Descriptors of COLLECTIVE_PROGRAMS and COLLECTIVE_MAPS, which are loaded where a library is found for them.

    They were compiled with the others. Raises KernelError with the reason why they are not there.
    """
    if not bpf_calls.has_uprobe_links():
        raise KernelError("this kernel cannot distinguish probes (Linux 6.6 can)")
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


def keep_compiled(geometry: Geometry) -> None:
    """A later load needs neither a compiler nor a folder that it can write to. Raises as load."""
    key = image_key(geometry)
    if not key or read_image(cache_folder(), key) is None:
        prepare(geometry)


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


def _loaded_before(key: str, without: Collection[str]) -> dict[str, int]:
    """Descriptors; none where nothing is kept under the key, or the kernel does not take it."""
    image = read_image(cache_folder(), key) if key else None
    if not image:
        return {}
    keep_image(cache_folder(), collectives_key(key))
    lift_memory_limit()
    try:
        return image.load(without)
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
