# SPDX-License-Identifier: Apache-2.0
"""Rows of buckets, added up to what a trace draws of them: rates per link and class, and transfers per flow."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from netmon.report.frames import plain_words

COLUMNS = [
    *("host", "session", "interface", "direction", "flow_id", "bucket_start_ns", "bucket_ns"),
    *("wire_bytes", "payload_bytes", "class", "iteration"),
]
_LINK = ["host", "interface", "direction", "class"]
_FLOW = ["host", "session", "flow_id"]
_SILENCE_NS = 10_000_000
"""A flow that says nothing for longer begins anew, where it does not do so for an iteration's sake."""

_Times = npt.NDArray[np.int64]


class Traffic:
    """Adds batch by batch; what it holds grows with links and flows times the time, not with the rows."""

    def __init__(self, width_ns: int) -> None:
        """width_ns: of a point of a rate's curve."""
        self.width_ns = width_ns
        self._links: list[pd.DataFrame] = []
        self._flows: list[pd.DataFrame] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """batch: rows of buckets, with COLUMNS."""
        rows = batch.to_pandas()
        rows["bin"] = rows["bucket_start_ns"] // self.width_ns
        rows["end_ns"] = rows["bucket_start_ns"] + rows["bucket_ns"]
        self._links.append(plain_words(_added(rows, [*_LINK, "bin"])))
        rows["bin"] = rows["bucket_start_ns"] // max(self.width_ns, _SILENCE_NS)
        by = rows[rows["payload_bytes"] > 0].groupby([*_FLOW, "iteration", "bin"], observed=True, sort=False)
        ends = {"start_ns": ("bucket_start_ns", "min"), "end_ns": ("end_ns", "max")}
        sums = {name: (name, "sum") for name in ("wire_bytes", "payload_bytes")}
        self._flows.append(plain_words(by.agg(**ends, **sums).reset_index()))

    def rates(self) -> Iterator[tuple[tuple[str, str, str, str], _Times, npt.NDArray[np.float64]]]:
        """Of each (host, interface, direction, class): times (ns, UTC epoch) and bit/s from each on, by name."""
        if not self._links:
            return
        rows = _added(pd.concat(self._links), [*_LINK, "bin"])
        for link, own in rows.groupby(_LINK, sort=True):
            bins = own["bin"].to_numpy()
            order = np.argsort(bins)
            bins, bits = bins[order], own["wire_bytes"].to_numpy()[order] * 8e9 / self.width_ns
            # After a point with no successor the rate is zero.
            silent = np.flatnonzero(np.diff(bins, append=bins[-1] + 2) > 1)
            times = np.insert(bins, silent + 1, bins[silent] + 1) * self.width_ns
            host, interface, direction, class_ = link
            yield (str(host), str(interface), str(direction), str(class_)), times, np.insert(bits, silent + 1, 0.0)

    def transfers(self) -> pd.DataFrame:
        """Pieces of flows with payload: host, session, flow_id, iteration, start_ns, end_ns, wire_bytes, payload_bytes.

        What comes in one iteration is one piece; without one (−1), what comes with no silence of 10 ms. By flow, time.
        """
        if not self._flows:
            return pd.DataFrame(columns=[*_FLOW, "iteration", "start_ns", "end_ns", "wire_bytes", "payload_bytes"])
        rows = pd.concat(self._flows).sort_values([*_FLOW, "start_ns"], kind="stable", ignore_index=True)
        flow = rows.groupby(_FLOW, sort=False).ngroup()
        other = (flow.diff() != 0) | (rows["iteration"].diff() != 0)
        silent = (rows["iteration"] < 0) & (rows["start_ns"] - rows["end_ns"].shift(fill_value=0) > _SILENCE_NS)
        by = rows.groupby((other | silent).cumsum(), sort=False)
        first = by[[*_FLOW, "iteration", "start_ns"]].first()
        return first.assign(end_ns=by["end_ns"].max()).join(by[["wire_bytes", "payload_bytes"]].sum())


def _added(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    added: pd.DataFrame = rows.groupby(by, observed=True, sort=False)["wire_bytes"].sum().reset_index()
    return added
