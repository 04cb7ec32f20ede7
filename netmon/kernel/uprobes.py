# SPDX-License-Identifier: Apache-2.0
"""Probes on the training libraries that running processes have mapped.

A probe sits on the library's file, so one attachment serves every process that maps it, those that start later
included. It is held by a perf descriptor and vanishes with it; nothing is written into tracefs.
"""

import ctypes
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from elftools.elf.segments import Segment

from netmon.errors import KernelError
from netmon.kernel.processes import PROC

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SET_BPF, _ENABLE = 0x40042408, 0x2400  # PERF_EVENT_IOC_*
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_PMU = Path("/sys/bus/event_source/devices/uprobe")
_ATTRIBUTE_SIZE = 112


@dataclass(frozen=True)
class Probe:
    """Where a program is attached: a library by its file's name, a symbol by the beginning of its mangled name."""

    library: "re.Pattern[str]"
    symbol: str
    program: str
    on_return: bool


PROBES = (
    Probe(re.compile(r"mpi_lib_v2.*\.so$"), "_ZN7horovod6common23EnqueueTensorAllreducesE", "step_enqueue", False),
    Probe(re.compile(r"mpi_lib_v2.*\.so$"), "_ZN7horovod5torch12WaitAndClearE", "step_wait", True),
)


class Uprobes:
    """The probes attached so far. Needs CAP_PERFMON and, to see other users' processes, CAP_SYS_PTRACE."""

    def __init__(self, programs: dict[str, int]) -> None:
        """programs: descriptors of the loaded uprobe programs by name."""
        self._programs = programs
        self._descriptors: list[int] = []
        self._files: set[tuple[int, int]] = set()

    def follow(self, pids: Iterable[int]) -> list[str]:
        """Attaches to the libraries that these processes map and that are not probed yet; returns their paths."""
        added = []
        for pid in pids:
            for path in _mapped_libraries(pid):
                inside = f"{PROC}/{pid}/root{path}"  # as the process sees it, also in a container
                try:
                    stat = os.stat(inside)
                except OSError:
                    continue
                if (stat.st_dev, stat.st_ino) not in self._files:
                    self._files.add((stat.st_dev, stat.st_ino))
                    self._attach_all(inside, path)
                    added.append(path)
        return added

    def _attach_all(self, inside: str, path: str) -> None:
        wanted = [probe for probe in PROBES if probe.library.search(path)]
        offsets = symbol_offsets(inside, [probe.symbol for probe in wanted])
        for probe in wanted:
            for offset in offsets[probe.symbol]:
                self._descriptors.append(_attach(self._programs[probe.program], inside, offset, probe.on_return))

    def close(self) -> None:
        """Detaches all."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _mapped_libraries(pid: int) -> set[str]:
    try:
        maps = (PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.endswith(".so")}
    return {path for path in paths if any(probe.library.search(path) for probe in PROBES)}


def symbol_offsets(path: str, prefixes: list[str]) -> dict[str, list[int]]:
    """File offsets of the functions in .dynsym (which survives strip) that begin with each prefix."""
    offsets: dict[str, list[int]] = {prefix: [] for prefix in prefixes}
    with open(path, "rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".dynsym")
        segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
        for symbol in table.iter_symbols() if isinstance(table, SymbolTableSection) else ():
            for prefix in prefixes:
                if symbol["st_size"] and symbol.name.startswith(prefix):
                    offsets[prefix].append(_file_offset(segments, symbol["st_value"]))
    return offsets


def _file_offset(segments: Iterable[Segment], address: int) -> int:
    for segment in segments:
        if 0 <= address - segment["p_vaddr"] < segment["p_filesz"]:
            return address - segment["p_vaddr"] + segment["p_offset"]
    raise KernelError(f"cannot probe the function at {address:#x}: no segment of its library holds it")


def _attach(program: int, path: str, offset: int, on_return: bool) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    name = ctypes.create_string_buffer(path.encode())
    attribute = bytearray(_ATTRIBUTE_SIZE)
    # struct perf_event_attr: type, size, config, …, config1 = path, config2 = offset
    struct.pack_into("<IIQ", attribute, 0, int((_PMU / "type").read_text()), _ATTRIBUTE_SIZE, int(on_return))
    struct.pack_into("<QQ", attribute, 56, ctypes.addressof(name), offset)
    buffer = (ctypes.c_char * _ATTRIBUTE_SIZE).from_buffer(attribute)
    call = _PERF_EVENT_OPEN[os.uname().machine]
    descriptor: int = libc.syscall(call, buffer, -1, 0, -1, _CLOEXEC)
    if descriptor < 0:
        raise KernelError(f"cannot probe {path}: {os.strerror(ctypes.get_errno())}")
    for request, argument in ((_SET_BPF, program), (_ENABLE, 0)):
        if libc.ioctl(descriptor, ctypes.c_ulong(request), argument) < 0:
            error = os.strerror(ctypes.get_errno())
            os.close(descriptor)
            raise KernelError(f"cannot probe {path}: {error}")
    return descriptor
