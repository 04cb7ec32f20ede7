# SPDX-License-Identifier: Apache-2.0
"""Power cuts at every moment, in every way: what spool and dataset have acknowledged is there, whole and once."""

import concurrent.futures
import os
from pathlib import Path

import pytest
from crash_checks import SpoolCheck, StoreCheck
from crash_states import Check, Result, enumerate_states, total
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


def share(ops: list[Op], kind: str, number: int, of: int) -> Result:
    every = int(os.environ.get("NETMON_EVERY", "1"))
    tell = print if number == 0 else lambda line: None
    return enumerate_states(ops, check_of(kind), draws=3, part=(number, of), every=every, tell=tell)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("kind", "runs", "steps"), [("process", 15, 45), ("power", 15, 40), ("store", 12, 9)])
def test_every_state(tmp_path: Path, kind: str, runs: int, steps: int) -> None:
    ops = recorded(tmp_path, kind, runs, steps)
    shares = os.cpu_count() or 1
    with concurrent.futures.ProcessPoolExecutor(shares) as pool:
        results = list(pool.map(share, *zip(*((ops, kind, number, shares) for number in range(shares)), strict=True)))
    print(f"{kind}: {total(results)}")
    assert results[0].operations >= 10_000
    assert not any(result.wrong for result in results)


def test_what_was_not_synced_is_found_to_be_lost(tmp_path: Path) -> None:
    ops = recorded(tmp_path, "process", 1, 12)
    result = enumerate_states(ops, check_of("power"), draws=0, every=3)
    assert result.wrong["lost"]
