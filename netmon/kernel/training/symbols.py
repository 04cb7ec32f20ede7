# SPDX-License-Identifier: Apache-2.0
"""Where a library's exported functions lie in its file.

Anybody can map a file that is called like a training library. So it is read by a child that holds no capability, owns
nothing, may take so much memory and time and no more, and says what it found in one line: this module as a program,
which imports little, as it is started once per library. What it says is checked by those who use it.

libtorch_cpu.so exports tens of thousands of symbols in half a gigabyte: only its tables of strings and symbols are
read, the first searched as bytes.
"""

import json
import math
import os
import resource
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from netmon.errors import KernelError
from netmon.kernel.privilege import drop_capabilities

Offsets = dict[str, dict[int, str]]
"""Mangled names' beginning → file offset → name."""

MOST_FUNCTIONS = 64
"""Of one library; the real ones have forty at most."""

_MEMORY_BYTES, _SECONDS = 512 << 20, 2
_BUSY = 8  # times as long as its processor time may a child take where others want the processors as well
_ANSWER_BYTES = 64 << 10
_NOBODY = 65534
_MOST_SECTIONS, _MOST_SEGMENTS = 4096, 256
_SYMBOLS_BYTES, _NAMES_BYTES = 64 << 20, 128 << 20  # of libtorch_cpu.so: 2 and 5 MB; of all of jaxlib: 18 and 91
_MOST_OFFSETS = 4096  # at which a wanted name's beginning may stand

# Elf64, little-endian: what x86-64 and aarch64 have.
_HEADER = struct.Struct("<4sBBB9x8xQQQ4xHHHHHH")
_SECTION = struct.Struct("<4xI8xQQQII8xQ")  # type, address, offset, size, link, info, size of an entry
_SEGMENT = struct.Struct("<IIQQ8xQ")  # type, flags, offset, address, bytes in the file; then the rest
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_ELF, _64_BIT, _LITTLE = b"\x7fELF", 2, 1
_DYNSYM, _LOAD, _EXECUTABLE, _FUNCTION = 11, 1, 1, 2
SYMTAB = 2
"""The kind of the table that has local functions, too; it goes where a library is stripped."""

AT = "@"
"""Before a file offset in hexadecimal digits, in place of a name: whether a function begins there."""

LOCAL = "."
"""Before a name's beginning: of a function that the library does not export. Where it is stripped, there is none."""

_FRAMES = 0x6474E550  # PT_GNU_EH_FRAME: a table of where functions begin, which survives strip
_FRAMES_HEAD = struct.Struct("<BBBBiI")  # version, three encodings, where the frames are, how many
_SORTED_TABLE = (1, 0x03, 0x3B)  # version; an unsigned number; signed ones that count from the table's address
_MOST_FRAMES = 1 << 20


class SlowError(KernelError):
    """It was not read in time, on a machine that may be busy: it may be the next time."""


class Reading:
    """The functions of one library, being looked for."""

    def __init__(
        self, descriptor: int, prefixes: Sequence[str], module: str = __name__, seconds: float = _SECONDS
    ) -> None:
        """descriptor: of a regular file (not kept); module: whose `main` reads it, in so much processor time. Does not
        block. Raises OSError.
        """
        command = [sys.executable, "-I", "-c", _PROGRAM.format(module), str(Path(__file__).parents[3]), *prefixes]
        self._child = subprocess.Popen(command, stdin=descriptor, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._child.stdout
        self._begun_ns = time.monotonic_ns()
        self._until = time.monotonic() + _BUSY * seconds  # the child's own limit is of processor time
        self.cost_ns = 0
        """Processor time of the child; of one that did not answer, the time for which it was waited for."""

    def ends_within(self, seconds: float) -> bool:
        """Whether `result` has one within that time, or there will be none. Blocks so long."""
        assert self._child.stdout
        left = max(0.0, min(seconds, self._until - time.monotonic()))
        return bool(select.select([self._child.stdout], [], [], left)[0]) or time.monotonic() > self._until

    def result(self) -> Offsets:
        """Of this module's `main`. Blocks until it is there, not longer than the child's time. Raises KernelError with
        the reason.
        """
        answer = self.answer()
        return {prefix: {int(offset): name for offset, name in found} for prefix, found in answer.items()}

    def answer(self) -> dict[str, Any]:
        """As it is. Blocks and raises as `result`."""
        before_ns = _children_ns()
        try:
            text, _ = self._child.communicate(timeout=max(0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.close()
            self.cost_ns = time.monotonic_ns() - self._begun_ns
            raise SlowError("it takes too long to be read") from None
        self.cost_ns = _children_ns() - before_ns
        if self._child.returncode > 0:  # what it reads may end it by a limit only, which is a signal
            raise KernelError(f"the program that reads it failed (status {self._child.returncode})")
        if self._child.returncode or not text:
            raise KernelError("it takes too much memory or time to be read")
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise KernelError(answer["error"])
        return answer

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self._child.kill()
        self._child.communicate()


def _children_ns() -> int:
    """Processor time of the children that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(1e9 * (used.ru_utime + used.ru_stime))


_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import main; main()"


def main() -> None:
    """The child: the library on standard input, what to look for as arguments, the answer on standard output."""
    confine(((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, _SECONDS)))
    say(lambda: {prefix: list(found.items()) for prefix, found in function_offsets(0, sys.argv[1:]).items()})


def confine(limits: Sequence[tuple[int, int]]) -> None:
    """This process, which will read what a stranger has prepared. limits: as setrlimit takes them, of processor time
    from now on: on a slow machine it has taken some to start.
    """
    used = {resource.RLIMIT_CPU: math.ceil(time.process_time())}
    for limit, most in limits:
        most += used.get(limit, 0)
        resource.setrlimit(limit, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    drop_capabilities()


def say(read: Callable[[], dict[str, Any]]) -> None:
    """The child's answer, in one line."""
    try:
        text = json.dumps(read())
    except (OSError, ValueError, OverflowError, struct.error, MemoryError) as error:
        text = json.dumps({"error": str(error)[:200]})
    if len(text) > _ANSWER_BYTES:
        text = json.dumps({"error": "its names are too long"})
    sys.stdout.write(text)


Segment = tuple[int, ...]
"""type, flags, offset, address, bytes in the file."""


class Elf(NamedTuple):
    """A library's tables: its sections, its segments that are executed."""

    descriptor: int
    size: int
    sections: list[tuple[int, ...]]
    segments: list[Segment]
    frames: Segment | None = None  # the table for unwinding

    def section(self, kind: int) -> tuple[int, ...] | None:
        """The first of a kind: type, address, offset, length, link, info, bytes of an entry."""
        return next((one for one in self.sections if one[0] == kind), None)

    def symbols(self, kind: int) -> tuple[bytes, bytes]:
        """Rows of the table of symbols of this kind, and their names; both empty where there is none."""
        symbols = self.section(kind)
        if symbols is None:
            return b"", b""
        _, _, at, length, link, _, entry = symbols
        if entry != _SYMBOL.size or length % entry or link >= len(self.sections):
            raise ValueError("its symbols are not those of a library")
        _, _, names_at, names_length, *_ = self.sections[link]
        return self.read(at, length, _SYMBOLS_BYTES), self.read(names_at, names_length, _NAMES_BYTES)

    def read(self, offset: int, length: int, most: int = 1 << 20) -> bytes:
        """A part of the file, of so many bytes at most."""
        return _read(self.descriptor, offset, length, self.size, most)


def open_elf(descriptor: int) -> Elf:
    """Raises OSError, and ValueError for a file that is not such a library."""
    size = os.fstat(descriptor).st_size
    header = _HEADER.unpack(_read(descriptor, 0, _HEADER.size, size, _HEADER.size))
    magic, width, order, _, _, segments_at, sections_at, _, segment, segments, section, sections, _ = header
    if (magic, width, order) != (_ELF, _64_BIT, _LITTLE):
        raise ValueError("it is no library of this machine")
    if section != _SECTION.size or segment < _SEGMENT.size or sections > _MOST_SECTIONS or segments > _MOST_SEGMENTS:
        raise ValueError("its tables are not those of a library")
    table = list(_SECTION.iter_unpack(_read(descriptor, sections_at, section * sections, size)))
    whole = _read(descriptor, segments_at, segment * segments, size)
    loaded = [_SEGMENT.unpack_from(whole, number * segment) for number in range(segments)]
    executed = [one for one in loaded if one[0] == _LOAD and one[1] & _EXECUTABLE]
    return Elf(descriptor, size, table, executed, next((one for one in loaded if one[0] == _FRAMES), None))


def function_offsets(descriptor: int, prefixes: Sequence[str]) -> Offsets:
    """The functions in .dynsym (which survives strip) whose mangled names begin with each prefix; the LOCAL ones in
    .symtab; or AT those offsets.

    Reads a few megabytes, of LOCAL ones up to a hundred. Raises OSError, and ValueError for a file that is not such a
    library.
    """
    elf = open_elf(descriptor)
    if all(prefix.startswith(AT) for prefix in prefixes):
        return _beginnings(elf, [int(prefix[len(AT) :], 16) for prefix in prefixes])
    local = [prefix for prefix in prefixes if prefix.startswith(LOCAL)]
    exported = [prefix for prefix in prefixes if prefix not in local]
    return {
        **(_find(*elf.symbols(_DYNSYM), elf.segments, exported) if exported else {}),
        **(_find(*elf.symbols(SYMTAB), elf.segments, local) if local else {}),
    }


def _read(descriptor: int, offset: int, length: int, size: int, most: int = 1 << 20) -> bytes:
    if length > most or offset + length > size:
        raise ValueError(f"a table of {length} bytes at {offset} in a file of {size}: that is no library")
    parts = []
    while length > 0:
        part = os.pread(descriptor, min(length, 1 << 20), offset)
        if not part:
            raise ValueError("it has become shorter while it was read")
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def _find(rows: bytes, names: bytes, segments: Sequence[Segment], prefixes: Sequence[str]) -> Offsets:
    indices = {index: prefix for prefix in prefixes for index in _offsets(names, prefix.removeprefix(LOCAL).encode())}
    found: Offsets = {prefix: {} for prefix in prefixes}
    count = 0
    for name, _, _, section, value, length in _SYMBOL.iter_unpack(rows):
        # Defined here, not imported from another library.
        if name in indices and section and length and (offset := file_offset(segments, value)) >= 0:
            end = names.find(b"\0", name)
            found[indices[name]][offset] = names[name : end if end >= 0 else None].decode(errors="replace")[:1024]
            count += 1
            if count > MOST_FUNCTIONS:
                raise ValueError(f"it has more than {MOST_FUNCTIONS} functions of those that are looked for")
    return found


def _beginnings(elf: Elf, wanted: Sequence[int]) -> Offsets:
    """Those of the wanted file offsets at which a function begins, as the table for unwinding has it."""
    frames = elf.frames
    if frames is None:
        raise ValueError("nothing says where its functions begin")
    _, _, at, address, length = frames
    head = elf.read(at, _FRAMES_HEAD.size)
    version, _, counted, encoded, _, count = _FRAMES_HEAD.unpack(head)
    if (version, counted, encoded) != _SORTED_TABLE or count > _MOST_FRAMES or 8 * count > length:
        raise ValueError("what says where its functions begin is not understood")
    rows = elf.read(at + _FRAMES_HEAD.size, 8 * count, 8 * _MOST_FRAMES)
    begin = {file_offset(elf.segments, address + first) for first, _ in struct.iter_unpack("<ii", rows)}
    return {f"{AT}{offset:x}": {offset: AT} if offset in begin else {} for offset in wanted}


def find_functions(
    rows: bytes, names: bytes, wanted: Sequence[str], beginning: bool = False
) -> Iterator[tuple[str, int, int]]:
    """Name, address and size of each function that is called so. beginning: or whose name begins so."""
    indices = {index for name in wanted for index in _offsets(names, name.encode())}
    for name, info, _, section, value, length in _SYMBOL.iter_unpack(rows):
        if name in indices and section and length and info & 0xF == _FUNCTION:
            found = names[name : names.find(b"\0", name)].decode(errors="replace")[:1024]
            if beginning or found in wanted:
                yield found, value, length


def _offsets(names: bytes, wanted: bytes) -> Iterator[int]:
    """Where it stands in the string table. A name may begin within another one, of which it is the end."""
    at = names.find(wanted)
    for _ in range(_MOST_OFFSETS):
        if at < 0:
            return
        yield at
        at = names.find(wanted, at + 1)


def file_offset(segments: Sequence[Segment], address: int) -> int:
    """-1: in no segment that is executed, so it is no function."""
    for _, _, offset, start, length in segments:
        if 0 <= address - start < length:
            return address - start + offset
    return -1
