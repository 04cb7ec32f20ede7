# SPDX-License-Identifier: Apache-2.0
"""A host passes to another worker again and again while it trains: the dataset is what it would have been."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from collector_stream import Host, as_told, hello
from in_process import JobsHere, take

from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.bench.pipeline.truth import compare
from netmon.records import Batch, Mark, Moment, Source

BATCHES = 40
CUTS = (3, 8, 14, 19, 21, 30)
STEPS = (Moment.STEP_START, Moment.FIRST_ENQUEUE, Moment.LAST_WAIT, Moment.STEP_END)
ABOUT_ALL = (Moment.JOIN, Moment.LEAVE)

TOLD = {
    "by the script": [(Source.HOOK, STEPS, 0)],
    "by the script, late": [(Source.HOOK, STEPS, 6)],
    "by a probe": [(Source.UPROBE, STEPS[1:3], 0)],
    "by a timeline, late": [(Source.TIMELINE, STEPS[1:3], 8)],
    "by the script and a probe": [(Source.HOOK, (STEPS[0], STEPS[3]), 0), (Source.UPROBE, STEPS[1:3], 0)],
    "by the script, late, and a probe": [(Source.HOOK, (STEPS[0], STEPS[3]), 4), (Source.UPROBE, STEPS[1:3], 0)],
    "by a probe and a timeline, late": [(Source.UPROBE, STEPS[1:2], 0), (Source.TIMELINE, STEPS[1:3], 5)],
}
"""By whom, which moments, and after how many batches."""


def told_batches(sources: Iterable[tuple[Source, Sequence[Moment], int]]) -> list[Batch]:
    host = Host(cross_from_ms=1000)
    batches = [host.batch() for _ in range(BATCHES)]
    marks: list[list[Mark]] = [[] for _ in batches]
    for source, moments, later in sources:
        for number, batch in enumerate(batches):
            told = [mark for mark in batch.marks if mark.moment in (*moments, *ABOUT_ALL)]
            for mark in told:
                at = number + later * (mark.moment not in ABOUT_ALL)
                if at < len(batches):
                    marks[at].append(replace(mark, source=source))
    return as_told(batches, marks)


class Having:
    """A worker that has the host."""

    def __init__(self, data: Path, name: str, epoch: int) -> None:
        self.sink = ParquetSink(data, name)
        assert self.sink.take({"h0": epoch}) == frozenset()
        self.registry = Registry(self.sink, Settings(settle_ns=200_000_000), JobsHere())

    async def play(self, batches: Sequence[Batch]) -> int:
        """What comes of the host; the last batch that is acknowledged after some of it has been stored."""
        self.entry = await self.registry.open(hello(), asyncio.Event())
        for number, batch in enumerate(batches, 1):
            take(self.registry, self.entry, batch)
            if number % 6 == 0:
                assert await self.registry.flush()
        assert await self.registry.flush()
        return self.entry.acknowledge

    async def release(self) -> None:
        await self.registry.discard(self.entry)
        self.sink.settle_changes()
        self.sink.close()

    async def end(self) -> None:
        self.registry.settle(self.entry, leaving=True)
        assert await self.registry.flush()
        self.sink.close()


async def play(data: Path, batches: Sequence[Batch], *cuts: int) -> None:
    """cuts: after so many batches another worker has the host."""
    acknowledged = 0
    for epoch, cut in enumerate((*cuts, len(batches)), 1):
        worker = Having(data, f"w{epoch % 2}", epoch)
        acknowledged = max(acknowledged, await worker.play(batches[acknowledged:cut]))
        await (worker.release() if cut < len(batches) else worker.end())


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD.keys())
def test_no_iteration_is_lost_renumbered_or_poorer(tmp_path, told):
    batches = told_batches(told)
    asyncio.run(play(tmp_path / "whole", batches))
    asyncio.run(play(tmp_path / "moved", batches, *CUTS))
    for table, difference in compare(tmp_path / "whole", tmp_path / "moved").items():
        assert difference.none, f"{table}: {difference}"
        assert difference.rows, table
