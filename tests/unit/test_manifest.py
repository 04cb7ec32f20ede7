# SPDX-License-Identifier: Apache-2.0
"""What a manifest asks of the disk, by what SQLite does with its journal."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from crash_trace import installed, record

from collector.dataset.manifest import Manifest

pytestmark = pytest.mark.skipif(not installed, reason="strace is not installed")


def test_a_journal_is_on_the_disk_before_the_header_that_makes_it_count(tmp_path: Path) -> None:
    """Else a power cut may leave a header and a part of what it is about, and the sums in it are of some bytes only."""
    (place := tmp_path / "fs").mkdir()
    ops = [op for op in record(Path(__file__), place) if op.path.endswith("-journal")]
    headers = [(before, op) for before, op in pairwise(ops) if op.kind == "write" and len(op.data) == 12]
    assert headers
    assert all(before.kind == "sync" for before, _ in headers), headers


if __name__ == "__main__":
    manifest = Manifest(Path(sys.argv[1]) / "manifest.sqlite")
    for number in range(3):
        manifest.commit([], {}, {}, [f"ledger/{number}"])
        manifest.placed([], [f"ledger/{number}"])
    manifest.close()
