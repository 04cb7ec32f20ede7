# SPDX-License-Identifier: Apache-2.0
"""The kernel's table of watched interfaces: ifindex → the number under which the meter counts it.

An interface that is removed and made again has another ifindex and keeps its number. Two interfaces never share an
entry: the program compares the ifindex, and what finds no place here is refused.
"""

import numpy as np

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.records import KERNEL_INTERFACE

_MOST_INTERFACES = 1024  # NETMON_INTERFACES
_PROBES = 4  # NETMON_PROBES


def number_interface(table: int, index: int, number: int) -> None:
    """table: descriptor of the map `interfaces`; number: from 1. To be called before a program is attached.

    Needs CAP_BPF. Raises KernelError.
    """
    entries = _near(table, index)
    indices = [position for wanted in (index, 0) for position, found in entries.items() if found == wanted]
    if not indices:
        raise KernelError(f"cannot number the interface with index {index}: {_PROBES} others have its places")
    _write(table, indices[0], index, number)


def forget_interface(table: int, index: int) -> None:
    """Its ifindex may become another's. Nothing happens where it has no number. Raises KernelError."""
    for position, entry in _near(table, index).items():
        if entry == index:
            _write(table, position, 0, 0)


def _near(table: int, index: int) -> dict[int, int]:
    """The entries where the program looks for this ifindex: place → the ifindex that is there."""
    indices = [(index + probe) % _MOST_INTERFACES for probe in range(_PROBES)]
    return {position: int(_read(table, position)["index"]) for position in indices}


def _read(table: int, index: int) -> np.void:
    try:
        entry: np.void = np.frombuffer(
            bpf_calls.array_entry(table, index, KERNEL_INTERFACE.itemsize), KERNEL_INTERFACE
        )[0]
    except OSError as error:
        raise _unreachable(error) from error
    return entry


def _write(table: int, position: int, index: int, number: int) -> None:
    """A word of eight bytes: a program that runs meanwhile sees all of it or nothing."""
    try:
        bpf_calls.set_array_entry(table, position, np.array([(index, number)], KERNEL_INTERFACE).tobytes())
    except OSError as error:
        raise _unreachable(error) from error


def _unreachable(error: OSError) -> KernelError:
    return KernelError(f"cannot reach the table of interfaces: {error.strerror}")
