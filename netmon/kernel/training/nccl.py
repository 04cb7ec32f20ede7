# SPDX-License-Identifier: Apache-2.0
"""What NCCL's network proxies send each other: the programs of bpf/collectives.c on the libraries that ranks map.

The programs are loaded when the first such library is found: a machine without NCCL has none of this. Who looks for
libraries is netmon.kernel.training.uprobes; here each of them is read a second time, for its debug information, by a
child with limits, and attached to when that is over. What cannot be read is said, and nothing is guessed.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.kernel.training import nccl_layout
from netmon.kernel.training.nccl_layout import FIELDS, MOST_STATE, MOST_STRUCT_BYTES, MOST_SUBS
from netmon.kernel.training.symbols import Reading
from netmon.marks import printable
from netmon.records import TRANSFER_EACH, TRANSFER_LAYOUT, TRANSFER_TRAPS

NONE, OPERATIONS, EACH = range(3)
"""Nothing is looked at; operations with the sum of their transfers; each transfer."""

HANDED_OVER = ("transfers", "transfer_counts")
"""The maps that the other part reads."""

MOST_LAYOUTS = 256
_MOST_WAITING, _READ_AT_ONCE = 64, 2
_MOST_PROBES = 32  # of a library
_MOST_REMEMBERED = 64  # layouts, by build id
_MOST_WARNINGS = 16

# What the probes may cost that each transfer meets: half a percent of the host's processors.
_SHARE, _TRAP_NS = 0.005, 800
_GOVERN_NS = 250_000_000
_PAUSE_NS, _LONGEST_PAUSE_NS = 10_000_000_000, 600_000_000_000

_PROGRAMS = {
    "nccl_queued": ("nccl_queued", NONE),
    "nccl_over": ("nccl_over", NONE),
    "nccl_moved": ("nccl_moved", OPERATIONS),
    "nccl_awaited": ("nccl_moved", EACH),
    "nccl_arrived": ("nccl_arrived", EACH),
}
"""By nccl_layout's name of a probed location: the program there, and from what on it is needed."""

File = tuple[int, int]
"""Device and inode."""


class Library(NamedTuple):
    """A file that may have NCCL in it. descriptor: whoever gets it closes it."""

    file: File
    uid: int
    path: str  # for people
    descriptor: int
    executes: Callable[[int], bool]  # whether an offset is mapped as code
    surely: bool  # it is called like NCCL


@dataclass
class _Probed:
    library: Library
    number: int  # of its layout
    sites: list[tuple[str, int, int]]  # program, from what on it is needed, offset
    links: dict[tuple[str, int], int] = field(default_factory=dict)  # program and offset → descriptor


class NcclTransfers:
    """One per agent. Needs CAP_BPF and CAP_PERFMON."""

    def __init__(self, load: Callable[[], dict[str, int]], wanted: int) -> None:
        """load: as loader.load_collectives; wanted: OPERATIONS or EACH."""
        self._load, self._wanted, self._level = load, wanted, wanted
        self._loaded: dict[str, int] = {}
        self._cannot = ""
        self._waiting: list[Library] = []
        self._readings: list[tuple[Library, Reading]] = []
        self._probed: dict[File, _Probed] = {}
        self._remembered: dict[tuple[str, int], dict[str, Any]] = {}  # by build id and owner: what was read
        self._warnings: list[str] = []
        self._handed_over = False
        self._governed_ns, self._traps = 0, 0
        self._pause_ns, self._resume_ns = _PAUSE_NS, 0
        self._most_traps = _SHARE * (os.cpu_count() or 1) * 1e9 / _TRAP_NS  # a second

    def take(self, library: Library) -> None:
        """A library that has just been found."""
        if len(self._waiting) < _MOST_WAITING and library.file not in self._probed:
            self._waiting.append(library)
        else:
            os.close(library.descriptor)

    def follow(self, files: Collection[File], spend: Callable[[int, int], None]) -> list[str]:
        """Attaches to what has been read, and begins to read the next; returns the paths of the former. Does not block.

        files: that are of interest still; spend: called with a user and the processor time that its library took.
        """
        added: list[str] = []
        for file in [file for file in self._probed if file not in files]:
            self._detach(self._probed.pop(file))
        for library, reading in [one for one in self._readings if one[1].ends_within(0)]:
            self._readings.remove((library, reading))
            self._finish(library, reading)
            spend(library.uid, reading.cost_ns)
            added += [library.path] if library.file in self._probed else []
        while self._waiting and len(self._readings) < _READ_AT_ONCE:
            library = self._waiting.pop(0)
            try:
                module = nccl_layout.__name__
                self._readings.append((library, Reading(library.descriptor, (), module, nccl_layout.SECONDS)))
            except OSError as error:
                self._refuse(library, error)
        if self._probed:
            self._govern(time.monotonic_ns())
        return added

    def hand_over(self) -> list[int]:
        """Copies of the descriptors of HANDED_OVER, once, when there is something in them."""
        if self._handed_over or not self._probed:
            return []
        self._handed_over = True
        return [os.dup(self._loaded[name]) for name in HANDED_OVER]

    def warnings(self) -> list[str]:
        """What could not be done since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def close(self) -> None:
        for library, reading in self._readings:
            reading.close()
            self._waiting.append(library)
        for library in self._waiting:
            os.close(library.descriptor)
        for probed in self._probed.values():
            self._detach(probed)
        for descriptor in self._loaded.values():
            os.close(descriptor)
        self._waiting, self._probed, self._readings, self._loaded = [], {}, [], {}

    def _finish(self, library: Library, reading: Reading) -> None:
        try:
            self._attach(library, checked(self._known(library, reading.answer())))
        except (KernelError, OSError) as error:
            self._refuse(library, error)

    def _known(self, library: Library, answer: dict[str, Any]) -> dict[str, Any]:
        """With its layout; of a library without debug information that of the same build, whose functions lie alike.

        Whose file it is matters: who can write a library that claims to be another one's build, does so for himself.
        """
        build = str(answer.get("build", "")), os.fstat(library.descriptor).st_uid
        if "layout" in answer:
            if build[0]:
                self._remembered[build] = answer
            if len(self._remembered) > _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            return answer
        known = self._remembered.get(build)
        if known is None or known["functions"] != answer.get("functions"):
            raise KernelError("it has no debug information, and no other library of its build is known that has")
        return known

    def _attach(self, library: Library, found: dict[str, Any]) -> None:
        if not self._loaded:
            self._load_programs()
        taken = {probed.number for probed in self._probed.values()}
        number = next((number for number in range(1, MOST_LAYOUTS) if number not in taken), 0)
        if not number:
            raise KernelError(f"more than {MOST_LAYOUTS - 1} libraries are probed")
        sites = [
            (*_PROGRAMS[name], offset) for name, offsets in found["probes"].items() for offset in dict.fromkeys(offsets)
        ]
        if not all(library.executes(offset) for _, _, offset in sites):
            raise KernelError("its functions are not where its code is")
        bpf_calls.set_array_entry(self._loaded["layouts"], number, _packed(found))
        probed = _Probed(library, number, sites)
        try:
            self._link(probed)
        except OSError:
            self._detach(probed, close=False)
            raise
        self._probed[library.file] = probed

    def _load_programs(self) -> None:
        """Tried once."""
        if self._cannot:
            raise KernelError(self._cannot)
        try:
            self._loaded = self._load()
        except KernelError as error:
            self._cannot = str(error)
            raise
        self._report_each()

    def _report_each(self) -> None:
        each = int(self._level == EACH).to_bytes(8, "little")
        bpf_calls.set_array_entry(self._loaded["transfer_counts"], TRANSFER_EACH, each)

    def _link(self, probed: _Probed) -> None:
        """Its probes are those of the level. Raises OSError."""
        path = f"/proc/self/fd/{probed.library.descriptor}"
        for program, needed, offset in probed.sites:
            place = program, offset
            if needed > self._level and place in probed.links:
                os.close(probed.links.pop(place))
            elif needed <= self._level and place not in probed.links:
                probed.links[place] = bpf_calls.uprobe_link(self._loaded[program], path, offset, probed.number)

    def _detach(self, probed: _Probed, close: bool = True) -> None:
        for descriptor in probed.links.values():
            os.close(descriptor)
        probed.links = {}
        if close:
            os.close(probed.library.descriptor)

    def _govern(self, now_ns: int) -> None:
        """Where transfers are more than may be looked at, operations are reported without them for a while."""
        spent_ns = now_ns - self._governed_ns
        if spent_ns < _GOVERN_NS:
            return
        traps = int.from_bytes(bpf_calls.array_entry(self._loaded["transfer_counts"], TRANSFER_TRAPS, 8), "little")
        rate, self._traps, self._governed_ns = (traps - self._traps) * 1e9 / spent_ns, traps, now_ns
        if rate > self._most_traps and self._level > NONE:
            self._resume_ns = now_ns + self._pause_ns
            self._set_level(self._level - 1)
            reported = (
                "operations are reported, not each transfer"
                if self._level
                else "operations are reported without their bytes"
            )
            self._warn(f"NCCL makes {rate:,.0f} transfers/s: {reported}, for {self._pause_ns / 1e9:.0f} s")
            self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
        elif self._level < self._wanted and now_ns >= self._resume_ns:
            self._set_level(self._level + 1)
            self._resume_ns = now_ns + _PAUSE_NS
        elif self._level == self._wanted and now_ns >= self._resume_ns + self._pause_ns:
            self._pause_ns = _PAUSE_NS

    def _set_level(self, level: int) -> None:
        self._level = level
        self._report_each()
        for probed in self._probed.values():
            with contextlib.suppress(OSError):  # the next change tries again
                self._link(probed)

    def _refuse(self, library: Library, error: Exception) -> None:
        os.close(library.descriptor)
        if library.surely:
            self._warn(f"what NCCL sends by {printable(library.path)} is unknown: {printable(str(error))}")

    def _warn(self, text: str) -> None:
        if len(self._warnings) < _MOST_WARNINGS:
            self._warnings.append(text)


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The same, as somebody says who has read a stranger's file. Raises KernelError where it is not of that form."""
    try:
        layout = {str(name): int(number) for name, number in answer["layout"].items()}
        probes = {str(name): [int(offset) for offset in offsets] for name, offsets in answer["probes"].items()}
        numbers = {
            name: {int(theirs): int(ours) for theirs, ours in answer[name].items()}
            for name in ("collectives", "algorithms")
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KernelError(f"what was read of it has no form ({type(error).__name__})") from None
    every = all(0 <= theirs < 32 and 0 <= ours < 256 for each in numbers.values() for theirs, ours in each.items())
    fits = (
        layout.keys() == set(TRANSFER_LAYOUT.names or ()) - {"collectives", "algorithms"}
        and all(0 <= layout[name] < MOST_STRUCT_BYTES for name in FIELDS)
        and 0 < layout["subs"] <= MOST_SUBS
        and 0 < layout["sub_bytes"] <= MOST_STRUCT_BYTES
        and all(0 <= layout[name] <= MOST_STATE for name in ("sent", "awaited", "received", "total"))
    )
    some = probes.keys() <= _PROGRAMS.keys() and 0 < sum(map(len, probes.values())) <= _MOST_PROBES
    if not (every and fits and some):
        raise KernelError("what was read of it is out of range")
    return {"layout": layout, "probes": probes, **numbers}


def _packed(found: dict[str, Any]) -> bytes:
    """A netmon_layout."""
    row = np.zeros(1, TRANSFER_LAYOUT)
    for name, number in found["layout"].items():
        row[name] = number
    for name in ("collectives", "algorithms"):
        table = bytearray(32)
        for theirs, ours in found[name].items():
            table[theirs] = ours
        row[name] = np.void(bytes(table))
    return row.tobytes()
