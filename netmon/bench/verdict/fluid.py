# SPDX-License-Identifier: Apache-2.0
"""A transfer as a fluid: every link carries its share of a collective, and at each step waits for the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

PATTERNS = ("ring", "tree", "star", "clique")
GOODPUT = 1448 / 1514
"""Payload of a full frame."""

STEPS = 12
"""Of a phase: blocks of a fusion buffer, chunks of a ring."""


def phases(pattern: str, ranks: int, payload: float) -> list[_Floats]:
    """What each link carries, phase by phase: arrays (2·ranks,), payload bytes; link 2·r is what rank r receives.

    payload: of the gradients of one rank. Star and tree reduce towards rank 0, then send the sum back; children of rank
    k are 2k+1 and 2k+2. Ring and clique do both in 2·(N−1)/N of the gradients per link (thesis, equation 3.1).
    """
    if pattern in ("ring", "clique"):
        return [np.full(2 * ranks, 2 * (ranks - 1) / ranks * payload)]
    up, down = np.zeros(2 * ranks), np.zeros(2 * ranks)
    for rank in range(1, ranks):
        parent = 0 if pattern == "star" else (rank - 1) // 2
        for sender, receiver, carried in ((rank, parent, up), (parent, rank, down)):
            carried[2 * sender + 1] += payload
            carried[2 * receiver] += payload
    return [up, down]


@dataclass(frozen=True)
class Squeeze:
    """For a while, a link has less for the job: what others take, or what is not there. Times in ns."""

    link: int
    since_ns: float
    until_ns: float
    left: float  # of the link's rate, that the job can have


@dataclass(frozen=True)
class Moved:
    """What links carried: payload bytes until a moment, between knots linear. Arrays (links, knots), times in ns."""

    time_ns: _Floats
    payload: _Floats

    @property
    def end_ns(self) -> float:
        """When the last link has moved all."""
        return float(self.time_ns.max())

    def stalled(self, at_ns: float, for_ns: float) -> "Moved":
        """The same, if nothing moves for a while from a moment within it on."""
        time, payload = [], []
        for when, moved in zip(self.time_ns, self.payload, strict=True):
            place = int(np.searchsorted(when, at_ns, "right"))
            until = np.full(2, np.interp(at_ns, when, moved))
            time.append(np.concatenate([when[:place], [at_ns, at_ns + for_ns], when[place:] + for_ns]))
            payload.append(np.concatenate([moved[:place], until, moved[place:]]))
        return Moved(np.array(time), np.array(payload))

    def in_buckets(self, width_ns: int) -> tuple[int, _Floats]:
        """The first bucket of this width, and bytes by link and bucket from there on."""
        first, last = int(self.time_ns.min() // width_ns), int(self.end_ns // width_ns)
        edges = np.arange(first, last + 2, dtype=np.float64) * width_ns
        until = [np.interp(edges, *of_link) for of_link in zip(self.time_ns, self.payload, strict=True)]
        return first, np.diff(np.array(until), axis=1)


def transfer(begin_ns: float, parts: Sequence[_Floats], rate_bps: float, squeeze: Squeeze | None) -> Moved:
    """A collective that begins now. rate_bps: of every link, each way.

    Each part goes in steps: in one, a link moves its bytes as fast as it can; the next one begins when all have. So a
    slow link is busy all the time, and the others wait for it.
    """
    links = len(parts[0])
    pace = rate_bps / 8e9 * GOODPUT
    since, until = (squeeze.since_ns, squeeze.until_ns) if squeeze else (begin_ns, begin_ns)
    slow = np.ones(links)
    if squeeze:
        slow[squeeze.link] = squeeze.left
    now, done = begin_ns, np.zeros(links)
    times, payloads = [], []
    for part in parts:
        for _ in range(STEPS):
            bytes_ = part / STEPS
            end = _end(now, bytes_, pace, slow, since, until)
            for knot in (np.full(links, now), np.clip(since, now, end), np.clip(until, now, end), end):
                squeezed = np.clip(np.minimum(knot, until) - max(now, since), 0, None)
                times.append(knot)
                payloads.append(done + pace * (knot - now - (1 - slow) * squeezed))
            done = done + bytes_
            now = float(end.max())
    return Moved(np.array(times).T, np.array(payloads).T)


def _end(now: float, bytes_: _Floats, pace: float, slow: _Floats, since: float, until: float) -> _Floats:
    """When each link has moved its bytes, if it has `slow` of its pace in [since, until)."""
    before = pace * max(0.0, since - now)
    begin = max(now, since)
    within = pace * slow * max(0.0, until - begin)
    rest = np.clip(bytes_ - before, 0, None)
    later: _Floats = np.where(rest <= within, begin + rest / (pace * slow), max(begin, until) + (rest - within) / pace)
    found: _Floats = np.where(bytes_ <= before, now + bytes_ / pace, later)
    return found
