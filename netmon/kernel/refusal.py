# SPDX-License-Identifier: Apache-2.0
"""Why the kernel says no to somebody who has the capabilities, as far as it can be seen, and what to do."""

import errno
from pathlib import Path

from netmon.kernel.privilege import missing_capabilities

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
