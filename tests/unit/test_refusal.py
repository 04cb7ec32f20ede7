# SPDX-License-Identifier: Apache-2.0
"""What may have refused a call, from the files in which the kernel says it."""

import errno
from pathlib import Path

import pytest

from netmon.kernel import privilege

QUIET = {
    "proc/self/status": "Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n",
    "proc/self/uid_map": "         0          0 4294967295\n",
    "sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
    "sys/fs/selinux/enforce": "0",
    "proc/self/attr/apparmor/current": "unconfined\n",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that makes a machine of these files."""
    monkeypatch.setattr(privilege, "PROC", tmp_path / "proc")
    monkeypatch.setattr(privilege, "SYS", tmp_path / "sys")
    monkeypatch.setattr(privilege, "missing_capabilities", list)

    def make(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return make


@pytest.mark.parametrize(
    ("file", "text", "cause"),
    [
        ("proc/self/status", "Name:\tx\nSeccomp:\t2\n", "a seccomp filter is in force"),
        ("proc/self/uid_map", "0 1000 1\n", "this is a user namespace"),
        ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n", "kernel lockdown is at confidentiality"),
        ("sys/fs/selinux/enforce", "1", "SELinux is enforcing: ausearch"),
        ("proc/self/attr/apparmor/current", "docker-default (enforce)\n", "AppArmor confines this process by docker-"),
    ],
)
def test_each_cause_is_named_alone(machine, file, text, cause):
    machine(QUIET | {file: text})
    (found,) = privilege.likely_causes()
    assert found.startswith(cause)
    line = privilege.because(PermissionError(errno.EPERM, "Operation not permitted"))
    assert line == f"; {found}"


@pytest.mark.parametrize("files", [QUIET, {}])
def test_where_nothing_is_seen_it_says_where_to_look(machine, files):
    machine(files)
    assert privilege.because(PermissionError(errno.EACCES, "")).startswith("; look into the kernel's log (dmesg)")
    assert privilege.because(OSError(errno.EINVAL, "")) == ""
