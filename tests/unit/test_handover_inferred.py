# SPDX-License-Identifier: Apache-2.0
"""Three hosts of a job that only their traffic tells of pass to another worker, in whatever order that comes about."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from collector_stream import MS, hello
from dataset_rows import stored_rows
from in_process import JobsHere, take
from test_inferring import HOSTS, PERIOD_MS, batches

from collector import job_exchange
from collector.bus.intake import settle_pending
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.records import Batch

SECONDS, CUT = 16, 83  # batches of 100 ms
NAMES = [f"h{host}" for host in range(HOSTS)]
TOLD = [list(batches(host, SECONDS)) for host in range(HOSTS)]


class Having:
    """A worker that has the hosts."""

    def __init__(self, data: Path, name: str, epoch: int) -> None:
        self.sink = ParquetSink(data, name)
        assert self.sink.take(dict.fromkeys(NAMES, epoch)) == frozenset()
        self.registry = Registry(self.sink, Settings(), JobsHere())
        self.entries = {}

    async def open(self, host: int) -> None:
        self.entries[host] = await self.registry.open(hello(host=f"h{host}", session=f"s{host}"), asyncio.Event())

    async def play(self, host: int, some: Sequence[Batch]) -> None:
        for batch in some:
            take(self.registry, self.entries[host], batch)

    async def together(self, first: Sequence[int], last: int, infer_every: int = 3) -> None:
        """From each host's first batch on, to the last one of all."""
        for number in range(min(first), last):
            for host in range(HOSTS):
                if number >= first[host]:
                    await self.play(host, TOLD[host][number : number + 1])
            if number % infer_every == 0:
                await self.registry.infer()
            if number % 7 == 0:
                assert await self.registry.flush()

    async def release(self) -> list[int]:
        """As BusIntake does; the last batch of each host that is acknowledged."""
        await settle_pending(self.registry)
        assert await self.registry.flush()
        for entry in self.entries.values():
            await self.registry.discard(entry)
        self.sink.settle_changes()
        self.sink.close()
        return [self.entries[host].acknowledge for host in range(HOSTS)]

    async def end(self) -> None:
        await self.registry.infer(list(self.entries.values()))
        for entry in self.entries.values():
            self.registry.settle(entry, leaving=True)
        assert await self.registry.flush()
        self.sink.close()


def assert_whole(data: Path) -> None:
    """Each iteration that there was, once, with the number that it would have had."""
    rows = stored_rows(data, "iterations")
    assert rows["job"].nunique() == 1
    for _, own in rows.groupby("rank"):
        own = own.sort_values("start_ns")
        assert own["iteration"].tolist() == list(range(len(own)))
        starts, ends = (own[name].to_numpy() / (PERIOD_MS * MS) for name in ("start_ns", "end_ns"))
        assert round(ends[-1] - starts[0]) in (len(own) - 1, len(own)), "none is missing"
        assert (starts[1:] >= ends[:-1] - 0.01).all()
        assert len(own) >= (SECONDS - 1) * 1000 // PERIOD_MS - 1


async def moved(data: Path, order: Sequence[int], ahead: int, infer_every: int) -> None:
    """order: of the hosts at the second worker, which hears so many batches of one before the next one comes."""
    one = Having(data, "w1", 1)
    for host in range(HOSTS):
        await one.open(host)
    await one.together([0] * HOSTS, CUT, infer_every)
    first = await one.release()
    other = Having(data, "w2", 2)
    for host in order:
        await other.open(host)
        await other.play(host, TOLD[host][first[host] : first[host] + ahead])
        await other.registry.infer()
        first[host] += ahead
    await other.together(first, 10 * SECONDS)
    await other.end()


@pytest.mark.parametrize(("order", "ahead"), [((0, 1, 2), 30), ((2, 0, 1), 5)], ids=str)
def test_hosts_that_come_one_after_the_other(tmp_path, monkeypatch, order, ahead):
    monkeypatch.setattr(job_exchange, "_TOGETHER_S", 0.0)
    asyncio.run(moved(tmp_path, order, ahead, infer_every=3))
    assert_whole(tmp_path)


def test_a_worker_that_asks_seldom_asks_before_it_releases(tmp_path, monkeypatch):
    monkeypatch.setattr(job_exchange, "_TOGETHER_S", 0.0)
    asyncio.run(moved(tmp_path, range(HOSTS), 5, infer_every=1000))
    assert_whole(tmp_path)


def test_no_job_is_made_of_the_first_hosts_to_come(tmp_path, monkeypatch):
    """Nobody is compared while sessions are taken up again."""
    asked = []

    async def test() -> None:
        one = Having(tmp_path, "w1", 1)
        for host in range(HOSTS):
            await one.open(host)
            await one.play(host, TOLD[host][:30])
        await one.release()
        monkeypatch.setattr(job_exchange, "_TOGETHER_S", 60.0)
        monkeypatch.setattr(job_exchange, "_LONGEST_S", 60.0)
        monkeypatch.setattr(job_exchange, "build_news", lambda *news: asked.append(news))
        other = Having(tmp_path, "w2", 2)
        for host in range(HOSTS):
            await other.open(host)
            await other.play(host, TOLD[host][30:31])
            await other.registry.infer()
        other.sink.close()

    asyncio.run(test())
    assert not asked
