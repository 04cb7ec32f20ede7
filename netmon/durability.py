# SPDX-License-Identifier: Apache-2.0
"""What is to be outlived by what was acknowledged, and how the names of files outlive a cut of power."""

import errno
import os
from pathlib import Path

DURABILITIES = ("process", "power")
""""process": the end of the process, SIGKILL included; "power": the end of the machine as well."""

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOTSUP)
"""A folder above that may not be read, or not be synced, is not where we have made something."""


def sync_directory(path: Path) -> None:
    """Make the names in a directory outlive a power cut; blocks for the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_way_to(directory: Path) -> None:
    """Make the names of a directory, and of those above it, outlive a power cut; blocks for the disk.

    Whoever has made them may have been killed before they were synced. Raises OSError.
    """
    for above in directory.resolve().parents:
        try:
            sync_directory(above)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
