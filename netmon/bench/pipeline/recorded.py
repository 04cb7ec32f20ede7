# SPDX-License-Identifier: Apache-2.0
"""The batches of a load, made once and with fixed clocks, to be played to one worker and to several."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from netmon.bench.pipeline.agents import HostReport, Report, record
from netmon.bench.pipeline.host import host_name
from netmon.bench.pipeline.load import WIDTH_MS, Load
from netmon.bench.pipeline.truth import Verdict, judge
from netmon.records import Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello
from netmon.wire.bus import (
    BATCHES,
    STREAM,
    Bus,
    BusError,
    BusSettings,
    Label,
    batch_subject,
    hello_subject,
    host_of,
    name_of,
)
from netmon.wire.bus_streams import make_streams

_AT_A_TIME = 128  # messages on their way to the bus
_ANSWER_S = 60.0
_OWNERS = "netmon-owners"  # bucket: host → worker


@dataclass(frozen=True)
class Recorded:
    """hellos, batches: of each host."""

    load: Load
    utc_ns: int  # when the simulation began
    hellos: Sequence[Hello]
    batches: Sequence[Sequence[bytes]]

    @classmethod
    def make(cls, load: Load) -> "Recorded":
        """Its end is about now. Takes some 0.1 ms of CPU per batch, and the memory that they have on the wire."""
        utc_ns = time.time_ns() - load.seconds * 1_000_000_000
        hosts = [record(load, host, utc_ns) for host in range(load.hosts)]
        return cls(load, utc_ns, [hello for hello, _ in hosts], [batches for _, batches in hosts])

    @property
    def spans(self) -> int:
        """Batches of each host."""
        return self.load.seconds * self.load.batches

    @property
    def jobs(self) -> list[list[str]]:
        """Hosts of each job."""
        return [[host_name(host) for host in self.load.members(job)] for job in range(self.load.jobs)]

    def verdict(self, data: Path) -> Verdict:
        """A dataset of all of them, compared with the truth."""
        hosts = [HostReport(self.spans, self.spans, self.spans, [(0, WIDTH_MS)]) for _ in self.hellos]
        nothing = float("nan")
        return judge(data, self.load, Report(0, self.utc_ns, hosts, nothing, nothing, nothing, nothing, nothing))


class Player:
    """Publishes recorded batches, as their agents would have."""

    def __init__(self, bus: Bus, recorded: Recorded) -> None:
        """`playing` makes one."""
        self.bus, self._recorded = bus, recorded
        self._owners: dict[str, str] = {}
        self._owners_at = 0  # the bucket's last change when it was read

    async def introduce(self) -> None:
        """All hosts."""
        for hello in self._recorded.hellos:
            data = netmon_pb2.AgentMessage(hello=encode_hello(hello)).SerializeToString()
            await self.bus.jetstream.publish(hello_subject(hello.host, hello.session), data, timeout=_ANSWER_S)

    async def publish(self, first: int, last: int) -> None:
        """These batches of every host, as fast as the bus takes them."""
        await self._put(
            (hello, batches[number], Label(hello.session, number + 1, number, number))
            for number in range(first, last)
            for hello, batches in zip(self._recorded.hellos, self._recorded.batches, strict=True)
        )

    async def end(self) -> None:
        """Every agent's last word."""
        spans = self._recorded.spans
        await self._put((hello, b"", Label(hello.session, 0, spans, spans)) for hello in self._recorded.hellos)

    async def waiting(self) -> dict[str, int]:
        """Messages by host that nobody has acknowledged."""
        with self.bus.errors("look at"):
            info = await self.bus.jetstream.stream_info(STREAM, subjects_filter=f"{BATCHES}.*")
        return {host_of(subject): count for subject, count in (info.state.subjects or {}).items()}

    async def hold_back(self, seconds: float) -> None:
        """The bus hands nothing out for so long, counted anew. Raises BusError; it takes nats-server 2.11 or later."""
        until = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        request = json.dumps({"pause_until": until.isoformat()}).encode()
        with self.bus.errors("hold back what is handed out by"):
            for name in await self._consumers():
                subject = f"$JS.API.CONSUMER.PAUSE.{STREAM}.{name}"
                answer = json.loads((await self.bus.client.request(subject, request, timeout=_ANSWER_S)).data)
                if answer.get("error"):
                    raise BusError(f"the bus does not hold back what it hands out: {answer['error']}")

    async def owners(self) -> dict[str, str]:
        """The worker that has each host, as the workers say it to each other."""
        prefix, stream = f"$KV.{_OWNERS}.", f"KV_{_OWNERS}"
        with self.bus.errors("look at"):
            jetstream = self.bus.jetstream
            info = await jetstream.stream_info(stream, subjects_filter=f"{prefix}>")
            if info.state.last_seq != self._owners_at:
                subjects = list(info.state.subjects or {})
                found = await asyncio.gather(*(jetstream.get_last_msg(stream, subject) for subject in subjects))
                said = dict(zip((name_of(subject.removeprefix(prefix)) for subject in subjects), found, strict=True))
                self._owners = {host: message.data.decode() for host, message in said.items() if message.data}
                self._owners_at = info.state.last_seq
        return self._owners

    async def _consumers(self) -> list[str]:
        names: list[str] = []
        while some := await self.bus.jetstream.consumers_info(STREAM, len(names)):
            names += [info.name for info in some]
        return names

    async def _put(self, messages: Iterable[tuple[Hello, bytes, Label]]) -> None:
        coming = iter(messages)
        while some := list(itertools.islice(coming, _AT_A_TIME)):
            with self.bus.errors("publish to"):
                await asyncio.gather(
                    *(
                        self.bus.jetstream.publish(
                            batch_subject(hello.host), data, timeout=_ANSWER_S, headers=label.headers()
                        )
                        for hello, data, label in some
                    )
                )


@asynccontextmanager
async def playing(settings: BusSettings, recorded: Recorded) -> AsyncIterator[Player]:
    """All hosts are introduced. Raises BusError."""
    bus = await Bus.connect(settings, "netmon bench", lasting=True)
    try:
        await make_streams(bus)
        player = Player(bus, recorded)
        await player.introduce()
        yield player
    finally:
        await bus.close()
