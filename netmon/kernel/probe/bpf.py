# SPDX-License-Identifier: Apache-2.0
"""What the kernel's BPF can do, by trying it: independent of bcc, which is probed as well.

Every function here raises OSError with the kernel's errno, and closes what it made.
"""

import ctypes
import errno
import os
import struct

from netmon.kernel import pages
from netmon.kernel.bpf_calls import (
    LINK_CREATE,
    MAP_CREATE,
    PROGRAM_KPROBE,
    PROGRAM_SCHED_CLS,
    TCX_INGRESS,
    call,
    program_load,
)

_MAP_ARRAY, _MAP_RINGBUF = 2, 27  # enum bpf_map_type
_MMAPABLE = 1 << 10
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
    os.close(call(MAP_CREATE, struct.pack("=IIIII", _MAP_RINGBUF, 0, 0, pages.PAGE_BYTES, 0))[0])


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
