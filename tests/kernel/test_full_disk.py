# SPDX-License-Identifier: Apache-2.0
"""A dataset on a file system that is full: acknowledging stops, it is said, and goes on when there is room again."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import run
from in_process import JobsHere, take

from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.records import (
    BUCKET,
    Batch,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    Owner,
)

pytestmark = pytest.mark.kernel

MS = 1_000_000
UTC = 1_760_000_000_000_000_000
ROWS = 2000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    directory = tmp_path / "small"
    directory.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory))
    try:
        yield directory
    finally:
        run("umount", "--lazy", str(directory))


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def batch(sequence: int) -> Batch:
    """Of a tenth of a second, one flow."""
    rows = np.zeros(ROWS, BUCKET)
    begin = sequence * 100 * MS
    rows["flow_id"], rows["packets"], rows["wire_bytes"], rows["payload_bytes"] = 1, 1, 1514, 1448
    rows["bucket_start_ns"] = [begin + number * 10_000 for number in range(ROWS)]
    flow = Flow(1, 7, Direction.TX, "10.0.0.1", "10.0.0.2", 1, 2, 6, 0, Owner())
    clock = ClockSample(begin + 100 * MS, UTC + begin + 100 * MS, 1000)
    return Batch(sequence, clock, begin + 100 * MS, rows, [flow] if sequence == 1 else [])


def test_a_full_disk_stops_the_acknowledgements_and_nothing_else(small, caplog):
    interface = Interface(7, "eth0", 10**9, "tcx", "tcx")
    hello = Hello("h0", "s1", 10_000, ClockSample(0, UTC, 1000), (interface,), "1")

    async def scenario() -> None:
        sink = ParquetSink(small)
        registry = Registry(sink, Settings(), JobsHere())
        entry = await registry.open(hello, asyncio.Event())

        def feed(first: int, last: int) -> None:
            for sequence in range(first, last):
                take(registry, entry, batch(sequence))

        feed(1, 21)
        assert await registry.flush()
        known = entry.acknowledge
        assert known > 0
        fill(small / "in-the-way")
        feed(21, 41)
        for _ in range(3):
            assert not await registry.flush()
        assert entry.acknowledge == known
        warning = registry.snapshot(5).warnings[0]
        assert warning.startswith(f"cannot write to {small}: No space left on device; rows stay in memory")
        assert not list((small / ".netmon" / "staging").iterdir())
        (small / "in-the-way").unlink()
        assert await registry.flush()
        assert entry.acknowledge > known
        registry.settle(entry, leaving=True)
        assert await registry.flush()
        assert entry.acknowledge == 40
        sink.close()
        again = ParquetSink(small)
        assert again.resume(hello).last_sequence == 40
        again.close()

    asyncio.run(scenario())
    rows = pd.read_parquet(small / "buckets")
    assert len(rows) == 40 * ROWS
    assert not rows.duplicated("bucket_start_ns").any()
    assert caplog.messages[-1] == f"{small} takes rows again"
