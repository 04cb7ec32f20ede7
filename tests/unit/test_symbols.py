# SPDX-License-Identifier: Apache-2.0
"""Functions of a real library, found as the dynamic linker finds them."""

import ctypes
from pathlib import Path

import pytest

from netmon.errors import KernelError
from netmon.kernel.training.symbols import function_offsets


def mapped_libc() -> str:
    """Path of the C library of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(("libc.so.6", "libc-2.31.so")):
            return line.split()[-1]
    pytest.skip("no C library of GNU's is mapped")


def test_offsets_are_where_the_linker_put_the_functions() -> None:
    path = mapped_libc()
    libc = ctypes.CDLL(None)
    found = function_offsets(path, ["getpid", "no_such_function"])
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert found["no_such_function"] == {}
    code = Path(path).read_bytes()
    assert any(code[offset : offset + 16] == ctypes.string_at(address, 16) for offset in found["getpid"])
    assert set(found["getpid"].values()) == {"getpid"}


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(KernelError, match="cannot probe"):
        function_offsets(str(tmp_path / "text.so"), ["f"])
