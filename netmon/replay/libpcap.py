# SPDX-License-Identifier: Apache-2.0
"""The few calls of libpcap that read a capture: whatever tcpdump can read, can be replayed."""

import ctypes
import functools

from netmon.errors import UnsupportedError

ERROR_BYTES = 256
NANOSECONDS = 1  # PCAP_TSTAMP_PRECISION_NANO


class PacketHeader(ctypes.Structure):
    """struct pcap_pkthdr of a capture that was opened with NANOSECONDS."""

    _fields_ = (
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
        ("captured", ctypes.c_uint32),
        ("original", ctypes.c_uint32),
    )


@functools.cache
def library() -> ctypes.PyDLL:
    """Keeps the interpreter's lock in calls: they are as short as they are many. Raises UnsupportedError."""
    for name in ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so"):
        try:
            pcap = ctypes.PyDLL(name)
            break
        except OSError:
            continue
    else:
        raise UnsupportedError("cannot read captures: libpcap is not installed; install tcpdump, which brings it")
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    for call, result, *arguments in (
        ("pcap_open_offline_with_tstamp_precision", handle, text, ctypes.c_uint, text),
        ("pcap_next_ex", ctypes.c_int, handle, handle, handle),
        ("pcap_datalink", ctypes.c_int, handle),
        ("pcap_datalink_val_to_name", text, ctypes.c_int),
        ("pcap_geterr", text, handle),
        ("pcap_file", handle, handle),
        ("pcap_close", None, handle),
    ):
        function = getattr(pcap, str(call))
        function.restype, function.argtypes = result, arguments
    return pcap


@functools.cache
def c_library() -> ctypes.PyDLL:
    """The C library that libpcap's files belong to."""
    library_ = ctypes.PyDLL(None)
    library_.ftell.restype, library_.ftell.argtypes = ctypes.c_long, [ctypes.c_void_p]
    return library_
