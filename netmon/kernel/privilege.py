# SPDX-License-Identifier: Apache-2.0
"""Capabilities: having them at the start, and giving them up."""

import ctypes
import os
import resource
import signal
import struct
from pathlib import Path

from netmon.errors import KernelError, UnsupportedError

_SYS_ADMIN = 21
_NEEDED = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
_VERSION_3 = 0x20080522
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_DESCRIPTORS = 16_384


def effective_capabilities(pid: str = "self") -> int:
    """The effective set of a process as a bit mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16)


def missing_capabilities() -> list[str]:
    """What this process lacks to load, attach and probe; CAP_SYS_ADMIN stands for all of it."""
    held = effective_capabilities()
    if held >> _SYS_ADMIN & 1:
        return []
    return [name for name, bit in _NEEDED.items() if not held >> bit & 1]


def require_capabilities() -> None:
    """Raises UnsupportedError naming what is missing."""
    if missing := missing_capabilities():
        raise UnsupportedError(
            f"cannot load BPF programs without {', '.join(missing)}: run as root, or as a systemd unit"
        )


def drop_capabilities() -> None:
    """Empties the permitted, effective and inheritable sets of this process, and bars it from getting them back.

    To be called before other threads are started. Raises KernelError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("<Ii", _VERSION_3, 0)
    nothing = bytes(24)
    if libc.capset(header, nothing) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise KernelError(f"cannot drop capabilities: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """This process is killed when the one that has started it ends, however that ends. parent: its pid."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before we could say so
        os.kill(os.getpid(), signal.SIGKILL)


def allow_descriptors() -> None:
    """As many open files as this process may have at all, up to a number that is enough for everything."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_DESCRIPTORS, most) if most != resource.RLIM_INFINITY else _DESCRIPTORS
    if now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
