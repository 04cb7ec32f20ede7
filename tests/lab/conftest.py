# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on real training libraries."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from probed import Probed


@pytest.fixture(scope="session")
def lab_folder() -> Iterator[Path]:
    """One that everybody may enter: agents, which are not root, have their spools there."""
    with tempfile.TemporaryDirectory(prefix="netmon-lab-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def tmp_path(lab_folder: Path) -> Path:
    """A test's own part of it."""
    folder = Path(tempfile.mkdtemp(dir=lab_folder))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def probed() -> Iterator[Probed]:
    """The step programs, loaded and not attached to anything yet."""
    probed = Probed()
    yield probed
    probed.close()
