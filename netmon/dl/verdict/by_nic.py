# SPDX-License-Identifier: Apache-2.0
"""Why a link gave less than usual, by what its host's NICs have counted meanwhile.

Hosts tell once a second, of all their NICs together. So it is a reason only if they counted clearly more than while
baseline iterations went on.
"""

from collections.abc import Callable, Sequence

import numpy as np

from netmon.dl.verdict.baseline import median
from netmon.dl.verdict.host_part import within
from netmon.records import Table

REASONS = {
    "limited_packets": "the cloud's limit",
    "pause_packets": "paused by the switch",
    "congestion_packets": "told to send less by the network",
}
"""By columns of the table `host`, the clearest one first."""

COUNTED = np.dtype([(name, "<i8") for name in ("start_ns", "end_ns", *REASONS)])
"""What a host's NICs counted in a time (UTC); −1: not known."""

Counted = Callable[[str], Table]
"""By host's name; asked where a link was slow, or lost packets."""

_MORE, _FEWEST, _ROW_NS = 3.0, 3, 1_000_000_000  # times the usual; baseline iterations; a row's time


def nobody_counts(_: str) -> Table:
    return np.empty(0, COUNTED)


def why_slow(rows: Table, span: tuple[int, int], baseline: Sequence[tuple[int, int]]) -> str:
    """In words; empty: the NICs do not tell. span: of the iteration, baseline: of others (UTC)."""
    away = [one for one in baseline if one[1] < span[0] - _ROW_NS or one[0] > span[1] + _ROW_NS]  # of no row of its own
    told = [one for one in away if len(rows) and rows["start_ns"].min() <= one[0] and one[1] <= rows["end_ns"].max()]
    for name, words in REASONS.items():
        known = rows[rows[name] >= 0]
        if not len(known) or len(told) < _FEWEST:
            continue
        now, *then = within(known, name, [span, *told]) / np.array([end - begin for begin, end in [span, *told]])
        if now * _ROW_NS >= 1 and now > _MORE * max(median(then), float(np.quantile(then, 0.9))):
            return words
    return ""
