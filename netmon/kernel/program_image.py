# SPDX-License-Identifier: Apache-2.0
"""Compiled BPF programs and the maps they name, apart from any descriptor: what can be kept and loaded again.

The instructions are the compiler's; where one names a map there stands the map's place in the image, not the
descriptor that it had when they were compiled. So they are the same at every compilation, and need no compiler to be
loaded.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from netmon.errors import KernelError
from netmon.kernel import bpf_calls
from netmon.kernel.bpf_calls import MapShape

INSTRUCTION = np.dtype([("code", "u1"), ("registers", "u1"), ("offset", "<i2"), ("immediate", "<i4")])
_LOAD_64 = 0x18  # BPF_LD | BPF_DW | BPF_IMM
_BY_DESCRIPTOR = 1  # BPF_PSEUDO_MAP_FD, in the upper half of `registers`
_SUM_BYTES = 64


@dataclass(frozen=True)
class Program:
    """instructions: as the kernel takes them; kind: bpf_calls.PROGRAM_…; flags: of BPF_PROG_LOAD."""

    name: str
    kind: int
    flags: int
    license: str
    instructions: bytes


@dataclass(frozen=True)
class Image:
    """maps: in the order in which the instructions name them; named: those that user space opens, by their indices."""

    maps: tuple[MapShape, ...]
    named: Mapping[str, int]
    programs: tuple[Program, ...]

    def load(self) -> dict[str, int]:
        """Makes the maps and loads the programs: descriptors by name, of programs and of named maps, the caller's to
        close.

        Raises OSError with what the kernel refuses; nothing is left open then.
        """
        opened: list[int] = []
        try:
            for shape in self.maps:
                opened.append(bpf_calls.map_create(shape))
            maps = np.array(opened, np.int32)
            for program in self.programs:
                opened.append(_load(program, maps))
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        kept = {name: opened[index] for name, index in self.named.items()}
        for index in set(range(len(self.maps))) - set(self.named.values()):
            os.close(opened[index])  # the programs hold theirs
        return kept | dict(zip((program.name for program in self.programs), opened[len(self.maps) :], strict=True))

    def encode(self) -> bytes:
        """A line with the checksum of what follows, and JSON."""
        programs = [
            asdict(program) | {"instructions": base64.b64encode(program.instructions).decode()}
            for program in self.programs
        ]
        document = {"maps": [asdict(shape) for shape in self.maps], "named": dict(self.named), "programs": programs}
        body = json.dumps(document).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(encoded: bytes) -> Image:
    """Raises ValueError for anything that `encode` has not written."""
    checksum, body = encoded[:_SUM_BYTES], encoded[_SUM_BYTES + 1 :]
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise ValueError("its checksum is not that of its content")
    try:
        document = json.loads(body)
        programs = tuple(
            Program(**program | {"instructions": base64.b64decode(program["instructions"], validate=True)})
            for program in document["programs"]
        )
        return Image(tuple(MapShape(**shape) for shape in document["maps"]), document["named"], programs)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is of another version ({error})") from error


def image_of(programs: Iterable[Program], named: Mapping[str, int]) -> Image:
    """programs: with descriptors in their instructions, as they were loaded; named: descriptors of maps that user space
    opens. Raises KernelError for an instruction that is not understood, OSError where the kernel does not describe a
    map.
    """
    programs = tuple(programs)
    used = [_instructions(program)["immediate"][_references(program)] for program in programs]
    descriptors = sorted({*named.values(), *(int(one) for each in used for one in each)})
    indices = np.array(descriptors, np.int32)
    moved = []
    for program in programs:
        instructions = _instructions(program)
        at = _references(program)
        instructions["immediate"][at] = np.searchsorted(indices, instructions["immediate"][at])
        moved.append(Program(program.name, program.kind, program.flags, program.license, instructions.tobytes()))
    shapes = tuple(bpf_calls.map_shape(descriptor) for descriptor in descriptors)
    return Image(shapes, {name: descriptors.index(one) for name, one in named.items()}, tuple(moved))


def _load(program: Program, maps: npt.NDArray[np.int32]) -> int:
    instructions = _instructions(program)
    at = _references(program)
    instructions["immediate"][at] = maps[instructions["immediate"][at]]
    address, count = instructions.ctypes.data, len(instructions)
    name = program.name[:15]
    return bpf_calls.program_load(program.kind, name, program.license.encode(), address, count, program.flags)


def _instructions(program: Program) -> npt.NDArray[np.void]:
    return np.frombuffer(program.instructions, INSTRUCTION).copy()


def _references(program: Program) -> npt.NDArray[np.bool_]:
    """Which instructions name a map. Raises KernelError where they name something that is not one."""
    instructions = np.frombuffer(program.instructions, INSTRUCTION)
    loads = instructions["code"] == _LOAD_64
    what = instructions["registers"] >> 4
    if (what[loads] > _BY_DESCRIPTOR).any():
        raise KernelError(f"cannot keep the program {program.name}: it refers to more than maps")
    references: npt.NDArray[np.bool_] = loads & (what == _BY_DESCRIPTOR)
    return references
