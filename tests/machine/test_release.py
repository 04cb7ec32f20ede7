# SPDX-License-Identifier: Apache-2.0
"""What `make release` has made, on a machine that has never seen netmon: installed, used, removed without a trace."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import machine_image
import pytest
from guest import BOOTS_S, OLD_CPU, Guest

from netmon.version import __version__

pytestmark = [pytest.mark.release, pytest.mark.timeout(7200)]

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
SCRIPT = Path(__file__).with_suffix(".sh").with_stem("release")
LIMIT_S = 5400


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with dist and the wheel's libraries: as pip would fetch them, in the versions of the SBOM."""
    if os.geteuid() or not shutil.which("qemu-system-x86_64"):
        pytest.skip("make test-release installs what is needed, as root")
    folder = tmp_path_factory.mktemp("release")
    tree, disk = folder / "tree", folder / "release.img"
    shutil.copytree(DIST, tree)
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=tree, check=True)
    (wheel,) = tree.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    within = ["--constraint", ROOT / "build/requirements.txt", "--wheel-dir", tree / "wheels"]
    subprocess.run([*pip, *within, f"{wheel}[all]"], check=True)
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    with disk.open("wb") as file:
        file.truncate(size + (size >> 3) + (64 << 20))
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, disk], check=True)
    shutil.rmtree(tree)
    return disk


@pytest.fixture
def clean(release: Path, tmp_path: Path) -> Iterator[Guest]:
    with machine_image.alone():
        image = machine_image.make_clean()
    guest = Guest(image, tmp_path, more=(release,), cpu=OLD_CPU)
    try:
        guest.start()
        guest.run("mkdir -p /release; mount -o ro /dev/vdb /release")
        yield guest
    finally:
        guest.close()


@pytest.mark.parametrize("product", ["packages", "wheel", "image"])
def test_it_is_installed_used_and_removed(clean: Guest, product: str) -> None:
    clean.write("/root/release.sh", SCRIPT.read_text())
    script = f"VERSION={__version__} sh /root/release.sh {product} 2>&1 | tee /dev/console"
    told = clean.run(script, LIMIT_S + BOOTS_S, check=False)
    print(told)
    assert told.rstrip().endswith("over"), told[-8000:]
    assert "Traceback" not in told
