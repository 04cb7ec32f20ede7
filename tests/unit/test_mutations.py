# SPDX-License-Identifier: Apache-2.0
"""No message ends the collector or costs another host a row: mutated ones, straight at the door and by gRPC."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from collector_stream import hello
from mutation_run import HONEST, honest_rows, run
from mutations import Mutator, honest_batches
from test_collector_server import collector
from test_failing_sessions import last_stored

from netmon.history.files import RANGES
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.tables import TABLES

MOST_MB = 600  # more than without mutated messages
MOST_CPU_S = 600  # for a million of them, which take a quarter of it


def test_mutated_messages_at_the_door() -> None:
    came = run(800, seed=1)
    assert came["failures"] == {}
    assert came["honest_rows_whole"]
    assert came["let in"] > 300
    assert came["batch refused"] > 150


def test_readers_take_what_the_door_lets_in() -> None:
    """Else one agent with a number that readers refuse would keep everybody from the file that it lies in."""
    for table in TABLES:
        for name, limits in table.columns.items():
            stored = "iteration" if (table.name, name) == ("iterations", "number") else name
            least, most = RANGES.get(stored, (limits.least, limits.most))
            assert least <= limits.least, (table.name, name)
            assert limits.most <= most, (table.name, name)


def of_honest(host: str) -> list[netmon_pb2.AgentMessage]:
    opening = netmon_pb2.AgentMessage(hello=encode_hello(hello(host=host, session=f"s{host}")))
    return [
        opening,
        *(netmon_pb2.AgentMessage(batch=encode_batch(batch)) for batch in honest_batches(60, f"of {host}")),
    ]


async def honest_and_mutated(directory: Path, mutator: Mutator | None, streams: int) -> set[grpc.StatusCode]:
    """How the mutated streams end, of which some are no protobuf at all; the honest ones are stored altogether."""
    codes = set()
    async with collector(directory) as stub, grpc.aio.insecure_channel(f"unix:{directory}/socket") as channel:
        raw = channel.stream_stream("/netmon.Collector/Stream")
        over = asyncio.Event()

        async def honest(host: str) -> AsyncIterator[netmon_pb2.AgentMessage]:
            messages = of_honest(host)
            for message in messages[:30]:
                yield message
            await over.wait()
            for message in messages[30:]:
                yield message

        calls = [stub.Stream(honest(host)) for host in HONEST]
        for number in range(streams if mutator else 0):
            opening = netmon_pb2.AgentMessage(hello=encode_hello(hello(host=f"evil{number % 3}", session=f"e{number}")))
            if number % 4 == 0:
                opening = mutator.mutated(opening)
            data = [message.SerializeToString() for message in (opening, *mutator.batches())]
            if number % 5 == 0:
                data.insert(1 + number % 7, mutator.random.randbytes(50))
            try:
                async for _ in raw(iter(data)):
                    pass
                codes.add(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())
        over.set()
        for call in calls:
            assert await last_stored(call) == 60
    return codes


def test_mutated_messages_by_grpc(tmp_path: Path) -> None:
    for name in ("honest", "both"):
        (tmp_path / name).mkdir()
    asyncio.run(honest_and_mutated(tmp_path / "honest", None, 0))
    codes = asyncio.run(honest_and_mutated(tmp_path / "both", Mutator(7), 15))
    # A stream that is still written to may be reset before its status has come: INTERNAL.
    assert codes & {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
    assert grpc.StatusCode.UNAVAILABLE not in codes
    assert honest_rows(tmp_path / "both" / "data") == honest_rows(tmp_path / "honest" / "data")


@pytest.mark.long
@pytest.mark.timeout(3600)  # the limit is one of CPU time
def test_a_million_mutated_messages() -> None:
    """A fifth of the sessions are let in, all others are only looked at."""
    script = Path(__file__).with_name("mutation_run.py")
    command = ["prlimit", f"--cpu={MOST_CPU_S}", sys.executable, str(script), "1000000", "1", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr or f"it ended with {done.returncode}, perhaps after {MOST_CPU_S} s of CPU"
    came = json.loads(done.stdout)
    assert came["failures"] == {}
    assert came["honest_rows_whole"]
    assert came["sent"] >= 1_000_000
    assert max(came["rss_mb_peaks"]) < came["rss_mb_at_start"] + MOST_MB
