# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on the disk, so that a start needs no compiler.

Who can write here decides what is loaded with our capabilities. So nothing is believed that anybody but root could have
written, and whoever is not root only reads: an agent that has been broken into leaves nothing for its next start.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from netmon.kernel.program_image import Image, decode

FOLDER = Path("/var/cache/netmon/bpf")
_MOST_FILES = 32
_MOST_BYTES = 8 << 20  # of a file; they have a few hundred kilobytes
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """$NETMON_CACHE, or the usual one."""
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
