# SPDX-License-Identifier: Apache-2.0
"""The training libraries that a process has mapped, as the kernel tells: /proc/PID/maps, up to a limit."""

import errno
import os
import re
import stat
from dataclasses import dataclass, field

from netmon.errors import KernelError
from netmon.kernel.processes import PROC, read_bounded
from netmon.kernel.training.probes import is_training_library

_MOST_BYTES = 4 << 20  # of maps: a process with CUDA has thousands of lines of a hundred bytes
_MOST_LIBRARIES = 64  # of one process
_MOST_PARTS = 16  # of one library
_EXECUTABLE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) [0-9a-f]+:[0-9a-f]+ (\d+) +"
    rb"(/[^\n]*/(?:mpi_lib|libtorch_|libnccl)[^/\n]*\.so[^/\n]*)$",
    re.MULTILINE,
)


@dataclass
class MappedLibrary:
    """A file that is called like a training library, as one process maps it."""

    path: str  # as the process sees it
    inode: int
    parts: list[range] = field(default_factory=list)  # of the file, that the process may execute

    def executes(self, offset: int) -> bool:
        """Whether the code at this offset of the file is mapped as code."""
        return any(offset in part for part in self.parts)

    def open(self, pid: int) -> tuple[int, os.stat_result]:
        """A descriptor for reading, of the very file that is mapped, and what it is.

        Blocks as long as its file system does. Raises OSError, and KernelError with the reason.

        What stands at that path now may be something else, such as a pipe that nobody writes to or a device: it is
        looked at before it is opened.
        """
        # A process that called chroot maps it by a path of our own.
        for root in (f"{PROC}/{pid}/root", "/"):
            try:
                place = _open_place(root, self.path)
            except OSError:
                continue
            try:
                status = os.fstat(place)
                # File systems that lie over others (overlayfs, by which containers have their files) have no device,
                # and inodes other than those that are mapped.
                same = status.st_ino == self.inode or os.major(status.st_dev) == 0
                if not stat.S_ISREG(status.st_mode) or not same:
                    continue
                descriptor = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                return descriptor, status
            finally:
                os.close(place)
        raise KernelError("what stands at its path is not what is mapped")


def _open_place(root: str, path: str) -> int:
    """A descriptor of what stands at a path below a root, for no use but to look at it. Raises OSError.

    What the kernel tells of a mapping has no links in it. Whatever has become one since is not followed: in another
    process's root it would lead into ours.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, name = path.strip("/").split("/")
    for part, more in (*((folder, os.O_DIRECTORY) for folder in folders), (name, 0)):
        folder, place = place, -1
        try:
            if part == "..":
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            place = os.open(part, flags | more, dir_fd=folder)
        finally:
            os.close(folder)
    return place


def mapped_libraries(pid: int) -> dict[str, MappedLibrary]:
    """By path. Empty where the process is gone."""
    found: dict[str, MappedLibrary] = {}
    for line in _EXECUTABLE.finditer(read_bounded(PROC / str(pid) / "maps", _MOST_BYTES)):
        begin, end, offset, inode, name = line.groups()
        path = os.fsdecode(name)
        library = found.get(path)
        if library is None:
            if len(found) == _MOST_LIBRARIES:
                break
            if not is_training_library(path):
                continue
            library = found[path] = MappedLibrary(path, int(inode))
        if library.inode == int(inode) and len(library.parts) < _MOST_PARTS:
            length = int(end, 16) - int(begin, 16)
            library.parts.append(range(int(offset, 16), int(offset, 16) + length))
    return found
