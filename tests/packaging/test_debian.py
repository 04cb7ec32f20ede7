# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: what is inside; and, as a long test, whole ones installed, upgraded and purged."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from booted import run_booted

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "packages.sh"

pytestmark = pytest.mark.skipif(shutil.which("dh") is None, reason="debhelper is not installed: make deb installs it")


def build(out: Path, **environment: str) -> dict[str, Path]:
    """The packages by name. Raises CalledProcessError."""
    settings = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home()), **environment}
    subprocess.run([ROOT / "packaging/debian/build", out], env=settings, check=True)
    return {path.name.partition("_")[0]: path for path in out.glob("*.deb")}


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files(package: Path) -> dict[str, str]:
    """Modes by path."""
    lines = (line.split(maxsplit=5) for line in output("dpkg-deb", "-c", package).splitlines())
    return {fields[5].removeprefix("."): fields[0] for fields in lines}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Without the libraries from PyPI, which take minutes."""
    return build(tmp_path_factory.mktemp("deb"), LIBRARIES="no", COMPRESSION="none")


def test_programs_units_and_examples_are_inside(packages: dict[str, Path]) -> None:
    assert set(packages) == {"netmon", "netmon-agent", "netmon-collector"}
    programs, agent, collector = (files(packages[name]) for name in ("netmon", "netmon-agent", "netmon-collector"))
    assert programs["/usr/bin/netmon"] == "-rwxr-xr-x"
    for name in ("meter.c", "steps.c", "sockets.c", "netmon.h", "headers/include/linux/version.h"):
        assert f"/usr/lib/netmon/netmon/bpf/{name}" in programs
    assert "/lib/systemd/system/netmon-agent.service" in agent
    assert "/usr/share/doc/netmon-agent/examples/agent.toml" in agent
    assert "/etc/netmon/collector.toml" in collector
    for paths in (programs, agent, collector):
        assert not [path for path in paths if "__pycache__" in path or "/tests/" in path]
        assert not [path for path, mode in paths.items() if mode[8] == "w"]  # by everybody


def test_units_call_the_program_that_is_installed(packages: dict[str, Path], tmp_path: Path) -> None:
    for name in ("agent", "collector"):
        subprocess.run(["dpkg-deb", "-x", packages[f"netmon-{name}"], tmp_path], check=True)
        unit = (tmp_path / f"lib/systemd/system/netmon-{name}.service").read_text()
        assert f"ExecStart=/usr/bin/netmon {name} --config /etc/netmon/{name}.toml\n" in unit
        assert "/opt/netmon" not in unit


def test_dependencies_name_bcc_and_the_interpreter(packages: dict[str, Path]) -> None:
    assert "python3-bpfcc" in output("dpkg-deb", "-f", packages["netmon-agent"], "Depends")
    assert re.search(
        r"python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\)", output("dpkg-deb", "-f", packages["netmon"], "Depends")
    )
    assert (
        output("dpkg-deb", "-f", packages["netmon-collector"], "Version").strip()
        == output("sed", "-n", 's/^__version__ = "\\(.*\\)"/\\1/p', ROOT / "netmon/version.py").strip()
    )


@pytest.mark.kernel
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("systemd-nspawn") is None, reason="systemd-nspawn is not installed")
def test_installed_upgraded_with_the_data_kept_and_purged(tmp_path: Path) -> None:
    subprocess.run(["make", "--no-print-directory", "-C", ROOT, "man"], check=True)
    old = build(tmp_path / "old", COMPRESSION="none")
    version = output("dpkg-deb", "-f", old["netmon"], "Version").strip()
    new = tmp_path / "new"
    new.mkdir()
    for path in old.values():  # the same, under the next version
        tree = tmp_path / "tree"
        subprocess.run(["dpkg-deb", "-R", path, tree], check=True)
        control = tree / "DEBIAN/control"
        control.write_text(control.read_text().replace(f"Version: {version}", f"Version: {version}.1"))
        subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, new], check=True, capture_output=True)
        shutil.rmtree(tree)
    told = run_booted(SCRIPT.read_text(), tmp_path, 900)
    assert told.rstrip().endswith("== over"), told


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
def test_lintian_has_nothing_to_say(tmp_path: Path) -> None:
    subprocess.run(["make", "--no-print-directory", "-C", ROOT, "man"], check=True)
    packages = build(tmp_path, COMPRESSION="0")  # it wants some
    done = subprocess.run(
        ["lintian", "--fail-on", "error,warning", *packages.values()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
