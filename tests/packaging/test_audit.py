# SPDX-License-Identifier: Apache-2.0
"""`make audit`: what is found is named, and libraries that could not be looked up are not called well."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[2] / "packaging/tools/audit.py"
CODE = "answer = 42\n"


def install(place: Path, name: str, *about: str, code: str = CODE) -> None:
    """A library as pip leaves it; code: as it is now."""
    (place / f"{name}.py").write_text(code)
    folder = place / f"{name}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *about, ""]))
    digest = base64.urlsafe_b64encode(hashlib.sha256(CODE.encode()).digest()).rstrip(b"=").decode()
    (folder / "RECORD").write_text(f"{name}.py,sha256={digest},{len(CODE)}\n")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder before all others, with a database that answers what it is told to."""
    (tmp_path / "pip_audit.py").write_text("import os; print(os.environ['ANSWER'])")
    install(tmp_path, "ours", "Requires-Dist: theirs")
    install(tmp_path, "theirs", "License-Expression: MIT")
    return tmp_path


def audited(place: Path, *answer: object) -> subprocess.CompletedProcess[str]:
    told = {"PYTHONPATH": str(place), "ANSWER": json.dumps({"dependencies": answer})}
    return subprocess.run([sys.executable, AUDIT, "ours"], env=os.environ | told, capture_output=True, text=True)


def test_what_could_not_be_looked_up_is_said(place: Path) -> None:
    done = audited(place, {"name": "theirs", "skip_reason": "no answer from there"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "NOT looked up whether any is known to be vulnerable" in done.stdout
    assert "no answer from there" in done.stdout


def test_what_a_database_knows_is_named(place: Path) -> None:
    known = {"name": "theirs", "version": "1.0", "vulns": [{"id": "CVE-1"}]}
    done = audited(place, known, {"name": "b", "skip_reason": ""})
    assert (done.returncode, done.stderr) == (1, "theirs 1.0: CVE-1\n")
    assert "1 libraries looked up in an advisory database, not b: 1 vulnerabilities" in done.stdout


def test_a_library_that_was_changed_is_under_another_license_and_lacks_something(place: Path) -> None:
    install(place, "theirs", "License: All rights reserved", "Requires-Dist: other>1", code="answer = 43\n")
    install(place, "other", "Classifier: License :: OSI Approved :: BSD License")
    done = audited(place)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "theirs 1.0 has requirement other>1, but you have other 1.0.",
        "theirs: theirs.py has been changed since it was installed",
        "theirs: its license is All rights reserved",
    ]
