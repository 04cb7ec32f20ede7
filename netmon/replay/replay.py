# SPDX-License-Identifier: Apache-2.0
"""Captures → what an agent on their host would have sent."""

import hashlib
import ipaddress
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError
from netmon.records import (
    BUCKET,
    FLOW_KEY,
    Batch,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    LedgerSample,
    Owner,
    Table,
    address,
)
from netmon.replay.frames import (
    CHUNK,
    DIRECTION_SHIFT,
    INTERFACE_SHIFT,
    Capture,
    Frames,
    concatenated,
    frames_of,
    is_ip,
    knows_direction,
)
from netmon.version import __version__

JOB = "training"


@dataclass(frozen=True)
class Rule:
    """A flow is the training's if it has one of the ports at either end, and one of the addresses at the far end.

    What is empty is not requested; without both, every flow's owner is unknown.
    """

    ports: frozenset[int] = frozenset()
    addresses: frozenset[str] = frozenset()

    def owner(self, flow: Flow) -> Owner:
        """The training's, somebody else's (cross), or not known."""
        if not self.ports and not self.addresses:
            return Owner()
        port = not self.ports or not self.ports.isdisjoint((flow.src_port, flow.dst_port))
        far = flow.dst if flow.direction is Direction.TX else flow.src
        training = port and (not self.addresses or far in self.addresses)
        return Owner(job=JOB if training else "", source="rule")


# --- On which side of the frames the captured host is.

INTERFACE = 1
"""The one interface that all captures are taken to be of."""

_UNSPECIFIED = np.frombuffer(bytes(10) + b"\xff\xff" + bytes(12), np.uint64)[1:]
"""0.0.0.0 and :: as the second words of addresses; the first is 0."""

_CANDIDATES = 1000


class HostSide:
    """Which frames the host sent: those with one of its addresses as the source.

    What has no address (ARP, LLDP, …) or not yet one (DHCP) is the host's if it comes from the hardware address of
    frames that are.
    """

    def __init__(self, addresses: Iterable[bytes]) -> None:
        """addresses: 16 bytes each, IPv4 as mapped; none: only what the capture says itself."""
        self._addresses = [np.frombuffer(each, np.uint64) for each in addresses]
        self._hardware = np.empty(0, np.uint64)

    def complete(self, frames: Frames) -> None:
        """Set interface and direction in the frames' words."""
        words = frames.words
        named = is_ip(frames) & ((words[:, 0] != 0) | ~np.isin(words[:, 1], _UNSPECIFIED))
        sent = np.zeros(len(frames), np.bool_)
        for high, low in self._addresses:
            sent |= (words[:, 0] == high) & (words[:, 1] == low)
        sent &= named
        hardware = frames.hardware_source
        own = np.unique(hardware[sent & (hardware != 0)])
        if len(np.setdiff1d(own, self._hardware)):
            self._hardware = np.union1d(own, self._hardware)
        sent |= ~named & np.isin(hardware, self._hardware)
        if not self._addresses:
            sent = frames.direction == Direction.TX
        words[:, 4] |= np.uint64(INTERFACE) << INTERFACE_SHIFT
        words[:, 4] |= sent.astype(np.uint64) << DIRECTION_SHIFT


def packed(text: str) -> bytes:
    """An address as a FLOW_KEY has it. Raises ValueError where it is none."""
    ip = ipaddress.ip_address(text)
    return b"\0" * 10 + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed


def guess_addresses(frames: Frames) -> tuple[list[str], str]:
    """The endpoint that is in most frames, one of each version of IP, and in words how sure that is."""
    found: dict[int, tuple[str, int]] = {}
    rivals = []
    for text, count in _common_endpoints(frames):
        ip = ipaddress.ip_address(text)
        if ip.is_multicast or ip.is_unspecified or text == "255.255.255.255":
            continue
        if ip.version not in found:
            found[ip.version] = text, count
        elif count == found[ip.version][1]:
            rivals.append(text)
    names = [text for text, _ in found.values()]
    share = sum(count for _, count in found.values()) / max(1, len(frames))
    line = f"taking {' and '.join(names)} to be the host: in {share:.0%} of the first {len(frames)} frames"
    return names, f"{line}, but as many have {', '.join(rivals[:3])}" if rivals else line


def _common_endpoints(frames: Frames) -> list[tuple[str, int]]:
    """Addresses by the number of frames that they are in, most first; of equals, who sent first."""
    keys = frames.words[is_ip(frames)].view(FLOW_KEY)[:, 0]
    ends = np.concatenate([keys["src"], keys["dst"]])
    _, first, counts = np.unique(ends.view("S16"), return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))[:_CANDIDATES]
    return [(address(ends[i].tobytes()), count) for i, count in zip(first[order], counts[order].tolist(), strict=True)]


# --- Frames → rows per flow and bucket; flow keys → numbered, described flows.

IDLE_NS = 300_000_000_000
"""A flow that has been idle for so long when a portion begins is over: if it comes back it is a new one."""

_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)


class FlowCounts:
    """The flows of a replay, and their counts in buckets."""

    def __init__(self, bucket_ns: int, owner: Callable[[Flow], Owner]) -> None:
        """owner: says whose a new flow is."""
        self._bucket_ns, self._owner = bucket_ns, owner
        self._ids: dict[bytes, int] = {}
        self._last_ns: dict[bytes, int] = {}
        self._next_id = 1
        self._tidied_ns = 0

    def count(self, frames: Frames, since_ns: int) -> tuple[Table, list[Flow]]:
        """At least one frame → rows, dtype BUCKET, and the flows that are new among them.

        since_ns: a time that the former portions reached, by which flows are idle. Multiple rows may be of one flow
        and bucket, for only CHUNK frames are sure to fit a row.
        """
        self._tidy(since_ns)
        parts = [self._count(frames.take(slice(at, at + CHUNK))) for at in range(0, len(frames), CHUNK)]
        return np.concatenate([rows for rows, _ in parts]), [flow for _, new in parts for flow in new]

    def _count(self, frames: Frames) -> tuple[Table, list[Flow]]:
        start = frames.time_ns // self._bucket_ns * self._bucket_ns
        first, of_frame = _distinct(frames.words)
        times, of_time = np.unique(start, return_inverse=True)
        cells, of_cell = np.unique(of_time * len(first) + of_frame, return_inverse=True)
        flow = cells % len(first)
        rows = np.zeros(len(cells), BUCKET)
        rows["bucket_start_ns"] = times[cells // len(first)]
        rows["packets"] = np.bincount(of_cell)
        rows["wire_bytes"] = np.bincount(of_cell, weights=frames.wire_bytes)
        rows["payload_bytes"] = np.bincount(of_cell, weights=frames.payload_bytes)
        begun, ended = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), np.int64)
        np.minimum.at(begun, of_frame, start)
        np.maximum.at(ended, of_frame, start)
        ids, new = self._number(np.ascontiguousarray(frames.words[first]), begun, ended)
        rows["flow_id"] = ids[flow]
        return rows, new

    def _number(
        self, words: npt.NDArray[np.uint64], begun: npt.NDArray[np.int64], ended: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], list[Flow]]:
        """Walks the flows of a portion one by one, not its frames."""
        ids, new = np.empty(len(words), np.uint32), []
        for i, key in enumerate(words.view("V40")[:, 0].tolist()):
            known = self._ids.get(key)
            if known is None:
                known = self._ids[key] = self._next_id
                self._next_id += 1
                new.append(self._describe(known, words[i], int(begun[i])))
            ids[i] = known
            self._last_ns[key] = max(self._last_ns.get(key, 0), int(ended[i]))
        return ids, new

    def _describe(self, flow_id: int, words: npt.NDArray[np.uint64], first_ns: int) -> Flow:
        src, dst, src_port, dst_port, link_protocol = words.view(FLOW_KEY)[0].item()
        direction = Direction(link_protocol >> 8 & 1)
        ends = (address(src), address(dst), src_port, dst_port)
        flow = Flow(flow_id, link_protocol >> 9, direction, *ends, link_protocol & 0xFF, first_ns)
        return replace(flow, owner=self._owner(flow))

    def _tidy(self, now_ns: int) -> None:
        if now_ns < self._tidied_ns + IDLE_NS // 5:
            return
        self._tidied_ns = now_ns
        for key in [key for key, last_ns in self._last_ns.items() if last_ns < now_ns - IDLE_NS]:
            del self._last_ns[key], self._ids[key]


def _distinct(words: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of (n, 5) words: a row of each value that occurs, and the value's number in every row."""
    hashed = np.zeros(len(words), np.uint64)
    for column, multiplier in enumerate(_MULTIPLIERS):
        hashed = (hashed ^ words[:, column]) * np.uint64(multiplier)
        hashed ^= hashed >> np.uint64(31)
    _, first, number = np.unique(hashed, return_index=True, return_inverse=True)
    if not (words[first[number]] == words).all():  # two values with one hash: seldom enough to do it the slow way
        _, first, number = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return first, number


# --- Multiple captures as one: frames in portions that follow each other in time.

REORDER_NS = 1_000_000_000
"""Frames that come later than others by up to so much are still put in their place."""

_PORTION = 1 << 16
"""Frames that are read ahead before a portion is given, for the collector's cost is one per batch."""


@dataclass
class Source:
    """A capture with what has been read ahead of it."""

    capture: Capture
    ahead: list[Frames] = field(default_factory=list)
    reached_ns: int = -1  # the latest frame so far
    ended: bool = False

    def advance(self) -> None:
        chunk = self.capture.read()
        if chunk is None:
            self.ended = True
            return
        frames = frames_of(chunk)
        self.reached_ns = max(self.reached_ns, int(frames.time_ns.max()))
        self.ahead.append(frames)


def merged(sources: Sequence[Source], bucket_ns: int) -> Iterator[tuple[Frames, int]]:
    """Portions of frames, each with a time on the grid of buckets before which all of them are, and no more will be.

    Sources may have been advanced already. A capture that is not sorted gives late frames all the same.
    """
    while live := [source for source in sources if not source.ended]:
        # Only the source that is behind can be holding the others up.
        min(live, key=lambda source: source.reached_ns).advance()
        live = [source for source in live if not source.ended]
        ahead = sum(len(frames) for source in sources for frames in source.ahead)
        if ahead >= _PORTION and live and min(source.reached_ns for source in live) >= 0:
            until_ns = min(source.reached_ns for source in live) // bucket_ns * bucket_ns
            yield from _before(sources, until_ns)
    latest = max((source.reached_ns for source in sources), default=-1)
    yield from _before(sources, (latest // bucket_ns + 1) * bucket_ns)


def _before(sources: Sequence[Source], until_ns: int) -> Iterator[tuple[Frames, int]]:
    due = []
    for source in sources:
        later = []
        for frames in source.ahead:
            now = frames.time_ns < until_ns
            if now.any():
                due.append(frames if now.all() else frames.take(now))
            if not now.all():
                later.append(frames.take(~now))
        source.ahead = later
    if due:
        yield concatenated(due), until_ns


# --- The account of the link, with what was captured in the place of the NIC's counters.

_INTERVAL_NS = 1_000_000_000


class CaptureLedger:
    """Cumulative samples of the capture, one per interval of its own time."""

    def __init__(self, start_ns: int) -> None:
        """The account begins with nothing."""
        self._packets, self._bytes = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._due_ns = start_ns + _INTERVAL_NS
        self._first = self._samples(start_ns)

    def add(self, frames: Frames) -> None:
        """Take in frames whose direction is known."""
        direction = (frames.words[:, 4] >> DIRECTION_SHIFT & np.uint64(1)).astype(np.intp)
        self._packets += np.bincount(direction, minlength=2)
        self._bytes += np.bincount(direction, weights=frames.wire_bytes, minlength=2).astype(np.int64)

    def due(self, now_ns: int, last: bool) -> list[LedgerSample]:
        """A sample per direction if it is time; the first ones at the first call. All frames before now are in."""
        samples, self._first = self._first, []
        if now_ns >= self._due_ns or last:
            self._due_ns = now_ns + _INTERVAL_NS
            samples = samples + self._samples(now_ns)
        return samples

    def _samples(self, now_ns: int) -> list[LedgerSample]:
        nothing = [0] * 9
        return [
            LedgerSample(INTERFACE, way, now_ns, size, packets, 0, packets, packets, size, size, *nothing)
            for way in Direction
            for packets, size in [(int(self._packets[way]), int(self._bytes[way]))]
        ]


# --- replay


BYTE_BASIS = "frames as captured, without preamble and FCS; one header per captured frame"

_SUPER_PACKET = 10_000  # bytes: longer frames than any link's
_BEGINNING = 1 << 16  # bytes of a capture that distinguish it from others

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Options of a replay."""

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
        """All of it, in the order of time; the last one has the last ledger sample. Logs what was invalid."""
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
    """The same for the same captures, so that a dataset can find out that it has them."""
    digest = hashlib.sha256(settings.host.encode())
    for path in settings.captures:
        with path.open("rb") as file:
            digest.update(file.read(_BEGINNING))
        digest.update(str(path.stat().st_size).encode())
    return f"replay-{digest.hexdigest()[:12]}"
