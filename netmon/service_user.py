# SPDX-License-Identifier: Apache-2.0
"""The user that what was started as root becomes, and the files that are given to that user before."""

import contextlib
import os
import pwd
import re
import stat
from pathlib import Path
from typing import NamedTuple

from netmon.errors import DataError, UnsupportedError

NAMES = ("netmon", "nobody")
_OURS = re.compile(r".+\.spool(-wal|-shm|-journal)?|refused|.+\.batch")


class ServiceUser(NamedTuple):
    """Of the machine's users."""

    name: str
    uid: int
    gid: int


def service_user() -> ServiceUser | None:
    """The first of NAMES that there is; None: the caller is not root, and stays who it is. Raises UnsupportedError."""
    if os.geteuid() != 0:
        return None
    for name in NAMES:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            if found.pw_uid:
                return ServiceUser(name, found.pw_uid, found.pw_gid)
    raise UnsupportedError("cannot give up root: there is no user netmon and no user nobody; useradd --system netmon")


def give_folder(folder: Path, user: ServiceUser) -> None:
    """Makes the folder, and gives it to the user with what the agent has left there as root.

    A folder that is not root's alone stays as it is. Raises DataError where it holds anything else: it would be given
    away, too.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        index = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # whoever uses it says what is wrong
        return
    try:
        _give(index, folder, user)
    except OSError as error:
        raise DataError(f"cannot give {folder} to the user {user.name}: {error.strerror}") from error
    finally:
        os.close(index)


def _give(index: int, folder: Path, user: ServiceUser) -> None:
    """What is in a folder that only root may write to is what root has put there: nobody can exchange it meanwhile."""
    found = os.fstat(index)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    names = os.listdir(index)
    strangers = [name for name in names if not _OURS.fullmatch(name)]
    if strangers:
        raise DataError(f"cannot use {folder}: it holds {strangers[0]!r}; give a folder that is the agent's alone")
    for name in names:
        if name == "refused":
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=index)
            try:
                _give(inner, folder / name, user)
            finally:
                os.close(inner)
        else:
            os.chown(name, user.uid, user.gid, dir_fd=index, follow_symlinks=False)
    os.fchown(index, user.uid, user.gid)


def give_socket(path: Path) -> None:
    """A socket that root has made is the service user's, so that the other service can connect, and nobody else."""
    with contextlib.suppress(OSError, UnsupportedError):
        user = service_user()
        if user and stat.S_ISSOCK(path.lstat().st_mode):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)


def require_readable(folder: Path, names: tuple[str, ...], user: ServiceUser) -> None:
    """To be called as the user. Raises UnsupportedError where one of these files is there and not theirs to read."""
    for path in (folder / name for name in names):
        try:
            path.open("rb").close()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UnsupportedError(
                f"cannot read {path} as user {user.name}, which this agent is from now on: {error.strerror}; "
                f"chgrp -R {user.gid} {folder} and chmod 0750 {folder}, 0640 {path.name}"
            ) from None
