# SPDX-License-Identifier: Apache-2.0
"""Jobs that stood still, out of a dataset, and what was there before they did."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from netmon.dl.hangs import operation_name
from netmon.dl.rank_activity import OVER
from netmon.errors import NoRowsError
from netmon.history.dataset import open_table, read_rows, stream
from netmon.views import Hang, Hung


def read_hangs(data: Path, job: str | None = None) -> list[Hang]:
    """Newest first, each as it was known last. job: only those of this one, by its identity. Raises DataError."""
    try:
        table = open_table(data, "hangs")
    except NoRowsError:
        return []
    condition = None if job is None else ds.field("job") == job
    names = list(Hang.__dataclass_fields__)
    found = [_hang(row) for batch in stream(table, names, condition) for row in batch.to_pylist()]
    newest = {(one.job, one.since_ns, one.reported_ns): one for one in sorted(found, key=lambda one: one.until_ns)}
    return sorted(newest.values(), key=lambda one: -one.since_ns)


def _hang(row: dict[str, Any]) -> Hang:
    ranks = {name: tuple(row[name]) for name in ("missing", "waiting")}
    return Hang(**row | ranks | {"what": Hung[row["what"].upper()]})


# --- What was there before.

_BEFORE_NS = 10_000_000_000  # who sent something then
_STILL_NS = 2_000_000_000  # after a hang began, flows that stand still do
_TRICKLE_BPS = 1_000  # payload, bytes per second
_MOST_NS = 60_000_000_000  # of a hang, in a trace of it
_OPENED_NS = 3_600_000_000_000
_FLOW = ["session", "flow_id"]


@dataclass(frozen=True)
class Before:
    """The last that a job did. Times are UTC, ns."""

    step: int  # of the missing rank, or any; −1: not known
    step_end_ns: int
    through: str  # what the missing rank was through; empty: not known
    flows: int  # of the job, that carried something
    still: int  # of these, that do not any more
    still_ns: int  # since when

    def line(self, moment: Callable[[int], str]) -> str:
        """In words; empty: nothing is known. moment: of UTC."""
        parts = []
        if self.step >= 0:
            parts.append(f"step {self.step:,} ended at {moment(self.step_end_ns)}")
        if self.through:
            parts.append(f"the rank was through {self.through}")
        if self.still:
            all_of = "all" if self.still == self.flows else f"{self.still} of"
            parts.append(f"{all_of} {self.flows} flows of the job stood still from {moment(self.still_ns)} on")
        return f"before: {'; '.join(parts)}" if parts else ""


def around(hang: Hang) -> tuple[int, int]:
    """From before it until it was over, or told: as much as a trace of it has, at most."""
    return hang.since_ns - _BEFORE_NS, min(hang.until_ns or hang.reported_ns, hang.since_ns + _MOST_NS) + _STILL_NS


def before(data: Path, hang: Hang) -> Before:
    """Raises DataError."""
    begin_ns, end_ns = hang.since_ns - _BEFORE_NS, hang.until_ns or hang.reported_ns
    span = begin_ns - _OPENED_NS, end_ns
    own = (ds.field("job") == hang.job) & ((ds.field("rank") == hang.rank) | (hang.rank < 0))
    over = own & (ds.field("end_ns") <= end_ns)
    steps = read_rows(data, "iterations", ["iteration", "end_ns"], over, span).sort_values("end_ns").tail(1)
    columns = ["operation", "sequence", "end_ns", "age_ns"]
    calls = read_rows(data, "waits", columns, over & (ds.field("pending") == OVER) & (ds.field("operation") >= 0), span)
    calls = calls.assign(begun_ns=calls["end_ns"] - calls["age_ns"]).sort_values("begun_ns").tail(1)
    through = (
        [_called(*row) for row in calls[["operation", "sequence"]].itertuples(index=False)] if hang.rank >= 0 else []
    )
    number, step_end_ns = next(steps.itertuples(index=False, name=None), (-1, 0))
    return Before(int(number), int(step_end_ns), "".join(through), *_flows(data, hang, begin_ns, end_ns))


def _called(operation: int, sequence: int) -> str:
    return operation_name(int(operation)) + (f" {int(sequence):,}" if sequence >= 0 else "")


def _flows(data: Path, hang: Hang, begin_ns: int, end_ns: int) -> tuple[int, int, int]:
    """How many carried something before; how many do not any more; since when these do not."""
    start = ds.field("bucket_start_ns")
    sent = (ds.field("job") == hang.job) & (ds.field("payload_bytes") > 0) & (start >= begin_ns) & (start < end_ns)
    columns = [*_FLOW, "bucket_start_ns", "payload_bytes"]
    rows = read_rows(data, "buckets", columns, sent, (begin_ns - _OPENED_NS, end_ns))
    earlier = rows[rows["bucket_start_ns"] < hang.since_ns + _STILL_NS]
    after = rows[rows["bucket_start_ns"] >= hang.since_ns + _STILL_NS].groupby(_FLOW)["payload_bytes"].sum()
    last = earlier.groupby(_FLOW)["bucket_start_ns"].max()
    later = after.reindex(last.index, fill_value=0)
    still = last[later <= _TRICKLE_BPS * max(0, end_ns - hang.since_ns - _STILL_NS) / 1e9]
    return len(last), len(still), int(still.max()) if len(still) else 0
