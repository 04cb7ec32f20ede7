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


def match_onsets(sent: Table, received: Table, early_ns: int | _Indices) -> tuple[_Indices, _Indices]:
    """Pairs of what is the same packet: indices in `sent` and in `received`, both with the columns of ONSET.

    Times of both are on one axis but for early_ns either way, one for all or one for each of `sent`; twice that and
    MOST_DELAY_NS have to be below REST_NS.
    """
    count = len(sent)
    early = np.broadcast_to(np.asarray(early_ns, np.int64), (count,))
    key = np.concatenate([sent["key"], received["key"]])
    time = np.concatenate([sent["time_ns"] - early, received["time_ns"]])
    is_received = np.arange(len(key)) >= count
    order = _by_key(key, 2 * time + is_received)  # of what is at the same time, the sent first
    following = np.where(is_received[order], np.arange(len(key)), len(key))
    following = np.minimum.accumulate(following[::-1])[::-1]
    followed = np.flatnonzero(~is_received[order] & (following < len(key)))
    i, j = order[followed], order[following[followed]]
    near = (key[i] == key[j]) & (time[j] - time[i] <= 2 * early[i] + MOST_DELAY_NS)
    return i[near], j[near] - count


def _by_key(key: _Indices, time: _Indices) -> _Indices:
    """The order by key, then time. Keys and times are mostly of a few seconds: then one sort does it."""
    base, bits = int(time.min()), (int(time.max()) - int(time.min())).bit_length()
    if int(key.min()) >= 0 and int(key.max()).bit_length() + bits < 63:
        return np.argsort((key << bits) + (time - base), kind="stable")
    return np.lexsort((time, key))


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
