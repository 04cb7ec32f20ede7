# SPDX-License-Identifier: Apache-2.0
"""Where the running kernel keeps the fields of its structures, by its own description (BTF, Linux 5.4)."""

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

from netmon.errors import UnsupportedError
from netmon.kernel.libbpf import library

_STRUCT = 4  # BTF_KIND_STRUCT
_BITFIELD = 1 << 31  # of btf_type.info: the members' offsets carry a width


class _Type(ctypes.Structure):
    """struct btf_type."""

    _fields_ = [("name", ctypes.c_uint32), ("info", ctypes.c_uint32), ("size", ctypes.c_uint32)]


class _Member(ctypes.Structure):
    """struct btf_member."""

    _fields_ = [("name", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32)]


class _Field(NamedTuple):
    name: str
    type: int
    offset: int  # bytes


class KernelTypes:
    """The kernel's types, for as long as the `with` block lasts. Holds a few megabytes."""

    def __enter__(self) -> "KernelTypes":
        """Raises UnsupportedError where the kernel was built without BTF, or libbpf cannot read it."""
        try:
            self._library = library()
            self._library.btf__load_vmlinux_btf.restype = ctypes.c_void_p
            self._library.btf__type_by_id.restype = ctypes.POINTER(_Type)
            self._library.btf__name_by_offset.restype = ctypes.c_char_p
            self._btf = ctypes.c_void_p(self._library.btf__load_vmlinux_btf())
            if ctypes.cast(self._library.libbpf_get_error(self._btf), ctypes.c_void_p).value or not self._btf:
                raise UnsupportedError("cannot read /sys/kernel/btf/vmlinux: the kernel was built without BTF")
        except AttributeError as error:  # libbpf 0.4 and earlier
            raise UnsupportedError(f"cannot read the kernel's BTF: libbpf is too old ({error})") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the memory back."""
        self._library.btf__free(self._btf)

    def offset(self, structure: str, path: str) -> int:
        """Bytes from the structure's beginning to a field, such as `ns.inum`. Raises UnsupportedError."""
        number = self._library.btf__find_by_name_kind(self._btf, structure.encode(), _STRUCT)
        offset = 0
        for name in path.split("."):
            found = [field for field in self._fields(number) if field.name == name] if number > 0 else []
            if not found:
                raise UnsupportedError(f"cannot find {path} in the kernel's struct {structure}")
            number, offset = self._library.btf__resolve_type(self._btf, found[0].type), offset + found[0].offset
        return offset

    def _fields(self, number: int, base: int = 0) -> Iterator[_Field]:
        """The members of a structure, those of anonymous structures in it included."""
        type_ = self._library.btf__type_by_id(self._btf, number)
        count, mask = type_.contents.info & 0xFFFF, 0xFFFFFF if type_.contents.info & _BITFIELD else 0xFFFFFFFF
        first = ctypes.addressof(type_.contents) + ctypes.sizeof(_Type)
        for member in (_Member * count).from_address(first):
            offset = base + (member.offset & mask) // 8
            name = self._library.btf__name_by_offset(self._btf, member.name).decode()
            if name:
                yield _Field(name, member.type, offset)
            else:
                yield from self._fields(member.type, offset)
