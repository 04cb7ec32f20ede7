# SPDX-License-Identifier: Apache-2.0
"""Functions of a real library, found as the dynamic linker finds them; and files that only look like one."""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.errors import KernelError
from netmon.kernel.training.symbols import LOCAL, Offsets, Reading, SlowError, function_offsets
from netmon.kernel.training.uprobes import MappedLibrary, Uprobes, _PendingFile, _Watched

TABLES = 64 + 3 * 64  # bytes of the header and of three sections


def mapped_libc() -> str:
    """Path of the C library of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(("libc.so.6", "libc-2.31.so")):
            return line.split()[-1]
    pytest.skip("no C library of GNU's is mapped")


def read(path: str | Path, *prefixes: str) -> Offsets:
    """As the agent has it read: by a child without privilege."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return Reading(descriptor, prefixes).result()
    finally:
        os.close(descriptor)


def test_offsets_are_where_the_linker_put_the_functions() -> None:
    path = mapped_libc()
    libc = ctypes.CDLL(None)
    found = read(path, "getpid", "no_such_function")
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert found["no_such_function"] == {}
    code = Path(path).read_bytes()
    assert any(code[offset : offset + 16] == ctypes.string_at(address, 16) for offset in found["getpid"])
    assert set(found["getpid"].values()) == {"getpid"}


def test_a_function_that_is_not_exported_is_found_until_its_name_is_stripped(tmp_path: Path) -> None:
    if not (compiler := shutil.which("gcc")):
        pytest.skip("there is no compiler")
    own = "static __attribute__((noinline)) int own_one(int a) { return a * a; }"
    (tmp_path / "it.c").write_text(f"{own}\nint shown(int a) {{ return own_one(a) + 1; }}\n")
    library = tmp_path / "it.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "it.c"], check=True)
    found = read(library, f"{LOCAL}own_", "own_", "shown")
    assert list(found[f"{LOCAL}own_"].values()) == ["own_one"]
    assert found["own_"] == {}
    assert set(found["shown"].values()) == {"shown"}
    subprocess.run(["strip", library], check=True)
    assert read(library, f"{LOCAL}own_", "shown") == {f"{LOCAL}own_": {}, "shown": found["shown"]}


def test_a_library_costs_what_the_child_ran_for_however_long_a_busy_machine_kept_it() -> None:
    descriptor = os.open(mapped_libc(), os.O_RDONLY)
    reading = Reading(descriptor, ["getpid"])
    time.sleep(3.0)
    reading.result()
    assert 0 < reading.cost_ns < 1_500_000_000
    silent = Reading(descriptor, ["getpid"])
    os.kill(silent._child.pid, signal.SIGSTOP)
    silent._until = time.monotonic() + 0.2
    with pytest.raises(KernelError, match="too long"):
        silent.result()
    assert silent.cost_ns >= 200_000_000
    os.close(descriptor)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(KernelError, match="that is no library"):
        read(tmp_path / "text.so", "f")


def library(symbols: bytes, names: bytes, names_bytes: int = 0) -> bytes:
    """An ELF file of these two tables, whose strings may be said to be longer than they are."""
    header = struct.pack("<4sBBB9x8xQQQ4xHHHHHH", b"\x7fELF", 2, 1, 1, 0, TABLES, 64, 64, 56, 1, 64, 3, 0)
    at = TABLES + 56
    sections = bytes(64)
    sections += struct.pack("<4xI8xQQQII8xQ", 11, 0, at, len(symbols), 2, 0, 24)
    sections += struct.pack("<4xI8xQQQII8xQ", 3, 0, at + len(symbols), names_bytes or len(names), 0, 0, 0)
    segment = struct.pack("<IIQQ8xQ16x", 1, 5, 0, 0, 1 << 20)
    return header + sections + segment + symbols + names


def symbol(name: int, value: int) -> bytes:
    return struct.pack("<IBBHQQ", name, 0, 0, 1, value, 8)


def test_a_made_up_library_is_read(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(library(symbol(1, 4096), b"\0wanted\0"))
    assert read(tmp_path / "lib.so", "wanted") == {"wanted": {4096: "wanted"}}


@pytest.mark.parametrize(
    "content",
    [
        library(symbol(1, 4096), b"\0wanted"),  # the name does not end
        library(symbol(1, 4096), b"\0wanted\xff\xfe\0"),  # it is not UTF-8
        library(symbol(1, 1 << 40), b"\0wanted\0"),  # it lies in no segment
        library(symbol(900, 0), b"\0wanted\0"),  # it has no name
        library(symbol(1, 4096) * 1000, b"\0wanted\0"),  # a thousand times
        library(symbol(1, 4096)[:-1], b"\0wanted\0"),  # half a symbol
        library(symbol(1, 4096), b"\0wanted\0", names_bytes=1 << 62),
        library(symbol(1, 4096), b"\0wanted\0")[:100],
        b"\x7fELF" + bytes(60),
    ],
)
def test_damaged_libraries_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lib.so").write_bytes(content)
    try:
        found = read(tmp_path / "lib.so", "wanted")
    except KernelError:
        return
    assert all(0 <= offset < 1 << 20 for offset in found["wanted"])


def test_strings_of_4_gb_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "lib.so").open("wb") as file:
        file.write(library(symbol(1, 4096), b"\0wanted\0", names_bytes=4 << 30))
        file.truncate(8 << 30)
    with pytest.raises(KernelError, match="that is no library"):
        read(tmp_path / "lib.so", "wanted")


@given(st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=9)), max_size=8))
def test_any_damage_is_survived(changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(library(symbol(1, 4096), b"\0wanted\0"))
    for place, what in changes:
        content[place : place + len(what)] = what
    descriptor = os.memfd_create("lib.so")
    try:
        os.write(descriptor, content)
        function_offsets(descriptor, ["wanted"])
    except (ValueError, struct.error, OSError, OverflowError):
        return  # as `main` catches them
    finally:
        os.close(descriptor)


def test_what_was_not_read_in_time_is_tried_again_but_not_for_ever() -> None:
    def read_slowly() -> None:
        raise SlowError("it takes too long")

    probes, version = Uprobes({}, ()), (1, 2, 3, 4)
    process = probes._processes[1] = _Watched(0, 0.0, libraries={"libtorch_cpu.so": True})
    library = MappedLibrary("libtorch_cpu.so", 2, [])
    tries = 0
    while version not in probes._refused:
        assert "libtorch_cpu.so" not in process.settled
        wanted = _PendingFile(1, 0, library, version, os.open(os.devnull, os.O_RDONLY))
        assert probes._finish((1, 2), wanted, SimpleNamespace(result=read_slowly, cost_ns=0)) == []  # type: ignore[arg-type]
        tries += 1
    assert tries == 5
    assert process.settled == {"libtorch_cpu.so": None}
    assert len(probes.warnings()) == 5


def test_that_a_library_has_to_wait_for_others_of_its_user_is_said_once() -> None:
    probes, library = Uprobes({}, ()), MappedLibrary("/usr/lib/libcudart.so.12", 2, [])
    probes.spend(0, 60_000_000_000)
    for _ in range(3):
        probes._pending[1, 2] = _PendingFile(1, 0, library, (1, 2, 3, 4), os.open(os.devnull, os.O_RDONLY))
        assert probes._read_and_attach() == []
    (said,) = probes.warnings()
    of_library, of_user = "cannot probe /usr/lib/libcudart.so.12", "its user's libraries took long to be read"
    assert said == f"{of_library}: {of_user}; it is read later"
