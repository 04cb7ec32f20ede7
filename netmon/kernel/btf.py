# SPDX-License-Identifier: Apache-2.0
"""Where the running kernel keeps the fields of its structures, by its own description (BTF, Linux 5.4).

Read without libbpf: the format is the kernel's interface (Documentation/bpf/btf.rst), and a few dozen lines.
"""

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from netmon.errors import UnsupportedError

VMLINUX = Path("/sys/kernel/btf/vmlinux")

_MAGIC, _HEADER = 0xEB9F, struct.Struct("=HBBIIIII")
_TYPE, _MEMBER = struct.Struct("=III"), struct.Struct("=III")
_STRUCT, _UNION = 4, 5
_WRAPPERS = {8, 9, 10, 11, 18}  # typedef, volatile, const, restrict, type tag: around another type
_TAIL = {1: 4, 3: 12, 14: 4, 17: 4}  # bytes that follow: int, array, variable, declaration tag
_TAIL_PER_ITEM = {_STRUCT: 12, _UNION: 12, 6: 8, 13: 8, 15: 12, 19: 12}  # enum, prototype, section, 64-bit enum
_KINDS = 20
_BITFIELD = 1 << 31  # of a type's info: its members' offsets carry a width
_DEEPEST = 64  # of wrappers and anonymous structures, one in the other


class _Field(NamedTuple):
    name: str
    type: int
    offset: int  # bytes


class KernelTypes:
    """The kernel's types. Holds a few megabytes; making it walks all of them once, about a tenth of a second."""

    def __init__(self, data: bytes | None = None) -> None:
        """data: None for the running kernel's. Raises UnsupportedError where there is none that we can read."""
        try:
            self._data = VMLINUX.read_bytes() if data is None else data
        except OSError as error:
            raise UnsupportedError(
                f"cannot read {VMLINUX}: {error.strerror}; the kernel was built without BTF"
            ) from error
        try:
            self._index()
        except struct.error as error:
            raise UnsupportedError(f"cannot read {VMLINUX}: it ends in the middle") from error

    def _index(self) -> None:
        magic, _, _, length, types, types_size, strings, strings_size = _HEADER.unpack_from(self._data)
        if magic != _MAGIC:
            raise UnsupportedError(f"cannot read {VMLINUX}: not BTF")
        index, end = length + types, length + types + types_size
        self._strings = self._data[length + strings : length + strings + strings_size]
        self._offsets = array("I", [0])  # of each type by its number; 0 is void
        self._structures: dict[int, int] = {}  # place of the name → number
        while index < end:
            name, info, _ = _TYPE.unpack_from(self._data, index)
            kind = info >> 24 & 0x1F
            if kind >= _KINDS:
                raise UnsupportedError(f"cannot read {VMLINUX}: its types of kind {kind} are newer than this netmon")
            if kind == _STRUCT:
                self._structures.setdefault(name, len(self._offsets))
            self._offsets.append(index)
            index += _TYPE.size + _TAIL.get(kind, 0) + (info & 0xFFFF) * _TAIL_PER_ITEM.get(kind, 0)

    def offset(self, structure: str, path: str) -> int:
        """Bytes from the structure's beginning to a field, such as `ns.inum`. Raises UnsupportedError."""
        number = self._structures.get(self._strings.find(b"\0" + structure.encode() + b"\0") + 1, 0)
        offset = 0
        for name in path.split("."):
            found = [field for field in self._fields(number) if field.name == name]
            if not found:
                raise UnsupportedError(f"cannot find {path} in the kernel's struct {structure}")
            number, offset = self._unwrapped(found[0].type), offset + found[0].offset
        return offset

    def _name(self, index: int) -> str:
        return self._strings[index : self._strings.find(b"\0", index)].decode(errors="replace")

    def _type(self, number: int) -> tuple[int, int]:
        """Info, and size or type. Nothing, where there is no such type."""
        if not 0 < number < len(self._offsets):
            return 0, 0
        _, info, size = _TYPE.unpack_from(self._data, self._offsets[number])
        return info, size

    def _unwrapped(self, number: int) -> int:
        for _ in range(_DEEPEST):
            info, inner = self._type(number)
            if info >> 24 & 0x1F not in _WRAPPERS:
                break
            number = inner
        return number

    def _fields(self, number: int, base: int = 0, depth: int = 0) -> Iterator[_Field]:
        """The members of a structure, those of anonymous structures in it included."""
        info, _ = self._type(number)
        if info >> 24 & 0x1F not in (_STRUCT, _UNION) or depth > _DEEPEST:
            return
        mask = 0xFFFFFF if info & _BITFIELD else 0xFFFFFFFF
        first = self._offsets[number] + _TYPE.size
        for index in range(first, first + (info & 0xFFFF) * _MEMBER.size, _MEMBER.size):
            name, type_, bits = _MEMBER.unpack_from(self._data, index)
            offset = base + (bits & mask) // 8
            if name:
                yield _Field(self._name(name), type_, offset)
            else:
                yield from self._fields(self._unwrapped(type_), offset, depth + 1)
