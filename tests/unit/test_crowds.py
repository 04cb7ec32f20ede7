# SPDX-License-Identifier: Apache-2.0
"""Strangers who only connect, and agents whose rows wait: they cost memory that is bounded, and others nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from collector_stream import Host, hello
from in_process import JobsHere
from test_collector_server import collector, message, send, session
from test_failing_sessions import last_stored, rows_of

from collector import job_exchange, registry
from collector.dataset.sink import ParquetSink
from collector.job_exchange import JobUpdates, build_news
from collector.messages import HostNews
from collector.registry import Registry
from collector.settings import Settings
from netmon.errors import WireError


def test_streams_that_only_say_hello_cost_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counting(heard: Sequence[JobUpdates], connected: Sequence[JobUpdates], ended: Sequence[int]) -> HostNews:
        compared.append(len(connected))
        return build_news(heard, connected, ended)

    monkeypatch.setattr(job_exchange, "build_news", counting)

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            over = asyncio.Event()

            async def only_hello(number: int) -> AsyncIterator[Any]:
                yield message(hello(host=f"x{number}", session=f"x{number}"))
                await over.wait()

            calls = [stub.Stream(only_hello(number)) for number in range(200)]
            for call in calls:
                await call.read()
            assert (await send(stub, session(30)))[-1] == 30
            over.set()
            for call in calls:
                await last_stored(call)

    asyncio.run(scenario())
    assert max(compared) <= 1
    assert rows_of(tmp_path, "h0") == 2 * 3000


def test_a_session_that_has_sent_nothing_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SILENT_AFTER_S", -1.0)
    monkeypatch.setattr(registry, "MOST_SESSIONS", 2)

    async def scenario() -> None:
        store = ParquetSink(tmp_path)
        sessions = Registry(store, Settings(), JobsHere())
        first = await sessions.open(hello(), asyncio.Event())
        await sessions.open(hello(host="h1", session="s2"), asyncio.Event())
        with pytest.raises(WireError, match="session s3 of h2 is refused: there are 2 sessions already"):
            await sessions.open(hello(host="h2", session="s3"), asyncio.Event())
        sessions.disconnected(first)
        sessions.tidy()
        await sessions.open(hello(host="h2", session="s3"), asyncio.Event())
        store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("behind", [True, False])
def test_nobody_is_silent_because_we_are_late_ourselves(tmp_path: Path, behind: bool) -> None:
    """Their rows would settle in the midst of a share window, whose rest comes later."""

    async def scenario() -> None:
        store, source = ParquetSink(tmp_path), Host()
        sessions = Registry(store, Settings(), JobsHere())
        entry = await sessions.open(hello(), asyncio.Event())
        sessions.tick()
        sessions.add(entry, message(source.batch()))
        sessions.tick()
        entry.last_batch_s, entry.behind = time.monotonic() - 6, behind
        sessions.intake.late_s = time.monotonic() - (6 if behind else 1)
        sessions.tidy()
        assert not entry.settled
        entry.behind, sessions.intake.late_s = False, time.monotonic() - 6
        sessions.tidy()
        assert entry.settled
        store.close()

    asyncio.run(scenario())


def test_what_waits_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is queued for a tick, and rows whose horizon does not come."""
    monkeypatch.setattr(registry, "_MOST_QUEUED", 500)
    monkeypatch.setattr(registry, "_MOST_WAITING", 1_000)

    async def scenario() -> None:
        store, source = ParquetSink(tmp_path), Host()
        sessions = Registry(store, Settings(), JobsHere())
        entry = await sessions.open(hello(), asyncio.Event())
        taken_in = []
        for _ in range(8):
            batch = replace(source.batch(), horizon_ns=0)
            sessions.add(entry, message(batch))
            taken_in.append(entry.received)
        assert taken_in == [0, 2, 2, 2, 5, 5, 5, 8]  # 200 rows each, and four flows with the first
        assert any("rows ahead of its horizon" in line for line in entry.window.ranks.rejected.warnings)
        assert await sessions.flush()
        store.close()

    asyncio.run(scenario())
    assert len(pd.read_parquet(tmp_path / "buckets")) >= 1_000
