# SPDX-License-Identifier: Apache-2.0
"""The kernel's description of its types, from literal bytes."""

import struct

import pytest

from netmon.errors import UnsupportedError
from netmon.kernel.btf import VMLINUX, KernelTypes

STRINGS = b"\0int\0sock\0state\0common\0flags\0alias\0ops\0"


def kind(number: int, items: int = 0, flag: int = 0) -> int:
    return flag << 31 | number << 24 | items


def name(text: str) -> int:
    return STRINGS.index(b"\0" + text.encode() + b"\0") + 1


def record(*words: int) -> bytes:
    return struct.pack(f"={len(words)}I", *words)


TYPES = b"".join(
    [
        record(name("int"), kind(1), 4, 32),  # 1: int, with its encoding
        record(0, kind(2), 1),  # 2: int *
        record(0, kind(3), 0, 1, 1, 8),  # 3: int[8]
        record(0, kind(13, 1), 1, 0, 1),  # 4: int (int)
        record(name("ops"), kind(6, 1), 4, name("flags"), 7),  # 5: enum ops { flags = 7 }
        record(name("common"), kind(4, 1), 4, name("flags"), 1, 0),  # 6: struct common { int flags; }
        record(0, kind(5, 2), 4, name("state"), 1, 0, name("ops"), 2, 0),  # 7: union { int state; int *ops; }
        record(name("alias"), kind(8), 6),  # 8: typedef struct common alias
        record(0, kind(10), 8),  # 9: const alias
        # 10: struct sock { int flags : 3; const alias common at 8; union at 16; }, with widths in the offsets
        record(
            name("sock"), kind(4, 3, 1), 24, name("flags"), 1, 3 << 24, name("common"), 9, 8 * 8, 0, 7, 16 * 8
        ),
        record(name("flags"), kind(19, 1), 8, name("ops"), 1, 0),  # 11: a 64-bit enum
    ]
)  # fmt: skip


def described(types: bytes = TYPES) -> bytes:
    return struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(STRINGS)) + types + STRINGS


@pytest.mark.parametrize(
    ("path", "offset"), [("flags", 0), ("common", 8), ("common.flags", 8), ("state", 16), ("ops", 16)]
)
def test_offsets_through_wrappers_and_nameless_members(path, offset):
    assert KernelTypes(described()).offset("sock", path) == offset


@pytest.mark.parametrize(("structure", "path"), [("sock", "nothing"), ("nothing", "state"), ("sock", "state.flags")])
def test_what_is_not_there_is_named(structure, path):
    with pytest.raises(UnsupportedError, match=f"cannot find {path} in the kernel's struct {structure}"):
        KernelTypes(described()).offset(structure, path)


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF" + bytes(60), described()[:40], described(TYPES + record(0, kind(31), 0))]
)
def test_what_cannot_be_read_is_said(data):
    with pytest.raises(UnsupportedError, match="cannot read /sys/kernel/btf/vmlinux"):
        KernelTypes(data)


@pytest.mark.skipif(not VMLINUX.exists(), reason="this kernel has no BTF")
def test_the_running_kernel_describes_itself():
    assert KernelTypes().offset("sock", "__sk_common.skc_family") == 16
