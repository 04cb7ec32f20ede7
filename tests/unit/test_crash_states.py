# SPDX-License-Identifier: Apache-2.0
"""Power cuts at every moment, in every way: what spool and dataset have acknowledged is there, whole and once."""

import concurrent.futures
import os
from pathlib import Path

import pytest
from crash_checks import SpoolCheck, StoreCheck
from crash_states import Check, enumerate_states
from crash_trace import Op, installed, record

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not installed, reason="strace is not installed")


def check_of(kind: str) -> Check:
    return StoreCheck() if kind == "store" else SpoolCheck(kind)


def recorded(directory: Path, kind: str, runs: int, steps: int) -> list[Op]:
    root = directory / "fs"
    root.mkdir()
    if kind == "store":
        return record(HERE / "crash_store_run.py", root, str(runs), str(steps))
    return record(HERE / "crash_spool_run.py", root, kind, str(runs), str(steps))


@pytest.mark.parametrize("kind", ["process", "power", "store"])
def test_some_states(tmp_path: Path, kind: str) -> None:
    ops = recorded(tmp_path, kind, *((1, 2) if kind == "store" else (2, 6)))
    result = enumerate_states(ops, check_of(kind), draws=1, every=12 if kind == "store" else 6)
    assert result.states > 50
    assert not result.wrong, str(result)


def part(ops: list[Op], kind: str, number: int, parts: int) -> str:
    result = enumerate_states(ops, check_of(kind), draws=4, part=(number, parts), tell=print)
    return str(result)
