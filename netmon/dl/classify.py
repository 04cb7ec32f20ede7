# SPDX-License-Identifier: Apache-2.0
"""Which class a row's bytes belong to: a property of the flow's owner and of the window of its link."""

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from netmon.records import Class, Owner

NS_PER_S = 1_000_000_000
_FEW_CELLS = 65_536  # that may be counted one by one, empty ones included


def flow_class(owner: Owner) -> Class:
    """DL_ONLY for a rank's flow (its rows may become DL_SHARED), CROSS for a known other one, else UNCLASSIFIED."""
    if owner.job:
        return Class.DL_ONLY
    return Class.CROSS if owner.source else Class.UNCLASSIFIED


def crosses(classes: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Which of these are cross traffic: foreign to every job, so that a link that carries enough of it is shared."""
    is_cross: npt.NDArray[np.bool_] = classes == Class.CROSS
    return is_cross


def window_width(share_window_ns: int, bucket_ns: int) -> int:
    """The share window in whole buckets, at least one, so that no bucket lies in two windows (ns)."""
    return max(1, -(-share_window_ns // bucket_ns)) * bucket_ns


@dataclass(frozen=True)
class Windows:
    """The windows of the links with traffic; arrays have one entry per (link, window) but where noted.

    A pair is a window and a job that has rows in it.
    """

    number: npt.NDArray[np.int64]  # window k is [k·width, (k+1)·width) of the mono clock; ascending per link
    link: npt.NDArray[np.int64]  # ascending
    wire_bytes: npt.NDArray[np.int64]
    cross_bytes: npt.NDArray[np.int64]  # payload
    gradient_bytes: npt.NDArray[np.int64]  # payload of all jobs
    enough: npt.NDArray[np.float64]  # bytes of foreign payload from which the window is shared
    of_row: npt.NDArray[np.intp]  # (rows,): the entry of each row
    pair_entry: npt.NDArray[np.int64]  # (pairs,), ascending
    pair_job: npt.NDArray[np.int64]  # (pairs,), ascending within an entry
    pair_shared: npt.NDArray[np.bool_]  # (pairs,)
    pair_of_row: npt.NDArray[np.intp]  # (DL rows,): the pair of each of them

    @property
    def shared_for_others(self) -> npt.NDArray[np.bool_]:
        """Which entries are shared as a job sees it that has no rows there."""
        return _shared(self.cross_bytes + self.gradient_bytes, self.enough)

    def shared(self, job: int) -> npt.NDArray[np.bool_]:
        """Which entries are shared as the job sees it: foreign payload, cross and other jobs' gradients, is enough.

        Unclassified traffic does not count: not knowing is not evidence. Nor does another job's control traffic, which
        is small and has no period that would match this job's.
        """
        flags = self.shared_for_others
        own = self.pair_job == job
        flags[self.pair_entry[own]] = self.pair_shared[own]
        return flags


def _shared(foreign: npt.NDArray[np.int64], enough: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = (foreign > 0) & (foreign >= enough)
    return flags


@dataclass(frozen=True)
class Rows:
    """What classification asks about rows; all arrays (rows,)."""

    start_ns: npt.NDArray[np.int64]
    link: npt.NDArray[np.int64]
    flow_class: npt.NDArray[np.uint8]
    job: npt.NDArray[np.int64]  # of a DL row: a number ≥ 0
    gradient: npt.NDArray[np.bool_]  # a DL row of gradient traffic
    wire_bytes: npt.NDArray[np.int64]
    payload_bytes: npt.NDArray[np.int64]


def share_windows(
    rows: Rows, capacity_bps: npt.NDArray[np.int64], window_ns: npt.NDArray[np.int64] | int, threshold: float
) -> Windows:
    """Sum rows into windows of their links; capacity_bps: one per link, 0 unknown; window_ns: one per link, or of all.

    Enough to share a window is threshold × capacity / 8 × width bytes; where the capacity is unknown, any byte.
    """
    width = np.broadcast_to(np.asarray(window_ns, np.int64), capacity_bps.shape)
    known = width[width > 0]
    alike = len(known) and (known == known[0]).all()  # dividing by one number takes a fraction of the time
    link, number, of_row = _windows(
        rows.start_ns // (known[0] if alike else width[rows.link]), rows.link, len(capacity_bps)
    )
    count = len(number)
    cross = _sums(of_row, rows.payload_bytes * crosses(rows.flow_class), count)
    dl = np.flatnonzero(rows.flow_class == Class.DL_ONLY)
    gradient, dl_row = rows.payload_bytes.take(dl) * rows.gradient.take(dl), of_row.take(dl)
    all_gradient = _sums(dl_row, gradient, count)
    enough = threshold * capacity_bps[link] / 8 * width[link] / NS_PER_S
    entry, job, of_pair = _pairs(dl_row, rows.job.take(dl))
    foreign = cross[entry] + all_gradient[entry] - _sums(of_pair, gradient, len(entry))
    return Windows(
        *(number, link, _sums(of_row, rows.wire_bytes, count), cross, all_gradient, enough, of_row),
        *(entry, job, _shared(foreign, enough[entry]), of_pair),
    )


def _windows(
    number: npt.NDArray[np.int64], link: npt.NDArray[np.int64], links: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """Link and number of each window that has rows, in this order, and the window of each row."""
    base = np.full(max(1, links), np.iinfo(np.int64).max)
    np.minimum.at(base, link, number)
    since = number - base.take(link)
    span = int(since.max(initial=0)) + 1
    cell = link * span + since
    if links * span <= 4 * len(cell) + _FEW_CELLS:
        there = np.zeros(links * span, np.bool_)
        there[cell] = True
        keys, of_row = np.flatnonzero(there), (np.cumsum(there) - 1).take(cell)
    else:
        keys, of_row = np.unique(cell, return_inverse=True)
    return keys // span, keys % span + base[keys // span], of_row


def _pairs(
    entry: npt.NDArray[np.intp], job: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    jobs = int(job.max(initial=0)) + 1
    cell = entry * jobs + job
    cells = (int(entry.max(initial=0)) + 1) * jobs
    if cells <= 4 * len(cell) + _FEW_CELLS:
        there = np.zeros(cells, np.bool_)
        there[cell] = True
        keys, of_pair = np.flatnonzero(there), (np.cumsum(there) - 1).take(cell)
    else:
        keys, of_pair = np.unique(cell, return_inverse=True)
    return keys // jobs, keys % jobs, of_pair


def _sums(index: npt.NDArray[np.intp], amount: npt.NDArray[np.integer], count: int) -> npt.NDArray[np.int64]:
    return np.bincount(index, weights=amount, minlength=count).astype(np.int64)


def row_classes(rows: Rows, windows: Windows) -> npt.NDArray[np.uint8]:
    """The class of each row, (rows,): its flow's, but DL_SHARED where a DL row lies in a window shared for its job."""
    classes = rows.flow_class.astype(np.uint8)
    dl = np.flatnonzero(classes == Class.DL_ONLY)
    classes[dl[np.flatnonzero(windows.pair_shared.take(windows.pair_of_row))]] = Class.DL_SHARED
    return classes


# --- What a training flow carries: gradients, or the control traffic alongside them (the papers' small flows).
#
# Rendezvous, negotiation of tensors and the bootstrap of NCCL or gloo exchange short messages, in small segments,
# some kilobytes per step; gradients come in megabytes and full segments. The two differ by orders of magnitude, so
# the largest flow of the job on the host is the measure, and no port has to be known.


class Traffic(IntEnum):
    """What a flow of a rank carries."""

    UNKNOWN = 0
    GRADIENT = 1
    CONTROL = 2
    UNEXPLAINED = 3  # as GRADIENT, of a job whose steps are not understood


TRAFFIC_NAMES = ("", "gradient", "control", "unexplained")
"""Names of Traffic, in its order, as shown and as stored."""

BULK = (Traffic.GRADIENT, Traffic.UNEXPLAINED)
"""What training is about."""

_CONTROL_SHARE = 0.01  # of the payload of the job's largest flow
_SMALL_SEGMENT = 512  # bytes of payload: half of what the shortest common MTU lets a bulk transfer fill
_EVIDENCE = 1 << 16  # bytes of the largest flow before anything is said


def flow_traffic(
    payload_bytes: npt.NDArray[np.int64],
    packets: npt.NDArray[np.int64],
    lifetime_s: npt.NDArray[np.float64],
    job: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    """Traffic of each DL flow of one host, (flows,): payload and the packets with payload, since its first one.

    Control is a flow whose mean rate is less than 1 % of the job's largest flow's, or less than 10 % in segments that
    average under 512 bytes. A flow without payload (acknowledgements) says nothing, nor does any before the largest one
    has moved 64 kB.
    """
    rate = payload_bytes / np.maximum(lifetime_s, 1.0)
    jobs, of_flow = np.unique(job, return_inverse=True)
    largest_rate, largest = np.zeros(len(jobs)), np.zeros(len(jobs), np.int64)
    np.maximum.at(largest_rate, of_flow, rate)
    np.maximum.at(largest, of_flow, payload_bytes)
    share = rate / np.maximum(largest_rate[of_flow], 1e-9)
    small = payload_bytes < _SMALL_SEGMENT * packets
    control = (share < _CONTROL_SHARE) | (small & (share < 10 * _CONTROL_SHARE))
    known = (payload_bytes > 0) & (largest[of_flow] >= _EVIDENCE)
    return np.where(known, np.where(control, Traffic.CONTROL, Traffic.GRADIENT), Traffic.UNKNOWN).astype(np.uint8)


# --- What a ring all-reduce has to send, from first principles.

FLOAT32_BYTES = 4


def ring_bytes(ranks: int, parameters: int, gradient_bytes: int = 0) -> float:
    """Payload bytes that each rank sends per iteration: 2·(N−1)/N·P·4, equation 3.1 of the thesis.

    gradient_bytes: of all parameters together where they are not of 4 bytes each; 0: they are.

    Half of it is the reduce-scatter, half the all-gather. nan where ranks or parameters are unknown (0); 0.0 for a
    single rank, which has nobody to send to. The same number is received.
    """
    if ranks <= 0 or parameters <= 0:
        return math.nan
    return 2 * (ranks - 1) / ranks * (gradient_bytes or parameters * FLOAT32_BYTES)
