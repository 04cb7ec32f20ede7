# SPDX-License-Identifier: Apache-2.0
"""Power cuts at every moment, in every way: what spool and dataset have acknowledged is there, whole and once."""

import concurrent.futures
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from crash_checks import SpoolCheck, StoreCheck
from crash_states import Check, Result, enumerate_states, fast_folder, total
from crash_trace import installed, record

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not installed, reason="strace is not installed")


def check_of(kind: str) -> Check:
    return StoreCheck() if kind == "store" else SpoolCheck(kind)


def looked_at(kind: str, checked: str, runs: int, steps: int, seed: int = 0, **more: Any) -> Result:
    """Record a run, and look at what power cuts leave of it."""
    with fast_folder() as folder:
        (place := folder / "fs").mkdir()
        numbers = (str(seed), str(runs), str(steps))
        if kind == "store":
            ops = record(HERE / "crash_store_run.py", place, *numbers)
        else:
            ops = record(HERE / "crash_spool_run.py", place, kind, *numbers)
        shutil.rmtree(place)
        return enumerate_states(ops, check_of(checked), place, **more)


@pytest.mark.parametrize("kind", ["process", "power", "store"])
def test_some_states(kind: str) -> None:
    runs, steps, every = (1, 2, 12) if kind == "store" else (2, 6, 6)
    result = looked_at(kind, kind, runs, steps, draws=1, every=every)
    assert result.states > 50
    assert not result.wrong, str(result)


def test_what_was_not_synced_is_found_to_be_lost() -> None:
    assert looked_at("process", "power", 1, 12, draws=0, every=3).wrong["lost"]


def share(kind: str, number: int, of: int) -> Result:
    runs, steps = (16, 9) if kind == "store" else (15, 45)
    every = int(os.environ.get("NETMON_EVERY", "1"))
    return looked_at(kind, kind, -(-runs // of), steps, number * 1000, draws=3, every=every, tell=print)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", ["process", "power", "store"])
def test_every_state(kind: str) -> None:
    """Of runs of more than 10,000 operations together."""
    shares = os.cpu_count() or 1
    with concurrent.futures.ProcessPoolExecutor(shares) as pool:
        tasks = [pool.submit(share, kind, number, shares) for number in range(shares)]
    result = total([task.result() for task in tasks])
    print(f"{kind}: {result}")
    assert result.operations >= 10_000
    assert not result.wrong
