# SPDX-License-Identifier: Apache-2.0
"""bpf(2) itself, for asking what it can do: independent of bcc and libbpf, which are probed as well.

Every function here raises OSError with the kernel's errno, and closes what it made.
"""

import ctypes
import errno
import os
import platform
import struct

# enum bpf_cmd, enum bpf_map_type, enum bpf_prog_type, map flags: parts of the kernel's stable interface.
_MAP_CREATE, _PROG_LOAD, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY, _LINK_CREATE = 0, 5, 13, 15, 16, 28
_MAP_ARRAY, _MAP_RINGBUF = 2, 27
_PROGRAM_KPROBE, _PROGRAM_SCHED_CLS = 2, 3
_MMAPABLE = 1 << 10
TCX_INGRESS, TCX_EGRESS = 46, 47  # enum bpf_attach_type
_NO_SUCH_INTERFACE = 2**31 - 1
_MOST_PROGRAMS = 64  # BPF_MPROG_MAX: the kernel lets no more onto one hook

_SYSCALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_ATTRIBUTE_BYTES = 128  # more than any command below reads; the rest is zero, which every kernel accepts

_RETURN_MINUS_ONE = struct.pack("<BBhi", 0xB7, 0, 0, -1) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = -1; exit
_RETURN_ZERO = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)


def _bpf(command: int, attribute: bytes) -> int:
    return _bpf_answering(command, attribute)[0]


def _bpf_answering(command: int, attribute: bytes) -> tuple[int, bytes]:
    """The call's result, and the attribute as the kernel left it."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"netmon does not know bpf(2)'s number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attribute.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, _ATTRIBUTE_BYTES)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result, buffer.raw


def _load(program_type: int, instructions: bytes, name: bytes = b"netmon_probe") -> int:
    code, terms = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    count = len(instructions) // 8
    places = ctypes.addressof(code), ctypes.addressof(terms)
    return _bpf(_PROG_LOAD, struct.pack("=IIQQ24x16s", program_type, count, *places, name))


def create_mapped_array() -> None:
    """Makes an array map that user space can map (Linux 5.5)."""
    os.close(_bpf(_MAP_CREATE, struct.pack("=IIIII", _MAP_ARRAY, 4, 8, 1, _MMAPABLE)))


def create_ring_buffer() -> None:
    """Makes a ring buffer map (Linux 5.8)."""
    size = os.sysconf("SC_PAGESIZE")
    os.close(_bpf(_MAP_CREATE, struct.pack("=IIIII", _MAP_RINGBUF, 0, 0, size, 0)))


def load_packet_program() -> None:
    """Loads a program for tc: needs CAP_BPF and CAP_NET_ADMIN."""
    os.close(_load(_PROGRAM_SCHED_CLS, _RETURN_MINUS_ONE))


def load_probe_program() -> None:
    """Loads a program for uprobes: needs CAP_BPF and CAP_PERFMON."""
    os.close(_load(_PROGRAM_KPROBE, _RETURN_ZERO))


def has_tcx() -> bool:
    """Whether programs can be attached by tcx links (Linux 6.6).

    Asks for a link to an interface that does not exist: a kernel with tcx misses the interface, one without it does
    not know the attach type.
    """
    program = _load(_PROGRAM_SCHED_CLS, _RETURN_MINUS_ONE)
    try:
        os.close(_bpf(_LINK_CREATE, struct.pack("=IIII", program, _NO_SUCH_INTERFACE, TCX_INGRESS, 0)))
    except OSError as error:
        return error.errno == errno.ENODEV
    finally:
        os.close(program)
    return True


def attached_programs(index: int, attach_type: int) -> tuple[int, ...]:
    """The ids of the programs on an interface's tcx hook, in the order in which they run. Needs CAP_NET_ADMIN."""
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    query = struct.pack("=IIIIQI", index, attach_type, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS)
    _, answer = _bpf_answering(_PROG_QUERY, query)
    (count,) = struct.unpack_from("=I", answer, 24)
    return tuple(ids[:count])


def program_name(program_id: int) -> str:
    """The name that a loaded program was given; empty where it has none."""
    program = _bpf(_PROG_GET_FD_BY_ID, struct.pack("=I", program_id))
    try:
        info = ctypes.create_string_buffer(80)  # struct bpf_prog_info up to and including `name`
        _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", program, len(info), ctypes.addressof(info)))
        return info.raw[64:80].split(b"\0")[0].decode(errors="replace")
    finally:
        os.close(program)
