# SPDX-License-Identifier: Apache-2.0
"""Users and capabilities: having what is needed at the start, and giving up the rest.

Whoever starts the agent, its two parts end as under its systemd unit: as a user that is not root, the one with the
unit's six capabilities, the other with none, both without a way to get more.
"""

import ctypes
import errno
import os
import signal
import struct
from pathlib import Path

from netmon.errors import KernelError, UnsupportedError
from netmon.kernel.bpf_calls import has_uprobe_links
from netmon.service import ServiceUser

SERVICE_CAPABILITIES = {
    **{"CAP_DAC_READ_SEARCH": 2, "CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19},
    **{"CAP_SYS_RESOURCE": 24, "CAP_PERFMON": 38, "CAP_BPF": 39},
}
"""Of the part that loads, attaches and looks up: those of systemd/netmon-agent.service, which says what for."""

_SYS_ADMIN = 21

ROOT_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_SETGID": 6, "CAP_SETUID": 7}
"""With these, what was started as root becomes another user; both parts give them up."""

_NEEDED = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 2, 4, 8
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 38, 47
_AMBIENT_RAISE = 2


def effective_capabilities(pid: str = "self") -> int:
    """The effective set of a process as a bit mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16)


def missing_capabilities() -> list[str]:
    """What this process lacks to load, attach and probe; CAP_SYS_ADMIN stands for all of it."""
    effective = effective_capabilities()
    needed = {} if effective >> _SYS_ADMIN & 1 else _NEEDED
    needed = needed | (ROOT_CAPABILITIES if os.geteuid() == 0 else {})
    return [name for name, bit in needed.items() if not effective >> bit & 1]


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
    _set_capabilities(0)
    _bar()


def become_unprivileged(user: ServiceUser | None) -> None:
    """For good, in all threads; None: this user. To be called before other threads are started. Raises KernelError."""
    if user:
        _become(user)
    drop_capabilities()


def become_service(user: ServiceUser | None) -> None:
    """The same, but SERVICE_CAPABILITIES stay, as far as they are there; what is executed has them, too.

    CAP_SYS_ADMIN stays where whoever is not root was started with it, and where there are no links of uprobes (before
    Linux 6.6): some kernels let nobody else attach them.
    """
    kept = sum(1 << bit for bit in SERVICE_CAPABILITIES.values())
    if user is None or not has_uprobe_links():
        kept |= 1 << _SYS_ADMIN
    kept &= effective_capabilities()
    libc = ctypes.CDLL(None, use_errno=True)
    for bit in range(_LAST_CAPABILITY + 1):  # the kernel refuses those that it does not know, and all to who may not
        if not kept >> bit & 1:
            libc.prctl(_PR_CAPBSET_DROP, bit, 0, 0, 0)
    if user:
        _call(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
        _become(user)
    _set_capabilities(kept)
    for bit in range(_LAST_CAPABILITY + 1):
        if kept >> bit & 1:
            _call(libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, bit, 0, 0))
    _bar()


def _become(user: ServiceUser) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    dies_with_parent = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(dies_with_parent), 0, 0, 0)
    try:
        os.initgroups(user.name, user.gid)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        raise KernelError(f"cannot become user {user.name}: {error.strerror}") from error
    libc.prctl(_PR_SET_PDEATHSIG, dies_with_parent.value, 0, 0, 0)  # which a change of user has cleared


def _set_capabilities(kept: int) -> None:
    """The permitted, effective and inheritable sets; the ambient one loses what is not inheritable."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [word for word in (kept & 0xFFFFFFFF, kept >> 32) for _ in range(3)]
    _call(libc.capset(struct.pack("<Ii", _VERSION_3, 0), struct.pack("<6I", *words)))


def _bar() -> None:
    """Nothing that is executed has more, and nobody of the same user looks into this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def _call(result: int) -> None:
    if result:
        raise KernelError(f"cannot drop capabilities: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """This process is killed when the one that has started it ends, however that ends. parent: its pid."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before we could say so
        os.kill(os.getpid(), signal.SIGKILL)


# --- Why the kernel says no to somebody who has the capabilities, as far as it can be seen, and what to do.

PROC, SYS = Path("/proc"), Path("/sys")
_LOCKDOWN = (
    "at confidentiality, programs cannot read kernel memory; boot with lockdown=integrity or without Secure Boot"
)
_ALL_USERS = "4294967295"  # length of the map of user ids outside of any user namespace


def because(error: OSError) -> str:
    """What to add to an error line: the likely causes of EPERM or EACCES, each with what to do; else nothing."""
    if error.errno not in (errno.EPERM, errno.EACCES):
        return ""
    return "; " + ("; ".join(likely_causes()) or "look into the kernel's log (dmesg) and the audit log for who refuses")


def likely_causes() -> list[str]:
    """What on this machine may refuse bpf(2) or an attachment to this process, the likeliest first."""
    causes = []
    if missing := missing_capabilities():
        causes.append(f"this process lacks {', '.join(missing)}: run as root, or add them to the container or unit")
    if _status("Seccomp") not in ("", "0"):
        causes.append("a seccomp filter is in force: let the container's profile pass bpf and perf_event_open")
    if _in_user_namespace():
        causes.append("this is a user namespace, where capabilities do not reach BPF: run outside of it")
    if (level := _lockdown()) not in ("", "none"):
        causes.append(f"kernel lockdown is at {level} (/sys/kernel/security/lockdown): {_LOCKDOWN}")
    if _read(SYS / "fs/selinux/enforce") == "1":
        causes.append("SELinux is enforcing: ausearch -m avc -ts recent names what it denied, audit2allow -M allows it")
    if (profile := _apparmor()) not in ("", "unconfined"):
        causes.append(f"AppArmor confines this process by {profile}: dmesg names what it denied")
    return causes


def _status(field: str) -> str:
    """A field of /proc/self/status; empty where there is none."""
    rest = _read(PROC / "self/status").partition(f"\n{field}:")[2].split()
    return rest[0] if rest else ""


def _lockdown() -> str:
    """`none [integrity] confidentiality` → integrity; empty where the kernel has none, or hides it."""
    return _read(SYS / "kernel/security/lockdown").partition("[")[2].partition("]")[0]


def _in_user_namespace() -> bool:
    fields = _read(PROC / "self/uid_map").split()
    return bool(fields) and fields[-1] != _ALL_USERS


def _apparmor() -> str:
    return _read(PROC / "self/attr/apparmor/current").removesuffix(" (enforce)")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip("\0\n ")
    except OSError:
        return ""
