# SPDX-License-Identifier: Apache-2.0
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from test_store import store_small

from netmon import own_module as own_module_file
from netmon.commands.lab_results import _print_next
from netmon.errors import KernelError, UnsupportedError
from netmon.own_module import call_by_name, own_module, typed


def test_nothing_is_imported_from_where_the_user_stands(tmp_path: Path, monkeypatch):
    (tmp_path / "json.py").write_text("print('theirs')")
    monkeypatch.chdir(tmp_path)
    program = own_module("json.tool", "--help")
    assert program["cwd"] == "/"
    done = subprocess.run(**program, capture_output=True, text=True, check=True)
    assert "theirs" not in done.stdout
    assert all(map(os.path.isabs, program["env"]["PYTHONPATH"].split(os.pathsep)))


@pytest.mark.parametrize("program", ["netmon", "python"])
def test_a_program_is_called_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    own = Path(sys.executable).with_name(program)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert typed(program) == str(own)
    monkeypatch.chdir(own.parent.parent)
    assert typed(program) == f"{own.parent.name}/{program}"
    monkeypatch.setenv("PATH", f"{own.parent}:/usr/bin:/bin")
    assert typed(program) == program
    (tmp_path / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{own.parent}")  # another one
    assert typed(program) != program


def test_what_a_run_prints_to_do_next_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    store_small(tmp_path / "data")
    said = io.StringIO()
    _print_next(tmp_path / "data", Console(file=said, width=80))
    first, *lines = said.getvalue().splitlines()
    assert first == "dataset: data; next:"
    assert [line.split("netmon ")[-1].split()[0] for line in lines[:5]] == ["why", "advise", "top", "web", "report"]
    for line in lines:
        if any(f" {name} " in line for name in ("top", "web", "report")):  # they take long, and have tests of their own
            line += " --help"
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    script = (
        "import resource\n"
        "from netmon.own_module import allow_descriptors\n"
        "most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1_000)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
        "allow_descriptors()\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def doubles(number: int) -> list[int]:
    return [number] * 100_000  # more than a pipe holds


def refuses() -> None:
    raise UnsupportedError("cannot do it")


def ends() -> None:
    os._exit(3)


def breaks() -> None:
    raise ValueError("a mistake of ours")


def stands_still() -> None:
    time.sleep(60)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pytest has threads
def test_a_call_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_by_name(f"{__name__}:doubles", 7) == [7] * 100_000
    with pytest.raises(UnsupportedError, match="cannot do it"):
        call_by_name(f"{__name__}:refuses")
    for name in ("ends", "breaks"):
        with pytest.raises(KernelError, match="has ended"):
            call_by_name(f"{__name__}:{name}")
    assert "a mistake of ours" in capfd.readouterr().err
    monkeypatch.setattr(own_module_file, "_LIMIT_S", 0.2)
    with pytest.raises(KernelError, match="no answer"):
        call_by_name(f"{__name__}:stands_still")
