# SPDX-License-Identifier: Apache-2.0
"""What users are called."""

import os
import pwd
from pathlib import Path

import pytest
from waiting import wait_for

from netmon.agent.flow_owners import UserNames


def passwords(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_names_stand_in_the_file_and_are_cleaned(tmp_path: Path) -> None:
    file = passwords(tmp_path / "passwd", "alice:x:1000:1000::/:/bin/sh", "second:x:1000:1::/:", "b\u202eb:x:7:7::/:")
    names = UserNames(file)
    assert names.name(1000) == "alice"
    assert names.name(7) == "b\ufffdb"


@pytest.mark.parametrize("line", ["", "alice", "alice:x", ":x:1000:", "alice:x:one:1:", "\x00" * 100])
def test_lines_that_are_none_name_nobody(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert UserNames(passwords(tmp_path / "passwd", line)).name(1000) == "1000"
    assert UserNames(tmp_path / "nothing").name(1000) == "1000"


def test_a_user_that_is_added_is_known_by_the_next_number(tmp_path: Path) -> None:
    names = UserNames(passwords(tmp_path / "passwd", "alice:x:1000:1:::"))
    assert names.name(1000) == "alice"
    passwords(tmp_path / "passwd", "alice:x:1000:1:::", "bob:x:1001:1:::")
    assert names.name(1001) == "bob"


def test_a_directory_service_is_asked_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.struct_passwd(("ldap\u0007user", "x", 70_000, 1, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {70_000: entry}[uid])
    names = UserNames(passwords(tmp_path / "passwd", "root:x:0:0:::"))
    assert names.name(70_001) == "70001"  # nobody
    assert names.name(70_000) == "70000"
    found: dict[str, str] = {}
    wait_for(lambda: found.update(names.learnt()) or found)
    assert found == {"70000": "ldap\ufffduser"}
    assert names.name(70_000) == "ldap\ufffduser"


def test_this_machines_root_is_root() -> None:
    assert UserNames().name(0) == "root"
    assert UserNames().name(os.getuid())
