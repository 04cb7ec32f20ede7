# SPDX-License-Identifier: Apache-2.0
"""What the agent gives away while it is root: its own spool, and nothing that anybody else has put there or may put."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netmon.errors import DataError, UnsupportedError
from netmon.kernel.privilege import SERVICE_CAPABILITIES
from netmon.service import ServiceUser, give_folder, require_readable, service_user

pytestmark = pytest.mark.kernel
USER = ServiceUser("somebody", 54321, 54322)


def owners(folder: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def test_root_becomes_another_user() -> None:
    user = service_user()
    assert user
    assert user.uid > 0
    assert user.gid > 0
    assert len(SERVICE_CAPABILITIES) == 6


def test_another_user_goes_on_importing_from_a_folder_that_is_the_owners_alone(tmp_path: Path) -> None:
    """As below the superuser's home folder: libraries import parts of themselves when these are first used."""
    (home := tmp_path / "home").mkdir(mode=0o700)
    (package := home / "checkout" / "library").mkdir(parents=True)
    for name in ("__init__", "part", "late"):
        (package / f"{name}.py").touch()
    script = """if True:
        import os, sys
        import library.part
        from netmon.own_module import keep_importable
        if sys.argv[1] == "kept":
            keep_importable()
        os.setresuid(65534, 65534, 65534)
        import library.late
        """

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        folders = os.pathsep.join([str(package.parent), *sys.path])
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(
            command, env=os.environ | {"PYTHONPATH": folders}, cwd="/", capture_output=True, text=True, check=False
        )

    assert "No module named 'library.late'" in run("not").stderr
    assert run("kept").returncode == 0, run("kept").stderr


def test_a_new_folder_and_what_an_agent_left_there_as_root_are_given(tmp_path: Path) -> None:
    spool = tmp_path / "more" / "spool"
    give_folder(spool, USER)
    assert owners(spool) == {"spool": USER.uid}
    assert spool.stat().st_mode & 0o777 == 0o700
    os.chown(spool, 0, 0)
    (spool / "refused").mkdir()
    for name in ("one.spool", "one.spool-wal", "refused/one-3.batch"):
        (spool / name).touch()
    give_folder(spool, USER)
    assert set(owners(spool).values()) == {USER.uid}
    assert (tmp_path / "more").stat().st_uid == 0


@pytest.mark.parametrize("stranger", ["id_rsa", "refused/id_rsa", ".spool"])
def test_a_folder_with_anything_else_is_refused(tmp_path: Path, stranger: str) -> None:
    path = tmp_path / "folder" / stranger
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(DataError, match=r"it holds '.*'; give a folder that is the agent's alone"):
        give_folder(tmp_path / "folder", USER)
    assert set(owners(tmp_path / "folder").values()) == {0}


def test_a_link_is_given_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    (folder := tmp_path / "folder").mkdir()
    (folder / "one.spool").symlink_to(tmp_path / "secret")
    give_folder(folder, USER)
    assert (tmp_path / "secret").stat().st_uid == 0


def test_where_others_may_write_nothing_is_given(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    folder.chmod(0o777)
    (folder / "one.spool").touch()
    give_folder(folder, USER)
    assert set(owners(folder).values()) == {0}


def test_a_key_that_the_user_cannot_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").touch()
    require_readable(tmp_path, ("tls.crt", "tls.key"), USER)
    (tmp_path / "tls.key").mkdir()  # whoever tests this may read everything else
    with pytest.raises(UnsupportedError, match=r"cannot read .*tls.key as user somebody.*chgrp -R 54322"):
        require_readable(tmp_path, ("tls.crt", "tls.key"), USER)
