# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on the disk, so that a start needs no compiler."""

import base64
import contextlib
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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


# --- Compiled programs on the disk, so that a start needs no compiler.
#
# Who can write here decides what is loaded with our capabilities. So nothing is believed that anybody but root could
# have written, and whoever is not root only reads: an agent that has been broken into leaves nothing for its next
# start.

FOLDER = Path("/var/cache/netmon/bpf")
_MOST_FILES = 32
_MOST_BYTES = 8 << 20  # of a file; they have a few hundred kilobytes
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    return Path(os.environ.get("NETMON_CACHE") or FOLDER)


def read_image(folder: Path, key: str, owner: int = 0) -> Image | None:
    """What was kept under the key, if it is there, whole, and nobody but `owner` (a uid) can have written it."""
    try:
        with _opened(folder, owner) as directory, open(_open(key, directory, owner), "rb") as file:
            with contextlib.suppress(OSError):
                os.utime(file.fileno())  # what is used stays
            return decode(file.read(_MOST_BYTES + 1))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("compiling the BPF programs anew: what is kept in %s is not used: %s", folder, error)
        return None


def keep_image(folder: Path, key: str) -> None:
    """It stays as long as what is used, though it is not read now."""
    with contextlib.suppress(OSError):
        os.utime(folder / key, follow_symlinks=False)


def write_image(folder: Path, key: str, image: Image, owner: int = 0) -> None:
    """Keeps it under the key, and drops what has not been used for longest. Only `owner` writes; others do nothing.

    Raises OSError.
    """
    if os.geteuid() != owner:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opened(folder, owner) as directory:
        unfinished = f".{key}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(unfinished, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(image.encode())
        os.rename(unfinished, key, src_dir_fd=directory, dst_dir_fd=directory)
        _bound(directory)


@contextlib.contextmanager
def _opened(folder: Path, owner: int) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require_trust(os.fstat(descriptor), owner)
        yield descriptor
    finally:
        os.close(descriptor)


def _open(key: str, directory: int, owner: int) -> int:
    descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(descriptor)
        _require_trust(found, owner)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise PermissionError(f"{key[:12]}… is no file of ours")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_trust(found: os.stat_result, owner: int) -> None:
    if found.st_uid != owner:
        raise PermissionError(f"it belongs to uid {found.st_uid}, not to {owner}")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError("others than its owner may write there")


def _bound(directory: int) -> None:
    """The newest stay, and of what was never finished nothing that another process is not writing just now."""
    names = os.listdir(directory)
    used = sorted((os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime, name) for name in names)
    for _, name in used[:-_MOST_FILES]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
