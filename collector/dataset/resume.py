# SPDX-License-Identifier: Apache-2.0
"""What the dataset holds of a session already, so that batches sent again are stored once.

The name of a part says which batches made its rows final: part-<session>-<first>-<last>; every part of a session has a
higher first than those before it. Rows settle by time, not by batch, so the metadata of a table's newest part carries
what the next one must leave out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from collector.dataset.store import host_directory
from netmon.dl.timemap import TimeMap
from netmon.errors import DataError
from netmon.records import CLASS_NAMES, Class, Direction, Flow, Hello, Owner

STATE_KEY = b"netmon.state"
_NUMBERED = ("buckets", "ledger", "iterations", "nic")  # tables whose parts are named after batches
FLOW_OVER_NS = 600_000_000_000  # an agent gives a flow that was idle for half of it a new number
RECENT_NS = 60_000_000_000  # a rank whose last stored iteration is older has to join again


@dataclass(frozen=True)
class RankState:
    """A rank whose iterations up to end_utc are stored."""

    job: str
    rank: int
    size: int
    parameters: int
    end_utc: int
    number: int  # of the last of them, as the rank counts
    trust: int  # of its own numbers
    shift: int  # from them to the job's


@dataclass(frozen=True)
class StoredFlow:
    """A flow as its row tells it."""

    flow: Flow
    part: int
    last_ns: int  # mono
    shared: bool


@dataclass(frozen=True)
class Resume:
    """The state of a session in the dataset; the default is a session that it has never seen."""

    last_sequence: int = 0  # of these batches, all rows that start before settled_ns are stored
    complete_sequence: int = 0  # of these batches, all rows are stored
    settled_ns: int = -1
    first_free: int = 0  # parts of the session that begin with it or later do not exist; 0: none exists
    clock: TimeMap | None = None  # as the rows used it
    nic_sequence: int = 0  # of the last batch whose samples of the NICs are stored
    ledger_until_utc: dict[int, int] = field(default_factory=dict)  # by link
    ledger_totals: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    ranks: tuple[RankState, ...] = ()
    flows: tuple[StoredFlow, ...] = ()
    flow_dates: dict[int, str] = field(default_factory=dict)  # of the parts that hold them

    def holds(self, sequence: int, start_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which rows of a batch are stored, by the start of their buckets."""
        if sequence <= self.complete_sequence:
            return np.ones(len(start_ns), np.bool_)
        return (start_ns < self.settled_ns) & (sequence <= self.last_sequence)


def read_resume(directory: Path, hello: Hello) -> Resume:
    """Look the session up; reads a few small files. Raises DataError where one cannot be read."""
    try:
        buckets, ledger, ranks, nic = (_newest_state(directory, table, hello) for table in _NUMBERED)
        firsts = [_first(path) for table in _NUMBERED for path in _parts(directory, table, hello)]
        clock = next((TimeMap.from_document(s["clock"]) for s in (buckets, ledger, ranks) if s), None)
        used = clock or TimeMap.constant(hello.clock.offset_ns)
        # What comes next may have waited for long: flows that went on then were alive at the last that is stored.
        last_utc = used.utc(buckets["settled_ns"]) if buckets else 0
        files = _flow_files(directory, hello, min(last_utc, hello.clock.utc_ns) - FLOW_OVER_NS)
        flows = [flow for path in files for flow in _flows(path, hello, used)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot resume session {hello.session} of {hello.host} in {directory}: {error}") from None
    joined = [RankState(**rank) for rank in ranks.get("ranks", [])]
    return Resume(
        last_sequence=buckets.get("last_sequence", 0),
        complete_sequence=buckets.get("complete_sequence", 0),
        settled_ns=buckets.get("settled_ns", -1),
        first_free=max(firsts, default=-1) + 1,
        clock=clock,
        ledger_until_utc={int(link): until for link, until in ledger.get("ledger_until_utc", {}).items()},
        ledger_totals={int(k): np.array(total, np.int64) for k, total in ledger.get("ledger_totals", {}).items()},
        ranks=tuple(rank for rank in joined if rank.end_utc > hello.clock.utc_ns - RECENT_NS),
        nic_sequence=nic.get("last_sequence", 0),
        flows=tuple(flows),
        flow_dates={_part(path): path.parent.parent.name.removeprefix("date=") for path in files},
    )


def _parts(directory: Path, table: str, hello: Hello) -> Iterator[Path]:
    return directory.glob(f"{host_directory(table, '*', hello.host)}/part-{hello.session}-*.parquet")


def _newest_state(directory: Path, table: str, hello: Hello) -> dict[str, Any]:
    newest = max(_parts(directory, table, hello), key=_first, default=None)
    if newest is None:
        return {}
    state: dict[str, Any] = json.loads(pq.read_schema(newest).metadata[STATE_KEY])
    return state


def _first(path: Path) -> int:
    return int(path.stem.rsplit("-", 2)[1])


def _part(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])


def _flow_files(directory: Path, hello: Hello, over_utc: int) -> list[Path]:
    """The parts with flows seen since over_utc, and the last one, which may not be full; ascending."""
    files = sorted(_parts(directory, "flows", hello), key=_part)
    return [path for path in files if path == files[-1] or _last_seen(path) >= over_utc]


def _last_seen(path: Path) -> int:
    groups, column = pq.ParquetFile(path).metadata, pq.read_schema(path).get_field_index("last_ns")
    return max(int(groups.row_group(i).column(column).statistics.max) for i in range(groups.num_row_groups))


def _flows(path: Path, hello: Hello, clock: TimeMap) -> Iterator[StoredFlow]:
    indices = {interface.name: interface.index for interface in hello.interfaces}
    for row in pq.ParquetFile(path).read().to_pylist():
        owner = Owner(*(row[name] for name in ("pid", "process", "container", "job", "rank", "class_source")))
        flow = Flow(
            flow_id=row["flow_id"],
            interface=indices[row["interface"]],
            direction=Direction[row["direction"].upper()],
            src=row["src"],
            dst=row["dst"],
            src_port=row["src_port"],
            dst_port=row["dst_port"],
            protocol=row["protocol"],
            first_ns=clock.mono(row["first_ns"]),
            owner=owner,
            members=row.get("members", 0),  # of a netmon before there were aggregates
            prefix_bits=row.get("prefix_bits", 0),
        )
        yield StoredFlow(flow, _part(path), clock.mono(row["last_ns"]), row["class"] == CLASS_NAMES[Class.DL_SHARED])
