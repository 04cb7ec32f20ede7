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


@functools.cache
def _library() -> ctypes.CDLL:
    for name in ("libbpf.so.1", "libbpf.so.0"):
        try:
            return ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
    raise UnsupportedError(
        "cannot attach BPF programs: libbpf is not installed; install libbpf1 (libbpf0 on older systems)"
    )


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
    result: int = _library().bpf_link_create(program, target, attach_type, ctypes.byref(options))
    if result < 0:
        error = ctypes.get_errno() or -result
        raise OSError(error, os.strerror(error))
    return result


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


def dry_run(program: int, frame: bytes, repeat: int = 1) -> tuple[int, int]:
    """Runs a loaded program on a frame (BPF_PROG_TEST_RUN): (its return value, ns per run). Raises OSError."""
    data = ctypes.create_string_buffer(frame, len(frame))
    options = _TestRunOptions(
        size=ctypes.sizeof(_TestRunOptions),
        data_in=ctypes.addressof(data),
        data_size_in=len(frame),
        repeat=repeat,
    )
    result = _library().bpf_prog_test_run_opts(program, ctypes.byref(options))
    if result < 0:
        error = ctypes.get_errno() or -result
        raise OSError(error, os.strerror(error))
    return options.retval, options.duration
