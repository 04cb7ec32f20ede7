# SPDX-License-Identifier: Apache-2.0
"""What `make` would do in a new clone."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    return tmp_path


def commands(clone: Path, target: str) -> list[str]:
    done = subprocess.run(["make", "-n", target], cwd=clone, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines()]


def test_the_demo_installs_what_it_needs_and_no_tools(clone: Path) -> None:
    assert commands(clone, "demo")[:2] == [".ci/setup", ".venv/bin/python -m netmon lab demo --data out/demo"]


@pytest.mark.parametrize("target", ["lint", "docs", "test-unit", "man"])
def test_what_needs_tools_installs_them(clone: Path, target: str) -> None:
    assert commands(clone, target)[0] == ".ci/setup dev"


def test_all_that_has_failed_runs_again(clone: Path) -> None:
    (again,) = (line for line in commands(clone, "test") if "--last-failed" in line)
    assert not {"--maxfail", "-x", "--exitfirst"} & set(again.split())
