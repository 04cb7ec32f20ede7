# SPDX-License-Identifier: Apache-2.0
"""One iteration looked at closely."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
from matplotlib.figure import Figure

from netmon.records import CLASS_NAMES, Class
from netmon.report.study import NO_TIMES, Chapter, Exhibit, Frames, GapError, Study
from netmon.report.style import COLOUR_OF_CLASS, INK, stack

# --- Flows 1, 2 and 3 of the thesis around an iteration: read once more, but only the moments that are drawn.

_DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_CROSS = CLASS_NAMES[Class.CROSS]
COLUMNS = ("host", "interface", "direction", "bucket_start_ns", "class", "wire_bytes")


@dataclass(frozen=True)
class Moment:
    """An iteration in the middle of the run in focus, and the hosts that play the thesis' parts in it."""

    ranks: pd.DataFrame  # rows of the iteration
    around: pd.DataFrame  # rows of iteration_times: it, and its neighbours
    only: str  # host of a DL-only node; empty: none
    shared: str  # host of a DL-shared node; empty: none


def middle(study: Study) -> Moment:
    """Choose the iteration: in the middle of those with cross traffic, else of all. Raises GapError without any."""
    times = study.times[study.times["run"] == study.focus] if study.focus else study.times
    if times.empty:
        raise GapError(NO_TIMES)
    disturbed = times[times["node_shared"].eq(True)]
    rows = (disturbed if len(disturbed) else times).sort_values("start_ns")
    chosen = rows.iloc[len(rows) // 2]
    same_job = times[times["job"] == chosen["job"]].sort_values("start_ns")
    around = same_job[(same_job["iteration"] - chosen["iteration"]).abs() <= 1]
    of_job = (study.ranks["run"] == study.focus) & (study.ranks["job"] == chosen["job"])
    ranks = study.ranks[of_job & (study.ranks["iteration"] == chosen["iteration"])].sort_values("rank")
    shared = ranks[ranks["node_shared"].eq(True)]["host"]
    only = ranks[~ranks["node_shared"].eq(True)]["host"]
    return Moment(ranks, around, str(only.iloc[0]) if len(only) else "", str(shared.iloc[0]) if len(shared) else "")


def traces(study: Study, moment: Moment, begin_ns: int, end_ns: int, grid_ns: int) -> pd.DataFrame:
    """Rate by flow over [begin, end): columns flow, host, node (its class), time_ns (interval's start), rate_bps."""
    pieces = list(_rows(study, begin_ns, end_ns, {moment.only, moment.shared} - {""}))
    rows = pd.concat(pieces) if pieces else pd.DataFrame()
    if rows.empty:
        raise GapError("no bucket lies in the chosen iteration")
    parts = []
    for label, node, host, direction, classes in _parts(moment, rows):
        own = rows[(rows["host"] == host) & (rows["direction"] == direction) & rows["class"].isin(classes)]
        index = (own["bucket_start_ns"].to_numpy(np.int64) - begin_ns) // grid_ns
        count = -(-(end_ns - begin_ns) // grid_ns)
        inside = (index >= 0) & (index < count)
        sums = np.bincount(index[inside], weights=own["wire_bytes"].to_numpy(float)[inside], minlength=count)
        parts.append(
            pd.DataFrame(
                {
                    **{"flow": label, "host": host, "node": node},
                    **{"time_ns": begin_ns + np.arange(count) * grid_ns, "rate_bps": sums * 8e9 / grid_ns},
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _rows(study: Study, begin_ns: int, end_ns: int, hosts: set[str]) -> Iterator[pd.DataFrame]:
    time = ds.field("bucket_start_ns")
    condition = (time >= begin_ns) & (time < end_ns) & ds.field("host").isin(sorted(hosts))
    for batch in study.tables.batches("buckets", COLUMNS, condition):
        rows = batch.to_pandas()
        yield rows.astype({"direction": str, "class": str, "host": str})


def _parts(moment: Moment, rows: pd.DataFrame) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    """Label, what its node is, host, direction and classes of what is drawn."""
    parts: list[tuple[str, str, str, str, tuple[str, ...]]] = []
    if moment.only:
        parts.append((f"flow 1: training, sent by {moment.only}, a DL-only node", _DL[0], moment.only, "tx", _DL))
    if moment.shared:
        parts.append((f"flow 2: training, sent by {moment.shared}, a DL-shared node", _DL[1], moment.shared, "tx", _DL))
        cross = rows[(rows["host"] == moment.shared) & (rows["class"] == _CROSS)]
        if len(cross):
            direction = str(cross.groupby("direction")["wire_bytes"].sum().idxmax())
            verb = "received" if direction == "rx" else "sent"
            parts.append(
                (f"flow 3: cross traffic, {verb} by {moment.shared}", _CROSS, moment.shared, direction, (_CROSS,))
            )
    return parts


# --- Rates over time.


def trace(figure: Figure, rates: pd.DataFrame, boundaries: pd.DataFrame) -> None:
    """A panel per flow above one time axis, the iterations' boundaries drawn through all of them."""
    names = list(dict.fromkeys(rates["flow"]))
    axes = stack(figure, names)
    for ax, name in zip(axes, names, strict=True):
        own = rates[rates["flow"] == name]
        colour = COLOUR_OF_CLASS[own["node"].iloc[0]]
        step = own["time_ms"].diff().median()
        ax.fill_between(own["time_ms"], own["rate_bps"] / 1e6, step="post", color=colour, linewidth=0)
        for moment in boundaries["start_ms"]:
            if own["time_ms"].min() <= moment <= own["time_ms"].max():
                ax.axvline(
                    moment, color=INK, linewidth=1.2 if moment == 0 else 0.8, linestyle="-" if moment == 0 else "--"
                )
        ax.set_ylabel("Mbit/s")
        ax.set_xlim(own["time_ms"].min(), own["time_ms"].max() + step)
    axes[0].set_ylim(0, max(float(rates["rate_bps"].max()) / 1e6 * 1.05, 1))
    axes[-1].set_xlabel("time since the iteration's start (ms)")


# --- The chapter: its tables, and what they say.

_WIDE_GRID_NS, _MARGIN_NS = 1_000_000, 20_000_000
_CLOSE_GRID_NS, _CLOSE_NS = 200_000, 20_000_000


def _wide(study: Study) -> Frames:
    moment = middle(study)
    begin, end = int(moment.around["start_ns"].min()), int(moment.around["end_ns"].max())
    return _frames(study, begin - _MARGIN_NS, end + _MARGIN_NS, _WIDE_GRID_NS)


def _close(study: Study) -> Frames:
    begin = int(middle(study).ranks["start_ns"].min())
    return _frames(study, begin - _CLOSE_NS * 3, begin + _CLOSE_NS, max(_CLOSE_GRID_NS, study.bucket_ns))


def _frames(study: Study, begin_ns: int, end_ns: int, grid_ns: int) -> Frames:
    moment = middle(study)
    cut = traces(study, moment, begin_ns, end_ns, grid_ns)
    edges = moment.around[["run", "job", "iteration", "start_ns", "end_ns"]]
    origin = int(moment.ranks["start_ns"].min())
    relative = pd.DataFrame(
        {"start_ms": (edges["start_ns"] - origin) / 1e6, "end_ms": (edges["end_ns"] - origin) / 1e6}
    )
    return {
        "rates": cut.assign(time_ms=(cut["time_ns"] - origin) / 1e6, run=edges["run"].iloc[0]),
        "boundaries": pd.concat([edges, relative], axis=1),
    }


CHAPTER = Chapter(
    "One iteration, closely",
    (
        Exhibit(
            "trace",
            "Flows 1, 2 and 3 around an iteration",
            "thesis, figure 3-10",
            "Wire rate in intervals of 1 ms, in one clock. Lines: the iteration's start (its first rank's), time "
            "0, and those of its neighbours. Colours show the node's class. The iteration in the middle of the "
            "run with the most cross traffic up to 80 %.",
            _wide,
            trace,
        ),
        Exhibit(
            "trace-boundary",
            "The boundary of the same iteration",
            "thesis, figure 3-11",
            "The same in intervals of 0.2 ms, from 60 ms before the boundary to 20 ms after it. A packet that the "
            "hook saw as one has one time for all of its bytes, so short intervals may hold more than the link "
            "carries in them; what a host sends is counted before its own queue.",
            _close,
            trace,
        ),
    ),
)
