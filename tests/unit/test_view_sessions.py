# SPDX-License-Identifier: Apache-2.0
"""The host stage's tables as viewers see them: sessions that come, go and replace each other."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collector_stream import MS, Host, S, clock, hello
from in_process import take
from test_store import Collector, read

from collector.view.view import View
from netmon.records import Class, Direction
from netmon.views import Selection, Snapshot


def received(snapshot: Snapshot, host: str) -> np.ndarray:
    """Wire bytes of the last 10 s by class."""
    (link,) = (link for link in snapshot.links if (link.host, link.direction) == (host, Direction.RX))
    return np.nansum(link.wire_bps, axis=0) / 80


def test_what_came_is_shown_before_and_after_it_settles(tmp_path: Path) -> None:
    async def scenario() -> None:
        collector, host = Collector(tmp_path), Host(cross_from_ms=0)
        entry = await collector.registry.open(hello(), asyncio.Event())
        for count in range(1, 31):
            take(collector.registry, entry, host.batch())
            sums = received(collector.registry.snapshot(0), "h0")
            assert sums[Class.CROSS] == count * 100 * 100_066
            assert sums[Class.DL_ONLY] + sums[Class.DL_SHARED] == count * 100 * 1_066
        await collector.end(entry)

    asyncio.run(scenario())


def test_who_looks_late_sees_what_the_others_see(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched, alone = Collector(tmp_path / "a"), Collector(tmp_path / "b")
        hosts = Host(cross_from_ms=1_000), Host(cross_from_ms=1_000)
        entries = [await one.registry.open(hello(), asyncio.Event()) for one in (watched, alone)]
        for _ in range(30):
            for one, entry, host in zip((watched, alone), entries, hosts, strict=True):
                take(one.registry, entry, host.batch())
            watched.registry.snapshot(0)
        seen, late = (one.registry.snapshot(5) for one in (watched, alone))
        assert received(seen, "h0").tolist() == received(late, "h0").tolist()
        assert [(view.class_, view.wire_bps) for view in seen.flows] == [(v.class_, v.wire_bps) for v in late.flows]
        for one, entry in zip((watched, alone), entries, strict=True):
            await one.end(entry)

    asyncio.run(scenario())


def test_the_newest_session_of_a_host_is_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        collector = Collector(tmp_path)
        registry = collector.registry
        earlier = await registry.open(hello(), asyncio.Event())
        host = Host(cross_from_ms=0)
        for _ in range(3):
            take(registry, earlier, host.batch())
        later = clock(10_000 * MS)
        entry = await registry.open(hello(session="s2", clock=later), asyncio.Event())
        assert received(registry.snapshot(5), "h0").sum() == 0
        take(registry, earlier, host.batch())  # what it has left behind
        snapshot = registry.snapshot(5)
        assert (len(snapshot.links), snapshot.flows) == (2, ())
        assert received(snapshot, "h0").sum() == 0
        await registry.discard(entry)
        take(registry, earlier, host.batch())  # from now on it is
        assert received(registry.snapshot(5), "h0")[Class.CROSS] == 100 * 100_066
        await collector.end(earlier)

    asyncio.run(scenario())


def test_a_fault_of_the_view_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no")

    async def scenario() -> None:
        monkeypatch.setattr(View, "publish", fail)
        collector = Collector(tmp_path)
        entry = await collector.feed([host.batch() for host in [Host()] for _ in range(30)])
        assert "what is shown is incomplete: ValueError: no" in collector.registry.snapshot(0).warnings
        await collector.end(entry)

    asyncio.run(scenario())
    assert len(read(tmp_path, "buckets")) == 6_000


def test_a_link_number_that_is_given_out_again_carries_nothing_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        collector = Collector(tmp_path)
        registry = collector.registry
        entry = await registry.open(hello(), asyncio.Event())
        host = Host(cross_from_ms=0)
        for _ in range(30):
            take(registry, entry, host.batch())
        registry.snapshot(5)
        await registry.discard(entry)
        other = await registry.open(hello(host="h1", session="s2"), asyncio.Event())
        assert other.window.first_link == entry.window.first_link
        take(registry, other, replace(Host().batch(), horizon_ns=3 * S, clock=clock(3_000 * MS)))
        snapshot = registry.live.page(registry.freeze(), Selection(flows=5))
        assert [host.host for host in snapshot.hosts] == ["h1"]
        assert received(snapshot, "h1").tolist() == [0, 100 * 1_066, 0, 0]
        await collector.end(other)

    asyncio.run(scenario())
