# SPDX-License-Identifier: Apache-2.0
"""A file system that is another folder's, as a network file system is a server's: python remote_disk.py FOLDER MOUNT.

Stopped (SIGSTOP) it answers nobody, as a server that is gone; while FOLDER.fails exists everything fails with the error
number in it: ESTALE, as after a server that has forgotten its clients.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import mfusepy


def unless_it_fails(operation: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operation)
    def work(self: "RemoteDisk", *args: Any) -> Any:
        if os.path.exists(f"{self.folder}.fails"):
            with open(f"{self.folder}.fails") as file:
                raise mfusepy.FuseOSError(int(file.read()))
        return operation(self, *args)

    return work


class RemoteDisk(mfusepy.Operations):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    use_ns = True

    def _of(self, path: str) -> str:
        return self.folder + path

    @unless_it_fails
    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._of(path))
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")
        times = {name: getattr(found, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        return {name: getattr(found, name) for name in names} | times

    @unless_it_fails
    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._of(path))]

    @unless_it_fails
    def mkdir(self, path: str, mode: int) -> int:
        return done(os.mkdir, self._of(path), mode)

    @unless_it_fails
    def rmdir(self, path: str) -> int:
        return done(os.rmdir, self._of(path))

    @unless_it_fails
    def unlink(self, path: str) -> int:
        return done(os.unlink, self._of(path))

    @unless_it_fails
    def rename(self, old: str, new: str) -> int:
        return done(os.rename, self._of(old), self._of(new))

    @unless_it_fails
    def open(self, path: str, flags: int) -> int:
        return os.open(self._of(path), flags)

    @unless_it_fails
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._of(path), os.O_RDWR | os.O_CREAT, mode)

    @unless_it_fails
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    @unless_it_fails
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    @unless_it_fails
    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return done(os.truncate, self._of(path), length)

    @unless_it_fails
    def fsync(self, path: str, datasync: int, fh: int) -> int:
        return done(os.fsync, fh)

    @unless_it_fails
    def release(self, path: str, fh: int) -> int:
        return done(os.close, fh)

    @unless_it_fails
    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.folder)
        return {name: getattr(found, name) for name in ("f_bsize", "f_blocks", "f_bfree", "f_bavail", "f_namemax")}


def done(function: Callable[..., object], *args: Any) -> int:
    function(*args)
    return 0


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # it ends with whoever has started it
    options = {"foreground": True, "nothreads": True, "default_permissions": True, "direct_io": True}
    mfusepy.FUSE(RemoteDisk(sys.argv[1]), sys.argv[2], **options)
