# SPDX-License-Identifier: Apache-2.0
"""The kernel's table of watched interfaces: ifindex → the number under which the meter counts it.

An interface that is removed and made again has another ifindex and keeps its number. Two interfaces never share an
entry: the program compares the ifindex, and what finds no place here is refused.
"""

import ctypes
import os

import numpy as np

from netmon.errors import KernelError
from netmon.kernel import libbpf
from netmon.records import KERNEL_INTERFACE

_PLACES = 1024  # NETMON_INTERFACES
_PROBES = 4  # NETMON_PROBES


def number_interface(table: int, index: int, number: int) -> None:
    """table: descriptor of the map `interfaces`; number: from 1. To be called before a program is attached.

    Needs CAP_BPF. Raises KernelError.
    """
    entries = _near(table, index)
    places = [place for wanted in (index, 0) for place, found in entries.items() if found == wanted]
    if not places:
        raise KernelError(f"cannot number the interface with index {index}: {_PROBES} others have its places")
    _write(table, places[0], index, number)


def forget_interface(table: int, index: int) -> None:
    """Its ifindex may become another's. Nothing happens where it has no number. Raises KernelError."""
    for place, entry in _near(table, index).items():
        if entry == index:
            _write(table, place, 0, 0)


def _near(table: int, index: int) -> dict[int, int]:
    """The entries where the program looks for this ifindex: place → the ifindex that is there."""
    entries = {}
    for probe in range(_PROBES):
        place, entry = (index + probe) % _PLACES, np.zeros(1, KERNEL_INTERFACE)
        key = ctypes.byref(ctypes.c_uint32(place))
        _checked(libbpf.library().bpf_map_lookup_elem(table, key, ctypes.c_void_p(entry.ctypes.data)))
        entries[place] = int(entry["index"][0])
    return entries


def _write(table: int, place: int, index: int, number: int) -> None:
    """A word of eight bytes: a program that runs meanwhile sees all of it or nothing."""
    key, entry = ctypes.c_uint32(place), np.array([(index, number)], KERNEL_INTERFACE)
    value, flags = ctypes.c_void_p(entry.ctypes.data), ctypes.c_uint64(0)
    _checked(libbpf.library().bpf_map_update_elem(table, ctypes.byref(key), value, flags))


def _checked(result: int) -> None:
    if result < 0:
        error = ctypes.get_errno() or -result
        raise KernelError(f"cannot reach the table of interfaces: {os.strerror(error)}")
