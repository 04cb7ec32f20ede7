# SPDX-License-Identifier: Apache-2.0
"""The wheel has inside what a checkout has beside the packages; and, as a long test, it works in a new environment."""

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building writes into the tree."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "wheel"))
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", out, source], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_programs_units_and_examples_are_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    beside = {f"netmon/{path.relative_to(ROOT)}" for path in (ROOT / "bpf").rglob("*") if path.is_file()}
    assert beside <= names
    for name in ("systemd/netmon-agent.service", "systemd/collector.toml", "packaging/grafana/netmon.json"):
        assert f"netmon/{name}" in names
    assert {"collector/server.py", "netmon/report/page.html"} <= names
    if shutil.which("gcc") and (Path(sysconfig.get_path("include")) / "Python.h").exists():
        assert [name for name in names if name.startswith("netmon/native/compiled.") and name.endswith(".so")]
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_works_in_a_new_environment(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    subprocess.run([base, "-m", "venv", "--system-site-packages", place], check=True)
    pip = [place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True)
    done = subprocess.run([place / "bin/netmon", "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout)
    code = "from netmon.kernel import loader; print(loader.sources())"
    inside = subprocess.run(
        [place / "bin/python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(inside.stdout.strip()).is_relative_to(place)
