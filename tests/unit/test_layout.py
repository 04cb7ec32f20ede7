# SPDX-License-Identifier: Apache-2.0
"""What holds for every file: the licence line, the fixed top level, no stray paths."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    *("pyproject.toml", "setup.py", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *("bpf", "packaging", "proto", "netmon", "collector", "tests", "systemd", "docs"),
    *(".ci", ".gitignore", ".clang-format", ".pre-commit-config.yaml"),
}
GENERATED = re.compile(r"netmon/wire/netmon_pb2")
COMMENTED = re.compile(r"\.(py|pyi|c|h|sh|toml|proto|service|yaml|yml)$|(^|/)Makefile$|^\.ci/|\.clang-format$")


def repository_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return sorted(name for name in listed if (ROOT / name).is_file())


def test_every_source_opens_with_its_licence():
    without = [
        name
        for name in repository_files()
        if COMMENTED.search(name)
        and not GENERATED.search(name)
        and not any("SPDX-License-Identifier: " in line for line in (ROOT / name).read_text().splitlines()[:2])
    ]
    assert without == []


def test_the_top_level_is_fixed():
    found = {name.split("/")[0] for name in repository_files()}
    assert found - TOP_LEVEL == set()


def test_a_folder_with_one_file_is_a_file():
    packages = [path.parent for top in ("netmon", "collector") for path in (ROOT / top).rglob("__init__.py")]
    lonely = [str(folder.relative_to(ROOT)) for folder in packages if len(list(folder.iterdir())) == 1]
    assert lonely == []


def test_versions_agree():
    from netmon import __version__

    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert __version__ in changelog
