# SPDX-License-Identifier: Apache-2.0
"""The byte-conservation account: NIC counter = attributed + overflow + lost in kernel + lost in agent + not visible."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.host.flows import Links
from netmon.dl.segments import Segments
from netmon.records import LedgerSample

_COUNTERS = (
    *("nic_bytes", "nic_packets", "frames", "packets", "frame_bytes", "wire_bytes"),
    *("overflow_wire_bytes", "lost_kernel_wire_bytes", "lost_agent_wire_bytes"),
)


@dataclass(frozen=True)
class LedgerRow:
    """One link and interval [start, end) in mono time; all bytes are wire bytes but nic_counter_bytes."""

    link: int
    start_ns: int
    end_ns: int
    nic_bytes: int
    attributed_bytes: int
    overflow_bytes: int
    lost_kernel_bytes: int
    lost_agent_bytes: int
    nic_counter_bytes: int  # as the NIC counts
    nic_packets: int

    @property
    def invisible_bytes(self) -> int:
        """What the NIC carried and nothing accounts for.

        Below 0 where a bucket straddles the interval's edge, or came too late for the interval before.
        """
        known = self.attributed_bytes + self.overflow_bytes + self.lost_kernel_bytes + self.lost_agent_bytes
        return self.nic_bytes - known

    @property
    def coverage(self) -> float:
        """Attributed / NIC; nan where the NIC carried nothing."""
        return self.attributed_bytes / self.nic_bytes if self.nic_bytes else math.nan


def ledger_row(link: int, before: LedgerSample, after: LedgerSample, attributed_bytes: int) -> LedgerRow | None:
    """The account between two samples; None where a counter went backwards, so that there is no account."""
    delta = {name: getattr(after, name) - getattr(before, name) for name in _COUNTERS}
    if min(delta.values()) < 0:
        return None
    return LedgerRow(
        link=link,
        start_ns=before.time_ns,
        end_ns=after.time_ns,
        nic_bytes=_nic_wire_bytes(delta, after.nic_header_bytes),
        attributed_bytes=attributed_bytes,
        overflow_bytes=delta["overflow_wire_bytes"],
        lost_kernel_bytes=delta["lost_kernel_wire_bytes"],
        lost_agent_bytes=delta["lost_agent_wire_bytes"],
        nic_counter_bytes=delta["nic_bytes"],
        nic_packets=delta["nic_packets"],
    )


def _nic_wire_bytes(delta: Mapping[str, int], header_bytes: int) -> int:
    """The NIC's figure in wire bytes.

    A NIC whose packets are the segments that the hook saw counts what is on the link, but for header_bytes of each
    (hardware, or an interface without offloads). One whose packets are the frames, as software interfaces pass
    them on, counts a super-packet with one header: the hook knows both the bytes and the wire bytes of those frames.
    """
    frames, segments, counted = delta["frames"], delta["packets"], delta["nic_packets"]
    if abs(counted - segments) < abs(counted - frames):
        return delta["nic_bytes"] + header_bytes * segments
    return delta["nic_bytes"] + delta["wire_bytes"] - (delta["frame_bytes"] - header_bytes * frames)


class LedgerAccount:
    """The ledger of one session's links: samples and settled rows in, rows of the dataset out."""

    def __init__(self, links: Links, stored_until_ns: dict[int, int], totals: dict[int, npt.NDArray[np.int64]]) -> None:
        """Begin; the arguments tell per link what the dataset already holds, for a session that is resumed."""
        self._links = links
        self._stored_until_ns = stored_until_ns
        self._samples: list[deque[LedgerSample]] = [deque() for _ in range(len(links))]
        self._attributed = Segments(len(links))
        self._told_until: npt.NDArray[np.int64] = np.zeros(len(links), np.int64)
        self.resets = 0  # intervals left out because a counter went backwards
        # Per link: NIC, attributed, overflow, lost in kernel, lost in agent.
        self.totals: npt.NDArray[np.int64] = np.zeros((len(links), 5), np.int64)
        for link, total in totals.items():
            self.totals[link] = total

    def sample(self, sample: LedgerSample, settled_ns: int) -> None:
        """Take in the counters of a link; settled_ns: rows before it have been added."""
        samples = self._samples[self._links.number(sample.interface, sample.direction)]
        if not samples or sample.time_ns > samples[-1].time_ns:
            samples.append(sample)
            self._attributed.cut(sample.time_ns, settled_ns)

    def add(self, start_ns: npt.NDArray[np.int64], link: npt.NDArray[np.int64], wire: npt.NDArray[np.int64]) -> None:
        """Add settled bucket rows. One that comes after its interval was given out is counted in the next."""
        self._attributed.add(np.maximum(start_ns, self._told_until[link]), link, wire)

    def rows(self, settled_ns: int) -> list[LedgerRow]:
        """The intervals that ended by settled_ns and are not in the dataset yet."""
        rows = []
        for link, samples in enumerate(self._samples):
            while len(samples) > 1 and samples[1].time_ns <= settled_ns:
                before, after = samples.popleft(), samples[0]
                attributed = int(self._attributed.between(before.time_ns, after.time_ns)[link])
                self._told_until[link] = after.time_ns
                row = ledger_row(link, before, after, attributed)
                if row is None:
                    self.resets += 1
                elif after.time_ns > self._stored_until_ns.get(link, -1):
                    self._count(row)
                    rows.append(row)
        needed = self.needed_since()
        if needed is not None:
            self._attributed.forget(needed)
        return rows

    def needed_since(self) -> int | None:
        """Start of the earliest interval that is still open (mono ns)."""
        return min((samples[0].time_ns for samples in self._samples if samples), default=None)

    def _count(self, row: LedgerRow) -> None:
        known = (row.nic_bytes, row.attributed_bytes, row.overflow_bytes, row.lost_kernel_bytes, row.lost_agent_bytes)
        self.totals[row.link] += np.array(known, np.int64)
