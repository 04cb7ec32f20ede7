# SPDX-License-Identifier: Apache-2.0
"""The two ends of one flow as a common signal: when it begins to send after a rest.

A rest makes a packet recognisable without looking into it: what a host sends first after one is what the other host
receives first after one. It also meets empty queues, so its delay is the path's least. Correlating these moments is the
cross-correlation of the two bucket series reduced to their edges, and costs nothing by comparison.
"""

import numpy as np
import numpy.typing as npt

from netmon.records import Table

REST_NS = 20_000_000
"""Longer than the queues on a path: what was sent before the rest has been received before what follows."""

MOST_DELAY_NS = 8_000_000
"""A packet that took longer says nothing about clocks."""

ONSET = np.dtype([("key", "<i8"), ("host", "<i4"), ("time_ns", "<i8")])
"""A flow's first bucket after a rest. key: a number for the 5-tuple, the same at both ends."""

_BIN_NS = 1_000_000
_CLEAR = 1.3  # times as many coincidences as at any other lag

_Indices = npt.NDArray[np.int64]


def match_onsets(sent: Table, received: Table, early_ns: int) -> tuple[_Indices, _Indices]:
    """Pairs of what is the same packet: places in `sent` and in `received`, both of dtype ONSET.

    Times of both are on one axis but for early_ns either way, which with MOST_DELAY_NS has to be below REST_NS.
    """
    sent_order, received_order = (
        np.lexsort((sent["time_ns"], sent["key"])),
        np.lexsort((received["time_ns"], received["key"])),
    )
    if not (len(sent) and len(received)):
        return sent_order[:0], received_order[:0]
    base = min(int(sent["time_ns"].min()), int(received["time_ns"].min())) - early_ns
    span = max(int(sent["time_ns"].max()), int(received["time_ns"].max())) - base + early_ns + MOST_DELAY_NS + 1
    keys = np.unique(np.concatenate([sent["key"], received["key"]]))
    line = np.searchsorted(keys, received["key"][received_order]) * span + received["time_ns"][received_order] - base
    earliest = np.searchsorted(keys, sent["key"][sent_order]) * span + sent["time_ns"][sent_order] - base - early_ns
    place = np.searchsorted(line, earliest)
    found = place < len(line)
    found[found] = line[place[found]] - earliest[found] <= 2 * early_ns + MOST_DELAY_NS
    return sent_order[found], received_order[place[found]]


def coarse_lag(sent: Table, received: Table, most_ns: int) -> int | None:
    """How much later the received onsets are, to a millisecond, within ± most_ns; None where no lag stands out.

    The lag with the most coincidences of onsets of one flow: the peak of the cross-correlation of their trains.
    """
    lags = np.concatenate([np.empty(0, np.int64), *_differences(sent, received, most_ns)])
    if not len(lags):
        return None
    counts = np.bincount((lags + most_ns) // _BIN_NS)
    both = counts + np.append(counts[1:], 0)  # a lag may lie on the edge between two bins
    peak = int(both.argmax())
    rest = np.delete(both, np.arange(max(0, peak - 2), min(len(both), peak + 3)))
    if both[peak] < _CLEAR * rest.max(initial=1):
        return None
    near = np.abs(lags + most_ns - (peak + 1) * _BIN_NS) <= _BIN_NS
    return int(np.median(lags[near]))


def _differences(sent: Table, received: Table, most_ns: int) -> list[_Indices]:
    """Received − sent of all pairs of onsets of one flow."""
    found = []
    for key in np.intersect1d(sent["key"], received["key"]):
        here, there = sent["time_ns"][sent["key"] == key], received["time_ns"][received["key"] == key]
        lags = np.subtract.outer(there, here).ravel()
        found.append(lags[np.abs(lags) <= most_ns])
    return found
