# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from pathlib import Path

from netmon.own_module import own_module


def test_nothing_is_imported_from_where_the_user_stands(tmp_path: Path, monkeypatch):
    (tmp_path / "json.py").write_text("print('theirs')")
    monkeypatch.chdir(tmp_path)
    program = own_module("json.tool", "--help")
    assert program["cwd"] == "/"
    done = subprocess.run(**program, capture_output=True, text=True, check=True)
    assert "theirs" not in done.stdout
    assert all(map(os.path.isabs, program["env"]["PYTHONPATH"].split(os.pathsep)))
