# SPDX-License-Identifier: Apache-2.0
"""Which class a row's bytes belong to: a property of the flow's owner and of the window of its link."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.records import Class, Owner

NS_PER_S = 1_000_000_000


def flow_class(owner: Owner) -> Class:
    """DL_ONLY for a rank's flow (its rows may become DL_SHARED), CROSS for a known other one, else UNCLASSIFIED."""
    if owner.job:
        return Class.DL_ONLY
    return Class.CROSS if owner.source else Class.UNCLASSIFIED


def window_width(share_window_ns: int, bucket_ns: int) -> int:
    """The share window in whole buckets, at least one, so that no bucket lies in two windows (ns)."""
    return max(1, -(-share_window_ns // bucket_ns)) * bucket_ns


@dataclass(frozen=True)
class Windows:
    """The windows of the links that carried something; arrays have one entry per (window, link) but where noted."""

    number: npt.NDArray[np.int64]  # window k is [k·width, (k+1)·width) of the mono clock; ascending
    link: npt.NDArray[np.int64]
    wire_bytes: npt.NDArray[np.int64]
    cross_bytes: npt.NDArray[np.int64]  # payload
    enough: npt.NDArray[np.float64]  # bytes of foreign payload from which the window is shared
    jobs: npt.NDArray[np.int64]  # (jobs,): those with gradient traffic here
    gradient_bytes: npt.NDArray[np.int64]  # (entries, jobs): their payload
    of_row: npt.NDArray[np.intp]  # (rows,): the entry of each row

    def shared(self, job: int) -> npt.NDArray[np.bool_]:
        """Which entries are shared as the job sees it: foreign payload, cross and other jobs' gradients, is enough.

        Unclassified traffic does not count: not knowing is not evidence. Nor does another job's control traffic, which
        is small and has no rhythm that would meet this job's.
        """
        foreign = self.cross_bytes + self.gradient_bytes[:, self.jobs != job].sum(axis=1)
        shared: npt.NDArray[np.bool_] = (foreign > 0) & (foreign >= self.enough)
        return shared


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


def share_windows(rows: Rows, capacity_bps: npt.NDArray[np.int64], window_ns: int, threshold: float) -> Windows:
    """Sum rows into windows of their links; capacity_bps: one per link, 0 unknown.

    Enough to share a window is threshold × capacity / 8 × width bytes; where the capacity is unknown, any byte.
    """
    links = max(1, len(capacity_bps))
    keys, of_row = np.unique(rows.start_ns // window_ns * links + rows.link, return_inverse=True)
    count = len(keys)
    cross = np.where(rows.flow_class == Class.CROSS, rows.payload_bytes, 0)
    jobs, gradient = _gradients(rows, of_row, count)
    enough = threshold * capacity_bps[keys % links] / 8 * window_ns / NS_PER_S
    wire = _sums(of_row, rows.wire_bytes, count)
    return Windows(keys // links, keys % links, wire, _sums(of_row, cross, count), enough, jobs, gradient, of_row)


def _gradients(
    rows: Rows, of_row: npt.NDArray[np.intp], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    jobs, of_gradient = np.unique(rows.job[rows.gradient], return_inverse=True)
    cell = of_row[rows.gradient] * len(jobs) + of_gradient
    sums = _sums(cell, rows.payload_bytes[rows.gradient], count * len(jobs))
    return jobs.astype(np.int64), sums.reshape(count, len(jobs))


def _sums(place: npt.NDArray[np.intp], amount: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    return np.bincount(place, weights=amount, minlength=count).astype(np.int64)


def row_classes(rows: Rows, windows: Windows) -> npt.NDArray[np.uint8]:
    """The class of each row, (rows,): its flow's, but DL_SHARED where a DL row lies in a window shared for its job."""
    classes = rows.flow_class.astype(np.uint8)
    dl = rows.flow_class == Class.DL_ONLY
    for job in np.unique(rows.job[dl]).tolist():
        classes[dl & (rows.job == job) & windows.shared(job)[windows.of_row]] = Class.DL_SHARED
    return classes
