# SPDX-License-Identifier: Apache-2.0
"""Whose a loaded program is: what the kernel and /proc tell of those who hold it."""

import contextlib
import os
from itertools import islice
from pathlib import Path

from netmon.kernel import bpf_calls

DISPATCHER = "xdp_dispatcher"
_PROC, _PINS = Path("/proc"), Path("/sys/fs/bpf")
_MOST_PINS = 1000
_MOST_NAMED = 3


def describe_program(program_id: int, name: str) -> str:
    """`program 17 (xdp_filter), held by xdp-loader[812]`. Reads /proc and /sys/fs/bpf; never raises."""
    line = f"program {program_id}" + (f" ({name})" if name else "")
    if name == DISPATCHER:
        line += ", libxdp's dispatcher for programs of others (xdp-loader status lists them)"
    holders = [*_processes(program_id), *_pins(program_id)]
    return line + (f", held by {', '.join(holders[:_MOST_NAMED])}" if holders else "")


def _processes(program_id: int) -> list[str]:
    """Those with a descriptor of the program, or of a link of it, as name[pid]."""
    found = []
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is not ours to look at
            links = {entry: os.readlink(process / "fd" / entry) for entry in os.listdir(process / "fd")}
            bpf = [entry for entry, target in links.items() if target.startswith("anon_inode:bpf")]
            if any(bpf_calls.program_of(str(process / "fdinfo" / entry)) == program_id for entry in bpf):
                found.append(f"{(process / 'comm').read_text().strip()}[{process.name}]")
    return found


def _pins(program_id: int) -> list[str]:
    """The paths below /sys/fs/bpf of the program, or of a link of it."""
    found = []
    paths = (os.path.join(place, file) for place, _, files in os.walk(_PINS) for file in files)
    for path in islice(paths, _MOST_PINS):
        with contextlib.suppress(OSError):
            if bpf_calls.pinned_program(path) == program_id:
                found.append(path)
    return found
