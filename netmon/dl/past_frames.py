# SPDX-License-Identifier: Apache-2.0
"""Rows of buckets of one span of time as what a viewer sees of links and flows; and which iterations were slow."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.dl.grouped import SAME_NS
from netmon.dl.verdict.baseline import Durations, baseline_durations, matrix
from netmon.dl.verdict.evidence import Steps
from netmon.records import CLASS_NAMES, Class, Direction, Flow, Table
from netmon.views import STEP_TIMES, FlowView, LinkView

WIDTHS_NS = (10_000, 20_000, 50_000, 100_000, 200_000, 500_000, *(10**n * m for n in range(6, 10) for m in (1, 2, 5)))
"""Widths of the columns that links' rates are shown in."""

_MOST_CELLS = 2_000_000
LINK = ("host", "interface", "direction")
_CODES = {name: code for code, name in enumerate(CLASS_NAMES)}


def step_times(rows: pd.DataFrame) -> dict[str, Table]:
    """Rows of the table iterations → by job, dtype STEP_TIMES, in the order of their ends.

    Rows without node_shared are of iterations of which it is not known yet.
    """
    found = {}
    for job, own in rows.groupby("job", sort=True, observed=True):
        # A job that began anew counts from 0 again: its numbers fall.
        own = own.sort_values(["start_ns", "rank"], kind="stable")
        run = (own["iteration"].diff() < -1).cumsum()
        tables = [_times_of_run(part) for _, part in own.groupby(run, sort=False)]
        found[str(job)] = _with_baseline(np.sort(np.concatenate(tables), order="end_ns", kind="stable"))
    return found


def _times_of_run(rows: pd.DataFrame) -> Table:
    """Of one job, in which numbers do not repeat; dtype STEP_TIMES, by number, without baseline_ns."""
    number, rank, start, end = (rows[name].to_numpy(np.int64) for name in ("iteration", "rank", "start_ns", "end_ns"))
    none = np.zeros(len(rows), np.int64)
    exposed = rows["exposed_ns"].fillna(-1).to_numpy(np.int64) if "exposed_ns" in rows else none - 1
    shared = rows["node_shared"].fillna(False).to_numpy(np.bool_) if "node_shared" in rows else none == 0
    size = int(np.nan_to_num(rows["size"].max())) if "size" in rows else 0
    of = matrix(Steps(number, rank, start, end, none, none, exposed, none, shared, none, ("",), size))
    table = np.zeros(len(of.number), STEP_TIMES)
    table["number"], table["longest_ns"] = of.number, of.slowest
    table["start_ns"] = np.fmin.reduce(of.start, axis=1).astype(np.int64) + of.base_ns
    table["end_ns"] = np.fmax.reduce(of.end, axis=1).astype(np.int64) + of.base_ns
    table["relative"] = rows["relative"].any()
    table["whole"], table["shared"] = of.whole, of.durations.shared
    table["changed"][of.changes] = True
    return table


def joined_times(stored: Mapping[str, Table], tables: Mapping[str, Table]) -> dict[str, Table]:
    """Tables of `step_times` that may have iterations in common: of one, what `tables` says of its time counts, if
    it is of all ranks, and what either knows besides."""
    joined = {}
    for job in sorted({*stored, *tables}):
        rows = np.concatenate([table[job] for table in (stored, tables) if job in table])
        order = np.lexsort((np.arange(len(rows)), rows["end_ns"] // SAME_NS, rows["number"]))
        ordered = rows[order]
        # A job that began anew counts from 0 again: one number, at another time.
        same = (np.diff(ordered["number"]) == 0) & (np.abs(np.diff(ordered["end_ns"])) < SAME_NS)
        first, second = np.flatnonzero(same), np.flatnonzero(same) + 1
        part = ordered["whole"][first] & ~ordered["whole"][second]  # not all of its ranks had been requested
        ordered[second[part]] = ordered[first[part]]
        ordered["shared"][second] &= ordered["shared"][first]
        ordered["changed"][second] |= ordered["changed"][first]
        joined[job] = _with_baseline(np.sort(ordered[np.append(~same, True)], order="end_ns"))
    return joined


def _with_baseline(steps: Table) -> Table:
    """steps: of one job, in the order of their ends, in which it may begin anew."""
    anew = np.flatnonzero(np.diff(steps["number"]) < -1) + 1
    for run in np.split(steps, anew):  # views
        order = np.argsort(run["number"], kind="stable")
        of = run[order]
        pace = np.cumsum(of["changed"]) - int(of["changed"][:1].sum())
        durations = Durations(of["longest_ns"].astype(np.float64), of["whole"], of["shared"], pace)
        run["baseline_ns"][order] = baseline_durations(durations)
    return steps


def column_width(since_ns: int, until_ns: int, links: int, finest_ns: int) -> int:
    """The finest width (ns) of which all columns of all links can be kept."""
    enough = (until_ns - since_ns) * max(links, 1) * len(CLASS_NAMES) / _MOST_CELLS
    coarsest = WIDTHS_NS[-1] * max(1, math.ceil(enough / WIDTHS_NS[-1]))
    fitting: int = next((width for width in WIDTHS_NS if width >= max(enough, finest_ns)), coarsest)
    return fitting


def links_of(
    rows: pd.DataFrame, since_ns: int, until_ns: int, capacities: Mapping[tuple[str, str], int]
) -> tuple[LinkView, ...]:
    """Every link of the rows, by name; columns cover [since, until). capacities: bit/s by host and interface.

    rows: host, interface, direction (rx, tx), bucket_start_ns, bucket_ns, wire_bytes, class (a name).
    """
    rows = rows[(rows["bucket_start_ns"] + rows["bucket_ns"] > since_ns) & (rows["bucket_start_ns"] < until_ns)]
    names, link = _numbered(rows, LINK)
    # Rows are of one width but for a few that an agent under pressure sent: half of them are not finer.
    finest = int(rows["bucket_ns"].median()) if len(rows) else WIDTHS_NS[0]
    width = column_width(since_ns, until_ns, len(names), finest)
    columns = max(1, -(-(until_ns - since_ns) // width))
    classes = rows["class"].map(_CODES).fillna(0).to_numpy(np.int64)
    start, end = rows["bucket_start_ns"].to_numpy(np.int64), rows["bucket_ns"].to_numpy(np.int64)
    sums = _spread(
        start - since_ns, end, rows["wire_bytes"].to_numpy(np.float64), width, columns, link * len(Class) + classes
    )
    rates = sums.reshape(len(names), len(Class), columns).transpose(0, 2, 1) * 8e9 / width
    return tuple(
        _link(name, rates[index], width, capacities.get((name[0], name[1]), 0)) for index, name in enumerate(names)
    )


def _spread(
    start: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
    amount: npt.NDArray[np.float64],
    width: int,
    columns: int,
    series: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """Sums by series and column, flat; what covers more than one column is spread evenly over them."""
    count = (int(series.max(initial=-1)) // len(Class) + 1) * len(Class) if len(series) else 0
    first, last = start // width, (start + np.maximum(length, 1) - 1) // width
    spans = last - first + 1
    row = np.repeat(np.arange(len(start)), spans)
    column = np.repeat(first, spans) + (np.arange(len(row)) - np.repeat(np.cumsum(spans) - spans, spans))
    low = np.maximum(column * width, start[row])
    high = np.minimum((column + 1) * width, (start + np.maximum(length, 1))[row])
    part = amount[row] * (high - low) / np.maximum(length, 1)[row]
    inside = (column >= 0) & (column < columns)
    index = series[row[inside]] * columns + column[inside]
    sums: npt.NDArray[np.float64] = np.bincount(index, part[inside], minlength=count * columns).astype(np.float64)
    return sums


def _link(name: tuple[str, ...], rates: npt.NDArray[np.float64], width: int, capacity: int) -> LinkView:
    host, interface, direction = name
    wire_bytes = round(float(rates.sum()) * width / 8e9)
    return LinkView(
        host, interface, Direction[direction.upper()], capacity, "", width, rates, np.nan, 0, wire_bytes, 0, 0, 0, 0
    )


def flows_of(
    rows: pd.DataFrame,
    since_ns: int,
    until_ns: int,
    describe: Callable[[Sequence[tuple[str, int]]], Sequence[Flow | None]],
    most: int,
) -> tuple[FlowView, ...]:
    """The largest flows of the rows, by mean rate over the span; wire_bytes is their traffic in it.

    describe: of (session, flow_id); None: it is not known. Their class is that of most of their bytes.
    """
    rows = rows[(rows["bucket_start_ns"] + rows["bucket_ns"] > since_ns) & (rows["bucket_start_ns"] < until_ns)]
    if not len(rows):
        return ()
    by = ["session", "flow_id", *LINK]
    sums = rows.groupby([*by, "class"], observed=True, sort=False)["wire_bytes"].sum().reset_index()
    sums = sums.sort_values("wire_bytes", ascending=False, kind="stable")
    total = sums.groupby(by, observed=True, sort=False)["wire_bytes"].sum().nlargest(most)
    class_of = sums.drop_duplicates(by).set_index(by)["class"]
    keys = [(str(session), int(flow)) for session, flow, *_ in total.index]
    views = []
    for key, known, wire_bytes in zip(total.index, describe(keys), total.to_numpy(), strict=True):
        _, number, host, interface, direction = key
        flow = known or Flow(int(number), 0, Direction[str(direction).upper()], "", "", 0, 0, 0, 0)
        rate = float(wire_bytes) * 8e9 / max(until_ns - since_ns, 1)
        class_ = Class(_CODES.get(str(class_of[key]), 0))
        views.append(FlowView(str(host), str(interface), flow, class_, rate, int(wire_bytes)))
    return tuple(views)


def _numbered(rows: pd.DataFrame, by: Sequence[str]) -> tuple[list[tuple[str, ...]], npt.NDArray[np.int64]]:
    """The combinations that occur, in order, and which one each row has."""
    if not len(rows):
        return [], np.zeros(0, np.int64)
    groups = rows.groupby(list(by), sort=True, observed=True)
    names = rows[list(by)].drop_duplicates().astype(str).sort_values(list(by))
    return list(names.itertuples(index=False, name=None)), np.asarray(groups.ngroup(), np.int64)
