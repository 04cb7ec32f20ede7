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


def is_cross(flow_classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which rows can make a window of their link shared.

    Unclassified traffic cannot: not knowing is not evidence. Nor can another job's flow, which stays a DL flow for
    every job on the link; whoever wants jobs to be cross traffic to each other changes this function.
    """
    cross: npt.NDArray[np.bool_] = flow_classes == Class.CROSS
    return cross


def window_width(share_window_ns: int, bucket_ns: int) -> int:
    """The share window in whole buckets, at least one, so that no bucket lies in two windows (ns)."""
    return max(1, -(-share_window_ns // bucket_ns)) * bucket_ns


@dataclass(frozen=True)
class Windows:
    """The windows of the links that carried something; all arrays but `of_row` have one entry per (window, link)."""

    number: npt.NDArray[np.int64]  # window k is [k·width, (k+1)·width) of the mono clock; ascending
    link: npt.NDArray[np.int64]
    wire_bytes: npt.NDArray[np.int64]
    cross_bytes: npt.NDArray[np.int64]  # payload
    shared: npt.NDArray[np.bool_]
    of_row: npt.NDArray[np.intp]  # (rows,): the entry of each row


def share_windows(
    start_ns: npt.NDArray[np.int64],
    link: npt.NDArray[np.int64],
    flow_classes: npt.NDArray[np.uint8],
    wire_bytes: npt.NDArray[np.int64],
    payload_bytes: npt.NDArray[np.int64],
    capacity_bps: npt.NDArray[np.int64],
    window_ns: int,
    threshold: float,
) -> Windows:
    """Sum rows (all arrays of the same length, capacity_bps: one per link, 0 unknown) into windows of their links.

    A window is shared where its cross payload reaches threshold × capacity / 8 × width bytes; where the capacity is
    unknown, any cross payload makes it so.
    """
    links = max(1, len(capacity_bps))
    keys, of_row = np.unique(start_ns // window_ns * links + link, return_inverse=True)
    count = len(keys)
    wire = np.bincount(of_row, weights=wire_bytes, minlength=count).astype(np.int64)
    cross_payload = np.where(is_cross(flow_classes), payload_bytes, 0)
    cross = np.bincount(of_row, weights=cross_payload, minlength=count).astype(np.int64)
    key_link = keys % links
    enough = threshold * capacity_bps[key_link] / 8 * window_ns / NS_PER_S
    return Windows(keys // links, key_link, wire, cross, (cross > 0) & (cross >= enough), of_row)


def row_classes(flow_classes: npt.NDArray[np.uint8], windows: Windows) -> npt.NDArray[np.uint8]:
    """The class of each row, (rows,): its flow's, but DL_SHARED where a DL row lies in a shared window."""
    shared_dl = (flow_classes == Class.DL_ONLY) & windows.shared[windows.of_row]
    return np.where(shared_dl, np.uint8(Class.DL_SHARED), flow_classes).astype(np.uint8)
