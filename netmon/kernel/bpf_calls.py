# SPDX-License-Identifier: Apache-2.0
"""bpf(2) itself: what bcc's Python does not offer, and what asks the kernel about itself.

The system call's interface is the kernel's own and never changes, unlike libbpf's, whose functions took other arguments
before 1.0. Every function here raises OSError with the kernel's errno.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass

# enum bpf_attach_type
XDP = 37
TCX_INGRESS = 46
TCX_EGRESS = 47
UPROBE_MULTI = 48

# enum bpf_cmd
MAP_CREATE, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MAP_DELETE_ELEM, MAP_LOOKUP_BATCH = 0, 1, 2, 3, 24
PROG_LOAD, OBJ_GET, PROG_TEST_RUN, PROG_GET_FD_BY_ID = 5, 7, 10, 13
OBJ_GET_INFO_BY_FD, PROG_QUERY, RAW_TRACEPOINT_OPEN, LINK_CREATE = 15, 16, 17, 28

PROGRAM_KPROBE, PROGRAM_SCHED_CLS, PROGRAM_XDP, PROGRAM_RAW_TRACEPOINT = 2, 3, 6, 17  # enum bpf_prog_type
XDP_HAS_FRAGS = 1 << 5  # BPF_F_XDP_HAS_FRAGS
_NAME_BYTES = 15  # of a map or a program, as the kernel keeps it
_MOST_PROGRAMS = 64  # BPF_MPROG_MAX: the kernel lets no more onto one hook

_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361, "s390x": 351}
_ATTRIBUTE_BYTES = 128  # more than any command here reads; the rest is zero, which every kernel accepts


def call(command: int, attribute: bytes) -> tuple[int, bytes]:
    """One bpf(2): the call's result, and the attribute as the kernel left it. attribute: its beginning, packed."""
    number = _NUMBERS.get(platform.machine())
    if number is None or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"netmon does not know bpf(2) on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attribute.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    system = ctypes.CDLL(None, use_errno=True).syscall
    system.restype = ctypes.c_long
    result: int = system(ctypes.c_long(number), ctypes.c_long(command), buffer, ctypes.c_ulong(_ATTRIBUTE_BYTES))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result, buffer.raw


@dataclass(frozen=True)
class MapShape:
    """What a map is made from. kind: enum bpf_map_type; sizes in bytes; name: at most 15 characters."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


def map_create(shape: MapShape) -> int:
    """A new map's descriptor."""
    sizes = shape.kind, shape.key_bytes, shape.value_bytes, shape.entries, shape.flags
    return call(MAP_CREATE, struct.pack("=IIIII8x15sx", *sizes, shape.name.encode()[:_NAME_BYTES]))[0]


def map_shape(descriptor: int) -> MapShape:
    """What an open map was made from, as the kernel tells it."""
    info = ctypes.create_string_buffer(40)  # struct bpf_map_info up to and including `name`
    call(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", descriptor, len(info), ctypes.addressof(info)))
    kind, _, key_bytes, value_bytes, entries, flags, name = struct.unpack("=IIIIII16s", info.raw)
    return MapShape(name.split(b"\0")[0].decode(), kind, key_bytes, value_bytes, entries, flags)


def array_entry(table: int, index: int, size: int) -> bytes:
    """One value, of so many bytes, of an array map."""
    key, value = ctypes.c_uint32(index), ctypes.create_string_buffer(size)
    indices = ctypes.addressof(key), ctypes.addressof(value)
    call(MAP_LOOKUP_ELEM, struct.pack("=I4xQQ", table, *indices))
    return value.raw


def set_array_entry(table: int, index: int, value: bytes) -> None:
    """Puts a value into an array map; it has to have the size of the map's values."""
    key, buffer = ctypes.c_uint32(index), ctypes.create_string_buffer(value, len(value))
    call(MAP_UPDATE_ELEM, struct.pack("=I4xQQ", table, ctypes.addressof(key), ctypes.addressof(buffer)))


def set_entry(table: int, key: bytes, value: bytes) -> None:
    """Puts a value into a map; both have to have the map's sizes."""
    buffers = [ctypes.create_string_buffer(given, len(given)) for given in (key, value)]
    call(MAP_UPDATE_ELEM, struct.pack("=I4xQQ", table, *map(ctypes.addressof, buffers)))


def delete_entry(table: int, key: bytes) -> None:
    """Of a hash map; nothing happens where there is none."""
    buffer = ctypes.create_string_buffer(key, len(key))
    try:
        call(MAP_DELETE_ELEM, struct.pack("=I4xQ", table, ctypes.addressof(buffer)))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def entries(table: int, key_bytes: int, value_bytes: int, most: int) -> tuple[bytes, bytes]:
    """The keys and the values of a hash map of so many entries at most, one after the other (Linux 5.6)."""
    keys, values = ctypes.create_string_buffer(most * key_bytes), ctypes.create_string_buffer(most * value_bytes)
    place, found, first = ctypes.create_string_buffer(key_bytes), 0, True
    while found < most:
        indices = 0 if first else ctypes.addressof(place), ctypes.addressof(place)
        at = ctypes.addressof(keys) + found * key_bytes, ctypes.addressof(values) + found * value_bytes
        attribute = struct.pack("=QQQQII", *indices, *at, most - found, table)
        count, over = _batch(attribute)
        found, first = found + count, False
        if over:
            break
    return bytes(memoryview(keys)[: found * key_bytes]), bytes(memoryview(values)[: found * value_bytes])


def _batch(attribute: bytes) -> tuple[int, bool]:
    """How many entries were found, and whether they were the last ones."""
    number = _NUMBERS[platform.machine()]
    buffer = ctypes.create_string_buffer(attribute.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    system = ctypes.CDLL(None, use_errno=True).syscall
    system.restype = ctypes.c_long
    result = system(ctypes.c_long(number), ctypes.c_long(MAP_LOOKUP_BATCH), buffer, ctypes.c_ulong(_ATTRIBUTE_BYTES))
    error = ctypes.get_errno() if result < 0 else 0
    if error and error != errno.ENOENT:
        raise OSError(error, os.strerror(error))
    (count,) = struct.unpack_from("=I", buffer.raw, 32)
    return count, bool(error)


def program_load(kind: int, name: str, license_: bytes, instructions: int, count: int, flags: int = 0) -> int:
    """Loads a program. kind: PROGRAM_…, of which PROGRAM_KPROBE is for uprobes; instructions: address of so many, with
    their maps' descriptors in place; flags: XDP_HAS_FRAGS for frames in multiple fragments (Linux 5.18).
    """
    attach_type = UPROBE_MULTI if kind == PROGRAM_KPROBE else 0
    terms = ctypes.create_string_buffer(license_)
    indices = instructions, ctypes.addressof(terms)
    attribute = struct.pack("=IIQQ20xI15s5xI", kind, count, *indices, flags, name.encode(), attach_type)
    return call(PROG_LOAD, attribute)[0]


def link_create(program: int, target: int, attach_type: int, flags: int = 0) -> int:
    """Attaches a program by a link (XDP: Linux 5.9, tcx: 6.6), which lives as long as the returned descriptor."""
    return call(LINK_CREATE, struct.pack("=IIII", program, target, attach_type, flags))[0]


def uprobe_link(program: int, path: str, offset: int, cookie: int = 0, returns: bool = False) -> int:
    """Attaches a uprobe at this offset of the file, for as long as the returned descriptor is open (Linux 6.6).
    returns: where the function that begins there returns.

    The program finds the cookie by bpf_get_attach_cookie.

    Unlike a uprobe of perf, which takes CAP_SYS_ADMIN on some kernels, it takes what loading the program took.
    """
    text, offsets = ctypes.create_string_buffer(os.fsencode(path)), (ctypes.c_uint64 * 1)(offset)
    cookies = (ctypes.c_uint64 * 1)(cookie)
    indices = ctypes.addressof(text), ctypes.addressof(offsets), 0, ctypes.addressof(cookies)
    return call(LINK_CREATE, struct.pack("=IIIIQQQQII8x", program, 0, UPROBE_MULTI, 0, *indices, 1, int(returns)))[0]


def has_uprobe_links() -> bool:
    """Whether there is uprobe_link: a kernel that has it finds that / is no file. False where nothing may be loaded."""
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))  # r0 = 0; exit
    try:
        program = program_load(PROGRAM_KPROBE, "netmon_probe", b"GPL", ctypes.addressof(code), 2)
    except OSError:
        return False
    try:
        os.close(uprobe_link(program, "/", 0))
    except OSError as error:
        return error.errno == errno.EBADF
    finally:
        os.close(program)
    return True


def raw_tracepoint_open(program: int, name: str) -> int:
    """Attaches a raw tracepoint program, for as long as the returned descriptor is open."""
    text = ctypes.create_string_buffer(name.encode())
    return call(RAW_TRACEPOINT_OPEN, struct.pack("=QI", ctypes.addressof(text), program))[0]


def dry_run(program: int, frame: bytes, repeat: int = 1, context: bytes = b"") -> tuple[int, int]:
    """Runs a loaded program on a frame (BPF_PROG_TEST_RUN): (its return value, ns per run).

    context: the beginning of the program's struct __sk_buff; empty: as the kernel makes it of the frame.
    """
    data, about = (ctypes.create_string_buffer(given, len(given) or 1) for given in (frame, context))
    about_size, about_at = (len(context), ctypes.addressof(about)) if context else (0, 0)
    attribute = struct.pack(
        "=IIIIQQIIIIQ", program, 0, len(frame), 0, ctypes.addressof(data), 0, repeat, 0, about_size, 0, about_at
    )
    _, answer = call(PROG_TEST_RUN, attribute)
    (verdict,) = struct.unpack_from("=I", answer, 4)
    (duration,) = struct.unpack_from("=I", answer, 36)
    return verdict, duration


def attached_programs(index: int, attach_type: int) -> tuple[int, ...]:
    """The ids of the programs on an interface's tcx hook, in the order in which they run. Needs CAP_NET_ADMIN."""
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    query = struct.pack("=IIIIQI", index, attach_type, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS)
    _, answer = call(PROG_QUERY, query)
    (count,) = struct.unpack_from("=I", answer, 24)
    return tuple(ids[:count])


def program_name(program_id: int) -> str:
    """The name that a loaded program was given; empty where it has none."""
    program, _ = call(PROG_GET_FD_BY_ID, struct.pack("=I", program_id))
    try:
        info = ctypes.create_string_buffer(80)  # struct bpf_prog_info up to and including `name`
        call(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", program, len(info), ctypes.addressof(info)))
        return info.raw[64:80].split(b"\0")[0].decode(errors="replace")
    finally:
        os.close(program)


def pinned_program(path: str) -> int:
    """The id of the program, or of the link's program, that is pinned here; 0: something else."""
    name = ctypes.create_string_buffer(path.encode())
    descriptor, _ = call(OBJ_GET, struct.pack("=Q", ctypes.addressof(name)))
    try:
        return program_of(f"/proc/self/fdinfo/{descriptor}")
    finally:
        os.close(descriptor)


def program_of(fdinfo: str) -> int:
    """The id of the program that a descriptor is of, or its link; 0: something else."""
    with open(fdinfo) as lines:
        found = [line.split()[1] for line in lines if line.startswith("prog_id:")]
    return int(found[0]) if found else 0


# --- What the kernel's BPF can do, by trying it: independent of bcc, which is probed as well.
#
# Every function here raises OSError with the kernel's errno, and closes what it made.

_MAP_ARRAY, _MAP_RINGBUF = 2, 27  # enum bpf_map_type
_MMAPABLE = 1 << 10
_RING_BYTES = 1 << 16  # whole pages, however large these are
_NO_SUCH_INTERFACE = 2**31 - 1

_RETURN_MINUS_ONE = struct.pack("<BBhi", 0xB7, 0, 0, -1) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = -1; exit
_RETURN_ZERO = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)


def _load(program_type: int, instructions: bytes, name: bytes = b"netmon_probe") -> int:
    code = ctypes.create_string_buffer(instructions)
    return program_load(program_type, name.decode(), b"GPL", ctypes.addressof(code), len(instructions) // 8)


def create_mapped_array() -> None:
    """Makes an array map that user space can map (Linux 5.5)."""
    os.close(call(MAP_CREATE, struct.pack("=IIIII", _MAP_ARRAY, 4, 8, 1, _MMAPABLE))[0])


def create_ring_buffer() -> None:
    """Makes a ring buffer map (Linux 5.8)."""
    os.close(call(MAP_CREATE, struct.pack("=IIIII", _MAP_RINGBUF, 0, 0, _RING_BYTES, 0))[0])


def load_packet_program() -> None:
    """Loads a program for tc: needs CAP_BPF and CAP_NET_ADMIN."""
    os.close(_load(PROGRAM_SCHED_CLS, _RETURN_MINUS_ONE))


def load_probe_program() -> None:
    """Loads a program for uprobes: needs CAP_BPF and CAP_PERFMON."""
    os.close(_load(PROGRAM_KPROBE, _RETURN_ZERO))


def has_tcx() -> bool:
    """Whether programs can be attached by tcx links (Linux 6.6).

    Asks for a link to an interface that does not exist: a kernel with tcx misses the interface, one without it does
    not know the attach type.
    """
    program = _load(PROGRAM_SCHED_CLS, _RETURN_MINUS_ONE)
    try:
        os.close(call(LINK_CREATE, struct.pack("=IIII", program, _NO_SUCH_INTERFACE, TCX_INGRESS, 0))[0])
    except OSError as error:
        return error.errno == errno.ENODEV
    finally:
        os.close(program)
    return True
