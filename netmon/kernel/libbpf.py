# SPDX-License-Identifier: Apache-2.0
"""The few calls of libbpf that bcc's Python does not offer."""

import ctypes
import functools
import os

from netmon.errors import UnsupportedError

# enum bpf_attach_type
XDP = 37
TCX_INGRESS = 46
TCX_EGRESS = 47

_XDP_PROGRAM = 6  # enum bpf_prog_type
_XDP_HAS_FRAGS = 1 << 5  # BPF_F_XDP_HAS_FRAGS


@functools.cache
def library() -> ctypes.CDLL:
    """libbpf itself. Raises UnsupportedError where it is not installed."""
    for name in ("libbpf.so.1", "libbpf.so.0"):
        try:
            return ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
    raise UnsupportedError(
        "cannot attach BPF programs: libbpf is not installed; install libbpf1 (libbpf0 on older systems)"
    )


def _checked(result: int) -> int:
    """What a call returned, unless it failed. Older libraries return -1 and set errno, newer ones return -errno."""
    if result < 0:
        error = ctypes.get_errno() or -result
        raise OSError(error, os.strerror(error))
    return result


class _LinkCreateOptions(ctypes.Structure):
    """struct bpf_link_create_opts of libbpf 1.3 and later, whose tail older libraries accept when it is zero."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("iter_info", ctypes.c_void_p),
        ("iter_info_len", ctypes.c_uint32),
        ("target_btf_id", ctypes.c_uint32),
    ]


def link_create(program: int, target: int, attach_type: int, flags: int = 0) -> int:
    """Attaches a program by a link, which lives as long as its descriptor. Returns the descriptor; raises OSError."""
    options = _LinkCreateOptions(size=ctypes.sizeof(_LinkCreateOptions), flags=flags)
    result: int = library().bpf_link_create(program, target, attach_type, ctypes.byref(options))
    return _checked(result)


class _LoadOptions(ctypes.Structure):
    """The beginning of struct bpf_prog_load_opts (libbpf 1.0)."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
    ]


def load_xdp_frags(name: str, license_: bytes, instructions: int, count: int) -> int:
    """Loads an XDP program that takes frames in several fragments (Linux 5.18). Raises OSError.

    instructions: address of so many instructions, with the descriptors of their maps in place.
    """
    options = _LoadOptions(size=ctypes.sizeof(_LoadOptions), prog_flags=_XDP_HAS_FRAGS)
    instructions_ = ctypes.c_void_p(instructions)
    load = library().bpf_prog_load
    result: int = load(
        _XDP_PROGRAM, name.encode(), license_, instructions_, ctypes.c_size_t(count), ctypes.byref(options)
    )
    return _checked(result)


def raw_tracepoint_open(program: int, name: str) -> int:
    """Attaches a raw tracepoint program, for as long as the returned descriptor is open. Raises OSError."""
    result: int = library().bpf_raw_tracepoint_open(name.encode(), program)
    return _checked(result)


class _TestRunOptions(ctypes.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    ]


def dry_run(program: int, frame: bytes, repeat: int = 1, context: bytes = b"") -> tuple[int, int]:
    """Runs a loaded program on a frame (BPF_PROG_TEST_RUN): (its return value, ns per run). Raises OSError.

    context: the struct __sk_buff that a tc program finds, as far as it is given.
    """
    data = ctypes.create_string_buffer(frame, len(frame))
    given = ctypes.create_string_buffer(context, len(context))
    options = _TestRunOptions(
        size=ctypes.sizeof(_TestRunOptions),
        data_in=ctypes.addressof(data),
        data_size_in=len(frame),
        repeat=repeat,
        ctx_in=ctypes.addressof(given) if context else None,
        ctx_size_in=len(context),
    )
    result = library().bpf_prog_test_run_opts(program, ctypes.byref(options))
    _checked(result)
    return options.retval, options.duration
