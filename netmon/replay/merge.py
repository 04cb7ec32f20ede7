# SPDX-License-Identifier: Apache-2.0
"""Several captures as one: frames in portions that follow each other in time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from netmon.replay.capture import Capture
from netmon.replay.frames import Frames, concatenated, frames_of

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
        """Read on."""
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
