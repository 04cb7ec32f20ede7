# SPDX-License-Identifier: Apache-2.0
"""What lies in a dataset, compared with what the simulated agents have sent, or with another dataset.

What is acknowledged has to be there, and nothing twice; what was sent and not acknowledged may be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from netmon.bench.pipeline.agents import (
    CAPACITY_BPS,
    LOST_BYTES,
    MS,
    SECOND_MS,
    STEP_END_MS,
    HostReport,
    Report,
    SimulatedHost,
    boot_ns,
    coarser,
    host_name,
)
from netmon.bench.specs import Load
from netmon.errors import NoRowsError
from netmon.history.dataset import open_table, stream
from netmon.history.files import read_footer, table_files
from netmon.records import CLASS_NAMES, COUNTS, Class, Table

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("buckets", "flows", "iterations", "ledger")

_SHARE_WINDOW_MS, _SHARE_THRESHOLD = 10, 0.01  # the collector's defaults
_SENT = ("flow_id", "start_ns", "bucket_ns", *COUNTS)
_JUDGED = np.dtype([(name, "<i8") for name in (*_SENT, "class", "iteration")])
_STEP = np.dtype([(name, "<i8") for name in ("iteration", "start_ns", "end_ns", "rank")])
_INTERVAL = np.dtype(
    [(name, "<i8") for name in ("sent", "start_ns", "end_ns", "nic", "attributed", "overflow", "lost", "invisible")]
)


@dataclass
class Difference:
    """Rows: of the truth that are not in the dataset, and of the dataset that are not true (or there twice)."""

    true: int = 0
    missing: int = 0
    wrong: int = 0

    def add(self, other: "Difference") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def none(self) -> bool:
        return not (self.missing or self.wrong)


@dataclass
class Verdict:
    """Of all hosts. classes, numbers: bucket rows with another class, or iteration, than the true one.

    clock_error_ns: the furthest that a row is from its bucket's true time.
    """

    rows: Difference = field(default_factory=Difference)
    iterations: Difference = field(default_factory=Difference)
    ledger: Difference = field(default_factory=Difference)
    classes: int = 0
    numbers: int = 0
    clock_error_ns: int = 0
    coarse_rows: int = 0  # wider than they would have been

    @property
    def true(self) -> bool:
        """Whether the dataset holds what was sent: rows as a multiset, iterations, ledger."""
        return self.rows.none and self.iterations.none and self.ledger.none


@dataclass(frozen=True)
class Stored:
    rows: int
    bytes: int
    files: int


def stored(data: Path, table: str) -> Stored:
    files = table_files(data, table)
    rows = sum(read_footer(path).num_rows for path in files)
    return Stored(rows, sum(path.stat().st_size for path in files), len(files))


def judge(data: Path, load: Load, report: Report) -> Verdict:
    """Blocks for seconds per million rows."""
    verdict = Verdict()
    found = {table: _by_host(data, table) for table in TABLES}
    for number, sent in enumerate(report.hosts):
        host = SimulatedHost(load, number, report.since_s)
        of = {table: hosts.get(host_name(number)) for table, hosts in found.items()}
        offset_ns = report.utc_ns - boot_ns(number)
        _judge_rows(host, sent, of["buckets"], offset_ns, verdict)
        _judge_iterations(host, sent, of["iterations"], offset_ns, verdict)
        _judge_ledger(host, sent, of["ledger"], offset_ns, verdict)
    return verdict


def _by_host(data: Path, table: str) -> dict[str, pa.Table]:
    rows = _rows(data, table)
    return {host: rows.filter(pc.equal(rows["host"], host)) for host in pc.unique(rows["host"]).to_pylist()}


def _rows(data: Path, table: str) -> pa.Table:
    """All of them, without dictionaries, which differ between files, and what the files say of themselves."""
    try:
        found = open_table(data, table)
    except NoRowsError:
        return pa.table({"host": pa.array([], pa.string())})
    plain = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in found.schema]
    rows = pa.Table.from_batches(stream(found), found.schema.remove_metadata())
    return rows.cast(pa.schema(plain)).drop_columns("date")


# --- rows


def _judge_rows(
    host: SimulatedHost, sent: HostReport, found: pa.Table | None, offset_ns: int, verdict: Verdict
) -> None:
    true, sure = _true_rows(host, sent)
    there = _found_rows(host, found, offset_ns, verdict)
    difference, pairs = _compare(true, sure, there, _SENT)
    verdict.rows.add(difference)
    a, b = true[pairs[:, 0]], there[pairs[:, 1]]
    fine = a["bucket_ns"] == MS
    verdict.classes += int((a["class"] != b["class"])[fine].sum())
    verdict.numbers += int((a["iteration"] != b["iteration"])[fine].sum())
    verdict.coarse_rows += int((there["bucket_ns"] > MS).sum())


def _true_rows(host: SimulatedHost, sent: HostReport) -> tuple[Table, npt.NDArray[np.bool_]]:
    """Rows of _JUDGED, times since the simulation began; which of them have to be there."""
    parts = [
        _as_stored(coarser(host.rows(batch), width), host.begin_ns(batch), width) for batch, width in _widths(sent)
    ]
    true = np.concatenate([np.empty(0, _JUDGED), *parts])
    sure = np.repeat(np.arange(len(parts)) < sent.acknowledged, [len(part) for part in parts])
    _classify(host, true)
    since = true["start_ns"] - host.begin_ns(0)
    starts = host.steps(sent.sent)
    index = np.searchsorted(starts, since, side="right") - 1
    inside = (index >= 0) & (since - starts[np.maximum(index, 0)] < STEP_END_MS * MS) if len(starts) else False
    true["iteration"] = np.where(inside, index, -1)
    return true, sure


def _widths(sent: HostReport) -> Iterator[tuple[int, int]]:
    """Every batch that was sent, with its width in ms."""
    ends = [first for first, _ in sent.widths[1:]] + [sent.sent]
    for (first, width), end in zip(sent.widths, ends, strict=True):
        for batch in range(first, end):
            yield batch, width


def _as_stored(rows: Table, begin_ns: int, width_ms: int) -> Table:
    table = np.zeros(len(rows), _JUDGED)
    for name in ("flow_id", *COUNTS):
        table[name] = rows[name]
    table["start_ns"] = rows["bucket_start_ns"].astype(np.int64) + begin_ns
    table["bucket_ns"] = width_ms * MS
    return table


def _classify(host: SimulatedHost, true: Table) -> None:
    """The class of each row, by the collector's own definition."""
    dl, cross = host.flow_classes(true["flow_id"])
    sent = host.sent(true["flow_id"])
    window = true["start_ns"] // (_SHARE_WINDOW_MS * MS) * 2 + sent
    numbers, of_row = np.unique(window, return_inverse=True)
    foreign = np.bincount(of_row, np.where(cross, true["payload_bytes"], 0), len(numbers))
    enough = _SHARE_THRESHOLD * CAPACITY_BPS / 8 * _SHARE_WINDOW_MS / SECOND_MS
    shared = (foreign > 0) & (foreign >= enough)
    own = np.where(shared[of_row], int(Class.DL_SHARED), int(Class.DL_ONLY)) if len(true) else 0
    true["class"] = np.where(dl, own, np.where(cross, int(Class.CROSS), int(Class.UNCLASSIFIED)))


def _found_rows(host: SimulatedHost, found: pa.Table | None, offset_ns: int, verdict: Verdict) -> Table:
    table = np.zeros(len(found) if found else 0, _JUDGED)
    if not found:
        return table
    for name in ("flow_id", "bucket_ns", *COUNTS, "iteration"):
        table[name] = found[name].to_numpy()
    table["start_ns"], error = _on_grid(found["bucket_start_ns"].to_numpy(), host, offset_ns)
    verdict.clock_error_ns = max(verdict.clock_error_ns, error)
    names = pa.array(CLASS_NAMES)
    table["class"] = pc.index_in(found["class"], names).to_numpy()
    return table


def _on_grid(utc_ns: npt.NDArray[np.int64], host: SimulatedHost, offset_ns: int) -> tuple[npt.NDArray[np.int64], int]:
    """UTC → since the simulation began, and the furthest that it is from a whole millisecond."""
    since = utc_ns - offset_ns - boot_ns(host.host)
    grid = (since + MS // 2) // MS * MS
    return grid, int(np.abs(since - grid).max(initial=0))


# --- iterations and ledger


def _judge_iterations(
    host: SimulatedHost, sent: HostReport, found: pa.Table | None, offset_ns: int, verdict: Verdict
) -> None:
    true, sure = (_true_steps(host, batches) for batches in (sent.sent, sent.acknowledged))
    there, strangers = np.zeros(0, _STEP), 0
    if found:
        of_job = found.filter(pc.equal(found["job"], host.job_name))
        there, strangers = np.zeros(len(of_job), _STEP), len(found) - len(of_job)
        for name in ("iteration", "rank"):
            there[name] = of_job[name].to_numpy()
        for name in ("start_ns", "end_ns"):
            there[name] = _on_grid(of_job[name].to_numpy(), host, offset_ns)[0]
    difference, _ = _compare(true, np.arange(len(true)) < len(sure), there)
    difference.wrong += strangers
    verdict.iterations.add(difference)


def _true_steps(host: SimulatedHost, batches: int) -> Table:
    starts = host.steps(batches)
    table = np.zeros(len(starts), _STEP)
    table["iteration"], table["rank"] = np.arange(len(starts)), host.rank
    table["start_ns"] = starts + host.begin_ns(0)
    table["end_ns"] = table["start_ns"] + STEP_END_MS * MS
    return table


def _judge_ledger(
    host: SimulatedHost, sent: HostReport, found: pa.Table | None, offset_ns: int, verdict: Verdict
) -> None:
    seconds, sure = (batches // host.load.batches for batches in (sent.sent, sent.acknowledged))
    per_batch = np.array([host.batch_totals(batch) for batch in range(seconds * host.load.batches)], np.int64)
    wire = per_batch.reshape(seconds, host.load.batches, 2, 2)[..., 0].sum(axis=1) if seconds else np.zeros((0, 2))
    true = np.zeros((seconds, 2), _INTERVAL)
    for direction in (0, 1):
        own = true[:, direction]
        own["sent"], own["attributed"] = direction, wire[:, direction]
        own["start_ns"] = host.begin_ns(0) + np.arange(seconds) * SECOND_MS * MS
        own["end_ns"] = own["start_ns"] + SECOND_MS * MS
        own["overflow" if direction else "lost"] = LOST_BYTES
        own["nic"] = own["attributed"] + LOST_BYTES
    there = np.zeros(len(found) if found else 0, _INTERVAL)
    if found:
        there["sent"] = pc.equal(found["direction"], "tx").to_numpy()
        for name in ("start_ns", "end_ns"):
            there[name] = _on_grid(found[name].to_numpy(), host, offset_ns)[0]
        for name in ("nic", "attributed", "overflow", "invisible"):
            there[name] = found[f"{name}_bytes"].to_numpy()
        there["lost"] = found["lost_kernel_bytes"].to_numpy()
    difference, _ = _compare(true.reshape(-1), np.repeat(np.arange(seconds) < sure, 2), there)
    verdict.ledger.add(difference)


def _compare(
    true: Table, sure: npt.NDArray[np.bool_], there: Table, names: tuple[str, ...] | None = None
) -> tuple[Difference, npt.NDArray[np.intp]]:
    """Rows as multisets, by these columns (all): the difference, and the indices (true, there) of those in both."""
    names = names or true.dtype.names or ()
    _, kind = np.unique(np.concatenate([_hashes(true, names), _hashes(there, names)]), return_inverse=True)
    left, right = kind[: len(true)], kind[len(true) :]
    order, other = np.lexsort((~sure, left)), np.argsort(right, kind="stable")
    left, right = left[order], right[other]
    # The n-th of a kind meets the n-th of the same kind on the other side.
    left_key, right_key = ((kinds << 32) + _nth(kinds) for kinds in (left.astype(np.int64), right.astype(np.int64)))
    _, in_true, in_there = np.intersect1d(left_key, right_key, assume_unique=True, return_indices=True)
    met = np.zeros(len(true), np.bool_)
    met[order[in_true]] = True
    difference = Difference(int(sure.sum()), int((sure & ~met).sum()), len(there) - len(in_there))
    return difference, np.column_stack([order[in_true], other[in_there]])


def _nth(ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of the same value came before each."""
    return np.arange(len(ascending)) - np.searchsorted(ascending, ascending)


def _hashes(table: Table, names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """64 bits of each row: equal rows have equal ones."""
    hashes = np.zeros(len(table), np.uint64)
    for name in names:
        hashes = (hashes ^ table[name].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes


# --- Whether two datasets have the same rows: each table as a multiset, every column, whatever file a row is in.

COMPARED = ("buckets", "flows", "iterations", "ledger", "nic", "sessions")

_CLOCK = ("clock_error_ns", "clock_offset_ns")
LEFT_OUT = {"sessions": _CLOCK, "ledger": _CLOCK, "flows": ("peer_rank",)}
"""What two runs over the same batches may differ in: how well a clock was known when a session was first stored, and

which flows had been stored before their other ends were described.
"""

_MOST_SHOWN = 3


@dataclass(frozen=True)
class TableDifference:
    """rows: of the first. missing: of the first that the second has not; extra: the other way round."""

    rows: int
    missing: int
    extra: int
    shown: Sequence[str] = ()  # a few of those, with their columns

    @property
    def none(self) -> bool:
        return not (self.missing or self.extra)


def compare(one: Path, other: Path) -> dict[str, TableDifference]:
    """By table; one that neither has is the same. Blocks for a second or two per million rows."""
    return {table: _table_difference(_dataset_rows(one, table), _dataset_rows(other, table)) for table in COMPARED}


def _dataset_rows(data: Path, name: str) -> "pd.DataFrame":
    rows = _rows(data, name)
    frame: pd.DataFrame = rows.select(sorted({*rows.column_names} - {*LEFT_OUT.get(name, ())})).to_pandas()
    return frame


def _table_difference(one: "pd.DataFrame", other: "pd.DataFrame") -> TableDifference:
    import pandas as pd

    both = pd.concat([one, other], ignore_index=True)
    kind = np.zeros(len(both), np.int64)
    if len(both):  # equal rows have equal hashes, of 64 bits
        _, kind = np.unique(pd.util.hash_pandas_object(both, index=False).to_numpy(), return_inverse=True)
    kinds = int(kind.max(initial=-1)) + 1
    more = np.bincount(kind[: len(one)], minlength=kinds) - np.bincount(kind[len(one) :], minlength=kinds)
    shown = [
        f"{sign} {', '.join(f'{name}={value}' for name, value in both.iloc[row].items())}"
        for sign, differs in (("-", more > 0), ("+", more < 0))
        for row in np.flatnonzero(differs[kind])[:_MOST_SHOWN]
    ]
    return TableDifference(len(one), int(more[more > 0].sum()), int(-more[more < 0].sum()), shown)
