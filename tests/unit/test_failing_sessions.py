# SPDX-License-Identifier: Apache-2.0
"""What the collector fails at costs that session only: it is set aside, all others go on, also after a restart."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pandas as pd
import pytest
from collector_stream import Host, TrainingAgent, hello, mark
from decoded import gather
from receiver_here import receive_here
from test_collector_server import collector, first_stored, message, send, session

from collector import agent_checks
from collector.dataset.manifest import Resume
from collector.host.session import Session
from collector.host.stage import HostStage
from collector.host.unstored import SessionFlush
from collector.jobs.rank_registry import RankRegistry
from collector.quarantine import FOLDER, LENGTH, Quarantine
from collector.settings import Settings
from netmon.records import Batch, Hello, Moment, Training
from netmon.wire.batch_fields import ManyBatches
from netmon.wire.netmon_pb2 import AgentMessage
from netmon.wire.netmon_pb2_grpc import CollectorStub

BAD = "bad"
DEADLINE_S = 60


def read_messages(path: Path) -> Iterator[AgentMessage]:
    """The messages of a file that was set aside, the hello first."""
    data, offset = path.read_bytes(), 0
    while offset < len(data):
        (length,) = LENGTH.unpack_from(data, offset)
        offset += LENGTH.size
        yield AgentMessage.FromString(data[offset : offset + length])
        offset += length


def of_bad(batches: int) -> list[Hello | Batch]:
    return [hello(host="h1", session=BAD), *session(batches)[1:]]


def set_aside(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / FOLDER).glob("*.messages"))


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[..., bool], part: type = Session) -> None:
    """Make a method of the bad host's session, or of its window, fail."""
    honest: Callable[..., Any] = getattr(part, name)

    def failing(self: Any, *args: Any) -> Any:
        if self.hello.session == BAD and when(*args):
            raise OverflowError("Python int too large\nto convert to C long")
        return honest(self, *args)

    monkeypatch.setattr(part, name, failing)


async def beside_an_honest_one(stub: CollectorStub, contents: list[Hello | Batch]) -> grpc.aio.AioRpcError:
    """How the bad session's stream ends, while another one is whole."""
    host, over = Host(), asyncio.Event()

    async def honest() -> AsyncIterator[Any]:
        yield message(hello())
        for _ in range(15):
            yield message(host.batch())
        await over.wait()
        for _ in range(15):
            yield message(host.batch())

    call = stub.Stream(honest())
    await first_stored(call)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await send(stub, contents)
    over.set()
    assert await last_stored(call) == 30
    return error.value


async def last_stored(call: grpc.aio.StreamStreamCall) -> int:
    """The last acknowledgement of a stream."""
    last = 0
    while (answer := await call.read()) is not grpc.aio.EOF:
        last = answer.sequence
    return last


def rows_of(tmp_path: Path, host: str) -> int:
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    return int((buckets["host"].astype(str) == host).sum())


def test_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fail_at(monkeypatch, "add_counters", lambda sequence, samples: sequence == 5)

    async def scenario() -> None:
        for _ in range(2):  # the same is sent again to the collector that comes after
            async with collector(tmp_path) as stub:
                error = await beside_an_honest_one(stub, of_bad(5))
                assert error.code() == grpc.StatusCode.INTERNAL
                assert ("netmon-sequence", "5") in list(error.trailing_metadata())
                assert "OverflowError: Python int too large to convert" in error.details()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    first, second = set_aside(tmp_path)
    opening, batch = read_messages(first)
    assert (opening.hello.session, batch.batch.sequence) == (BAD, 5)
    assert "OverflowError" in first.with_suffix(".txt").read_text()
    lines = [record.getMessage() for record in caplog.records if "collector failed" in record.getMessage()]
    assert [str(path) in line for path, line in zip((first, second), lines, strict=True)] == [True, True]
    assert rows_of(tmp_path, "h0") == 2 * 3000


def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Session.flush

    def failing(self: Session, *flows: list[int]) -> SessionFlush | None:
        flush = honest(self, *flows)
        return replace(flush, ledger=[None]) if flush and self.hello.session == BAD else flush

    monkeypatch.setattr(Session, "flush", failing)

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            for _ in range(3):
                error = await beside_an_honest_one(stub, of_bad(30))
                assert error.code() == grpc.StatusCode.INTERNAL
            with pytest.raises(grpc.aio.AioRpcError, match=r"session bad .* is refused: .* 3 times"):
                await send(stub, of_bad(0))

    asyncio.run(scenario())
    assert rows_of(tmp_path, "h0") == 2 * 3000
    assert len(set_aside(tmp_path)) == 2  # what comes after is the same


def test_a_hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Session.__init__

    def failing(self: Session, introduction: Hello, *args: Any) -> None:
        if introduction.session == BAD:
            raise KeyError("what")
        honest(self, introduction, *args)

    monkeypatch.setattr(Session, "__init__", failing)

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            error = await beside_an_honest_one(stub, of_bad(0))
            assert error.code() == grpc.StatusCode.INTERNAL
            assert "the collector failed at its hello of h1: KeyError: 'what'" in error.details()

    asyncio.run(scenario())
    assert [m.hello.host for m in read_messages(set_aside(tmp_path)[0])] == ["h1"]


def test_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "flush", lambda *args: True)

    async def scenario() -> None:
        async with collector(tmp_path) as stub:

            async def stays() -> AsyncIterator[Any]:
                for content in of_bad(10):
                    yield message(content)
                await asyncio.sleep(DEADLINE_S)

            call = stub.Stream(stays())
            await call.read()
            assert (await send(stub, session(30)))[-1] == 30

    asyncio.run(scenario())  # the collector ends in order
    assert rows_of(tmp_path, "h0") == 2 * 3000
    assert set_aside(tmp_path)


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path, most_files=6, most_bytes=4_000)
    for number in range(20):
        kept.store(f"s{number}/..", "it", [message(hello())] * 100, ValueError("x"))
    files = list((tmp_path / FOLDER).iterdir())
    assert 0 < len(files) <= 6
    assert sum(path.stat().st_size for path in files) <= 4_000
    newest = max(files).read_bytes()
    for _ in range(10):
        told = kept.store("again", "it", [], ValueError("y"))
    assert told == "the collector failed at it: ValueError: y"
    assert max(files).exists() or newest


@pytest.mark.parametrize("contents", [[], [hello()]])
def test_a_stream_that_says_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: list[Hello]
) -> None:
    receive_here(monkeypatch)
    monkeypatch.setattr(agent_checks, "HELLO_WITHIN_S", 0.2)
    monkeypatch.setattr(agent_checks, "SILENT_S", 0.2)

    async def scenario() -> None:
        async def silent() -> AsyncIterator[Any]:
            for content in contents:
                yield message(content)
            await asyncio.sleep(DEADLINE_S)

        async with collector(tmp_path) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="its stream is closed") as error:
                async for _ in stub.Stream(silent()):
                    pass
            assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(scenario())


def test_two_agents_that_say_that_they_are_one_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            source, over = Host(), asyncio.Event()

            async def first() -> AsyncIterator[Any]:
                yield message(hello(session="one"))
                for _ in range(60):
                    yield message(source.batch())
                await over.wait()
                for _ in range(60):
                    yield message(source.batch())

            async def second() -> AsyncIterator[Any]:
                other = Host()
                yield message(hello(session="two", clock=Host().batch().clock))
                for _ in range(60):
                    yield message(other.batch())
                await asyncio.sleep(0)
                await over.wait()

            calls = stub.Stream(first()), stub.Stream(second())
            for call in calls:
                await first_stored(call)
            over.set()
            for call in calls:
                await last_stored(call)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "two agents say that they are h0: sessions one and two; only the second is shown" in caplog.text
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    assert buckets["session"].astype(str).value_counts().to_dict() == {"one": 2 * 12_000, "two": 2 * 6_000}


def test_a_host_whose_clock_is_a_year_off_costs_no_other_host_anything(tmp_path: Path) -> None:
    year_ns = 365 * 86_400 * 10**9

    def a_year_off(content: Hello | Batch) -> Hello | Batch:
        clock = content.clock
        object.__setattr__(content, "clock", type(clock)(clock.mono_ns, clock.utc_ns + year_ns, clock.error_ns))
        return content

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            off = [a_year_off(content) for content in of_bad(30)]
            both = await asyncio.gather(send(stub, session(30)), send(stub, off))
            assert [acknowledged[-1] for acknowledged in both] == [30, 30]

    asyncio.run(scenario())
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    first = buckets.groupby("host", observed=True)["bucket_start_ns"].min()
    assert first["h1"] - first["h0"] == year_ns
    assert (buckets.groupby("host", observed=True).size() == 6000).all()


def test_a_job_of_4096_ranks(tmp_path: Path) -> None:
    ranks = 4096

    def joins(first: int, count: int) -> list[Any]:
        return [mark(Moment.JOIN, 0, 1, rank=rank, size=ranks, pid=100 + rank) for rank in range(first, first + count)]

    async def scenario() -> list[int]:
        async with collector(tmp_path) as stub:
            sent = []
            for host in range(8):
                source = Host()
                contents: list[Hello | Batch] = [hello(host=f"h{host}", session=f"s{host}")]
                for number in range(15):
                    batch = source.batch()
                    training = TrainingAgent().training(joins(512 * host, 512)) if number == 0 else Training()
                    object.__setattr__(batch, "training", training)
                    contents.append(batch)
                sent.append(send(stub, contents))
            return [acknowledged[-1] for acknowledged in await asyncio.gather(*sent)]

    assert asyncio.run(scenario()) == [15] * 8


async def agent(stub: CollectorStub, contents: list[Hello | Batch]) -> list[int]:
    """Sends a session until all is stored, as an agent does; returns the batches that it has set aside."""
    opening, *batches = contents
    acknowledged, strikes, given_up = 0, Counter[int](), []
    while acknowledged < len(batches):
        left = [batch for batch in batches[acknowledged:] if batch.sequence not in given_up]
        call = stub.Stream(iter([message(replace(opening, acknowledged=acknowledged)), *map(message, left)]))
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                acknowledged = max(acknowledged, answer.sequence)
        except grpc.aio.AioRpcError as error:
            at = next((int(value) for key, value in error.trailing_metadata() or () if key == "netmon-sequence"), 0)
            strikes[at] += 1
            if at and strikes[at] == 3:
                given_up.append(at)
            await asyncio.sleep(0.05)
    return given_up


def test_the_stage_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch makes the work for all hosts fail half-way: it is found, and no other one is lost or stored twice."""
    honest = HostStage.take

    def failing(self: HostStage, places: Sequence[int], many: ManyBatches, *rest: Any) -> Any:
        settled = honest(self, places, many, *rest)
        for place, sequence in zip(places, many.heads["sequence"].tolist(), strict=True):
            if sequence == 3 and self.session(place).hello.session == BAD:
                raise IndexError("half-way")
        return settled

    monkeypatch.setattr(HostStage, "take", failing)

    async def scenario() -> list[list[int]]:
        async with collector(tmp_path) as stub:
            others = [[hello(host=f"x{n}", session=f"x{n}"), *session(30)[1:]] for n in range(3)]
            sessions = [agent(stub, contents) for contents in (of_bad(30), *others)]
            return await asyncio.wait_for(asyncio.gather(*sessions), DEADLINE_S)

    assert asyncio.run(scenario()) == [[3], [], [], []]
    assert [rows_of(tmp_path, host) for host in ("h1", "x0", "x1", "x2")] == [2 * 2900, 6000, 6000, 6000]
    assert set_aside(tmp_path)


def test_what_a_session_left_when_it_was_discarded() -> None:
    """Samples whose interval would end later are nobody's."""
    stage = HostStage(Settings(), RankRegistry().answer)
    places = [stage.open(hello(host=host, session=host), Resume()) for host in ("h0", "h1")]
    hosts = [Host(), Host()]
    for _ in range(12):
        stage.take(places, gather([host.batch() for host in hosts]))
    stage.close(places[1])
    for _ in range(30):
        assert not stage.take(places[:1], gather([hosts[0].batch()])).failed
