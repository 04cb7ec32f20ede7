# SPDX-License-Identifier: Apache-2.0
"""Peaks, bursts and gaps of each link and class, collected batch by batch."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd

from netmon.report.bursts import HOT, Ints, burst_spans, peak_bytes
from netmon.report.report_text import ANY_CLASS

ALL = "all"
"""The class of a link's whole traffic."""
_UNTIL_NS = 1_000_000  # from here on, the milliseconds tell
_FACTORS = (1, 2, 5)


class BurstScan:
    """Takes cells of the finest bucket. A batch's first and last interval may be cut; there are few batches."""

    def __init__(self, bucket_ns: int, interval_ns: int, rate_bps: float) -> None:
        """interval_ns: the least interval in which a rate is true (rounded up to buckets). rate_bps 0: not known."""
        self._bucket_ns, self._rate = bucket_ns, rate_bps
        self.lengths = [n for n in _lengths() if n * bucket_ns < _UNTIL_NS] or [1]
        true = max(1, -(-interval_ns // bucket_ns))
        self._grains = (1, true) if true > 1 else (1,)
        self._peaks: dict[tuple[int, int], int] = {}
        self._totals: Counter[int] = Counter()
        self._spans: dict[tuple[int, int, str], Counter[int]] = {}

    def add(self, link_class: Ints, bins: Ints, amount: Ints) -> None:
        """Cells of one batch; several may be of one link, class and bin, and add up."""
        for own in np.unique(link_class).tolist():
            self._add(own, *_summed(bins[link_class == own], amount[link_class == own]))
        links = link_class | ANY_CLASS
        for link in np.unique(links).tolist():
            self._add(link, *_summed(bins[links == link], amount[links == link]))

    def _add(self, key: int, bins: Ints, amount: Ints) -> None:
        self._totals[key] += int(amount.sum())
        for length in self.lengths:
            self._peaks[key, length] = max(self._peaks.get((key, length), 0), peak_bytes(bins, amount, length))
        if not self._rate:
            return
        for grain in self._grains:
            coarse, sums = _summed(bins // grain, amount) if grain > 1 else (bins, amount)
            found = burst_spans(coarse, sums, HOT * self._rate / 8 * grain * self._bucket_ns / 1e9)
            for what, lengths in (("burst", found.bursts), ("gap", found.gaps)):
                values, counts = np.unique(lengths, return_counts=True)
                self._spans.setdefault((key, grain, what), Counter()).update(
                    dict(zip(values.tolist(), counts.tolist(), strict=True))
                )

    def peaks(self, link_of: Callable[[int], dict[str, str]], observed_ns: int) -> pd.DataFrame:
        """host, interface, direction, class, interval_ns, peak_bytes, total_bytes, observed_ns."""
        return pd.DataFrame(
            [
                {
                    **_named(key, link_of),
                    "interval_ns": length * self._bucket_ns,
                    "peak_bytes": peak,
                    "total_bytes": self._totals[key],
                    "observed_ns": observed_ns,
                }
                for (key, length), peak in self._peaks.items()
            ]
        )

    def spans(self, link_of: Callable[[int], dict[str, str]]) -> pd.DataFrame:
        """host, interface, direction, class, interval_ns, kind (burst or gap), duration_ns, count."""
        columns = ["host", "interface", "direction", "class", "interval_ns", "kind", "duration_ns", "count"]
        rows = [
            (*_named(key, link_of).values(), grain * self._bucket_ns, kind, n * grain * self._bucket_ns, count)
            for (key, grain, kind), counts in self._spans.items()
            for n, count in sorted(counts.items())
        ]
        return pd.DataFrame(rows, columns=columns)


def _lengths() -> list[int]:
    return [factor * 10**power for power in range(7) for factor in _FACTORS]


def _summed(bins: Ints, amount: Ints) -> tuple[Ints, Ints]:
    """Ascending, unique."""
    if len(bins) < 2 or bool((np.diff(bins) > 0).all()):
        return bins, amount
    order = np.argsort(bins, kind="stable")
    bins, amount = bins[order], amount[order]
    first = np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]])
    return bins[first], np.add.reduceat(amount, first)


def _named(key: int, link_of: Callable[[int], dict[str, str]]) -> dict[str, str]:
    if key & ANY_CLASS == ANY_CLASS:
        return {**link_of(key & ~ANY_CLASS), "class": ALL}
    return link_of(key)
