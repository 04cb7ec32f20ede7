# SPDX-License-Identifier: Apache-2.0
"""Captures → what an agent on their host would have sent."""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from netmon.errors import DataError
from netmon.records import Batch, ClockSample, Hello, Interface
from netmon.replay.capture import Capture
from netmon.replay.flows import FlowCounts
from netmon.replay.frames import Frames, concatenated, knows_direction
from netmon.replay.host import INTERFACE, HostSide, guess_addresses, packed
from netmon.replay.ledger import CaptureLedger
from netmon.replay.merge import REORDER_NS, Source, merged
from netmon.replay.rule import Rule
from netmon.version import __version__

BYTE_BASIS = "frames as captured, without preamble and FCS; one header per captured frame"

_SUPER_PACKET = 10_000  # bytes: longer frames than any link's
_BEGINNING = 1 << 16  # bytes of a capture that tell it from others

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What a replay is told."""

    captures: tuple[Path, ...]
    host: str
    bucket_ns: int = 10_000
    capacity_bps: int = 0
    addresses: tuple[str, ...] = ()
    rule: Rule = field(default_factory=Rule)


class Replay:
    """One host's captures, opened and looked at; to be closed."""

    def __init__(self, settings: Settings) -> None:
        """Open all of them. Raises DataError where one cannot be read or none holds a packet."""
        self.settings = settings
        self.bytes = 0
        self._sources: list[Source] = []
        self._cut = self._long = self._late = 0
        try:
            for path in settings.captures:
                self._sources.append(Source(Capture(path)))
                self.bytes += path.stat().st_size
            for source in self._sources:
                source.advance()
            begun = [frames for source in self._sources for frames in source.ahead]
            if not begun:
                why = next((f": {s.capture.damage}" for s in self._sources if s.capture.damage), "")
                raise DataError(f"cannot replay {', '.join(map(str, settings.captures))}: no packet in it{why}")
            beginning = concatenated(begun)
            self._side = HostSide(map(packed, self._addresses(beginning)))
            self.hello = self._hello(beginning)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the captures."""
        for source in self._sources:
            source.capture.close()

    @property
    def position(self) -> int:
        """Of `bytes`, how many have been read."""
        return sum(source.capture.position for source in self._sources)

    @property
    def frames(self) -> int:
        """Frames read so far."""
        return sum(source.capture.frames for source in self._sources)

    def damage(self) -> list[str]:
        """One line per capture that could not be read to its end."""
        return [
            f"{source.capture.path} is whole only up to its frame {source.capture.frames}: {source.capture.damage}"
            for source in self._sources
            if source.capture.damage
        ]

    def batches(self) -> Iterator[Batch]:
        """All of it, in the order of time; the last one has the last ledger sample. Says what is odd at the end."""
        counts = FlowCounts(self.settings.bucket_ns, self.settings.rule.owner)
        ledger = CaptureLedger(self.hello.clock.mono_ns)
        horizon_ns = self.hello.clock.mono_ns
        for sequence, (frames, until_ns) in enumerate(merged(self._sources, self.settings.bucket_ns), start=1):
            self._notice(frames, horizon_ns)
            self._side.complete(frames)
            ledger.add(frames)
            rows, flows = counts.count(frames, horizon_ns)
            horizon_ns = max(horizon_ns, until_ns)
            last = all(source.ended for source in self._sources)
            samples = ledger.due(horizon_ns, last)
            yield Batch(sequence, self._clock(horizon_ns), horizon_ns, rows, flows, ledger=samples)
        self._say()

    def _addresses(self, beginning: Frames) -> list[str]:
        if self.settings.addresses or knows_direction(beginning):
            return list(self.settings.addresses)
        addresses, how = guess_addresses(beginning)
        if addresses:
            log.info("%s; if that is wrong, give --address", how)
        return addresses

    def _hello(self, beginning: Frames) -> Hello:
        settings, first_ns = self.settings, int(beginning.time_ns.min())
        self._error_ns = 1 if (beginning.time_ns % 1000).any() else 1000
        basis = Interface(INTERFACE, "capture", settings.capacity_bps, "pcap", "pcap", byte_basis=BYTE_BASIS)
        start_ns = first_ns // settings.bucket_ns * settings.bucket_ns
        return Hello(
            settings.host, _session(settings), settings.bucket_ns, self._clock(start_ns), (basis,), __version__
        )

    def _clock(self, now_ns: int) -> ClockSample:
        return ClockSample(now_ns, now_ns, self._error_ns)

    def _notice(self, frames: Frames, horizon_ns: int) -> None:
        self._cut += int(frames.cut.sum())
        self._long += int((frames.wire_bytes > _SUPER_PACKET).sum())
        self._late += int((frames.time_ns < horizon_ns - REORDER_NS).sum())

    def _say(self) -> None:
        if self._cut:
            log.warning("%d frames were captured without all their headers: they have no flow but their EtherType; "
                        "capture with a longer -s", self._cut)  # fmt: skip
        if self._long:
            log.warning("%d frames are longer than any link's: they were captured before they were segmented, "
                        "so the headers of their segments are not in wire_bytes", self._long)  # fmt: skip
        if self._late:
            log.warning("%d frames come more than a second late: sort the capture for exact windows", self._late)


def _session(settings: Settings) -> str:
    """The same for the same captures, so that a dataset can tell that it has them."""
    digest = hashlib.sha256(settings.host.encode())
    for path in settings.captures:
        with path.open("rb") as file:
            digest.update(file.read(_BEGINNING))
        digest.update(str(path.stat().st_size).encode())
    return f"replay-{digest.hexdigest()[:12]}"
