# SPDX-License-Identifier: Apache-2.0
"""Where a library's exported functions lie in its file, found without walking its symbols one by one.

libtorch_cpu.so exports tens of thousands of symbols in half a gigabyte: only its string and symbol tables are read,
the first searched as bytes, the second as an array.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import Segment

from netmon.errors import KernelError

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
"""Elf64_Sym, little-endian: what x86-64 and aarch64 have."""


def function_offsets(path: str, prefixes: Sequence[str]) -> dict[str, dict[int, str]]:
    """The functions in .dynsym (which survives strip) whose mangled names begin with each prefix: file offset → name.

    Reads a few megabytes. Raises OSError, and KernelError for a file that is not such a library.
    """
    with open(path, "rb") as file:
        try:
            elf = ELFFile(file)
            table, names = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".dynstr")
            if not (table and names and elf.elfclass == 64 and elf.little_endian):
                return {prefix: {} for prefix in prefixes}
            symbols = np.frombuffer(table.data(), _SYMBOL)
            text = names.data()
            segments = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        except ELFError as error:
            raise KernelError(f"cannot probe {path}: {error}") from error
    symbols = symbols[symbols["section"] != 0]  # defined here, not asked of another library
    return {prefix: _offsets(symbols, text, prefix, segments) for prefix in prefixes}


def _offsets(symbols: "np.ndarray[Any, Any]", text: bytes, prefix: str, segments: Iterable[Segment]) -> dict[int, str]:
    found = np.isin(symbols["name"], _places(text, prefix.encode())) & (symbols["size"] > 0)
    functions = zip(symbols["value"][found].tolist(), symbols["name"][found].tolist(), strict=True)
    return {_file_offset(segments, value): text[name : text.index(b"\0", name)].decode() for value, name in functions}


def _places(text: bytes, wanted: bytes) -> list[int]:
    """Where `wanted` stands in the string table. A name may begin within another one, of which it is the end."""
    places, at = [], text.find(wanted)
    while at >= 0:
        places.append(at)
        at = text.find(wanted, at + 1)
    return places


def _file_offset(segments: Iterable[Segment], address: int) -> int:
    for segment in segments:
        if 0 <= address - segment["p_vaddr"] < segment["p_filesz"]:
            return int(address - segment["p_vaddr"] + segment["p_offset"])
    raise KernelError(f"cannot probe the function at {address:#x}: no segment of its library holds it")
