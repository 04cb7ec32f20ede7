# SPDX-License-Identifier: Apache-2.0
"""Sessions of datasets with a folder per host (schema versions 1 to 3), which a collector may have to go on with.

There the name of a part says which batches made its rows final: part-<session>-<first>-<last>; every part of a session
has a higher first than those before it. The metadata of a table's newest part carries the session's state.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.resume import RankState, Resume, SessionState, over_before, resume_from
from collector.dataset.tables import DATASET_VERSION
from netmon.dl.timemap import TimeMap
from netmon.errors import DataError
from netmon.records import Hello

_OLDEST_CONTINUED = 3  # schema version whose rows can be read as one table with ours
_STATE_KEY = b"netmon.state"
_NUMBERED = ("buckets", "ledger", "iterations", "nic")  # tables whose parts are named after batches


def earlier_resume(directory: Path, hello: Hello) -> tuple[Resume, dict[Path, pa.Table]]:
    """Look the session up, and its files of flows that may go on; reads a few small files. Raises DataError."""
    try:
        buckets, ledger, ranks, nic = (_newest_state(directory, table, hello) for table in _NUMBERED)
        state = _state(hello.host, buckets, ledger, ranks)
        over = over_before(state.clock, state.settled_ns, hello)
        flows = {path: pq.ParquetFile(path).read() for path in _flow_files(directory, hello, over)}
        resume = resume_from(state, [row for table in flows.values() for row in table.to_pylist()], hello)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot resume session {hello.session} of {hello.host} in {directory}: {error}") from None
    return replace(resume, nic_sequence=nic.get("last_sequence", 0)), flows


def session_state(host: str, texts: Mapping[str, tuple[int, bytes]]) -> SessionState:
    """What the newest files of a session's tables say, as one. texts: by table. Raises ValueError."""
    states = {table: json.loads(text) for table, (_, text) in texts.items()}
    return _state(host, *(states.get(table, {}) for table in _NUMBERED[:3]))


def _state(host: str, buckets: dict[str, Any], ledger: dict[str, Any], ranks: dict[str, Any]) -> SessionState:
    return SessionState(
        host=host,
        last_sequence=buckets.get("last_sequence", 0),
        complete_sequence=buckets.get("complete_sequence", 0),
        settled_ns=buckets.get("settled_ns", -1),
        clock=next((found for state in (buckets, ledger, ranks) if (found := _clock(state))), None),
        ledger_until_utc={int(link): until for link, until in ledger.get("ledger_until_utc", {}).items()},
        ledger_totals={int(k): np.array(total, np.int64) for k, total in ledger.get("ledger_totals", {}).items()},
        ranks=_ranks(ranks),
    )


def _ranks(state: dict[str, Any]) -> tuple[RankState, ...]:
    """None of version 1, which did not count their iterations: they join again."""
    return tuple(
        RankState(**rank) for rank in state.get("ranks", []) if rank.keys() == RankState.__annotations__.keys()
    )


def _clock(state: dict[str, Any]) -> TimeMap | None:
    if "clock_offset_ns" in state:  # version 1
        return TimeMap.constant(state["clock_offset_ns"])
    return TimeMap.from_document(state["clock"]) if state.get("clock") else None


def _parts(directory: Path, table: str, hello: Hello) -> Iterator[Path]:
    return (directory / table).glob(f"date=*/host={quote(hello.host, safe='')}/part-{hello.session}-*.parquet")


def _newest_state(directory: Path, table: str, hello: Hello) -> dict[str, Any]:
    newest = max(_parts(directory, table, hello), key=_first, default=None)
    if newest is None:
        return {}
    state: dict[str, Any] = json.loads(pq.read_schema(newest).metadata[_STATE_KEY])
    return state


def _first(path: Path) -> int:
    return int(path.stem.rsplit("-", 2)[1])


def _flow_files(directory: Path, hello: Hello, over: int) -> list[Path]:
    """The parts with flows that may go on; ascending."""
    files = sorted(_parts(directory, "flows", hello), key=lambda path: int(path.stem.rsplit("-", 1)[1]))
    return [path for path in files if last_seen(path) >= over]


def last_seen(path: Path) -> int:
    """The newest last_ns of a file of flows, by its statistics. Raises OSError."""
    groups, column = pq.ParquetFile(path).metadata, pq.read_schema(path).get_field_index("last_ns")
    return max(int(groups.row_group(i).column(column).statistics.max) for i in range(groups.num_row_groups))


def check_schema(directory: Path) -> None:
    """Raise DataError where a table's newest day holds rows of another schema: they cannot be read as one table."""
    for table in sorted(path for path in directory.iterdir() if path.is_dir()):
        newest = max(table.glob("date=*"), default=None)
        part = next(newest.glob("*=*/part-*.parquet"), None) if newest else None
        try:
            metadata = (pq.read_schema(part).metadata or {}) if part else {}
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot continue the dataset in {directory}: {part}: {error}; move it away") from None
        version = int(metadata.get(b"netmon.schema_version", DATASET_VERSION))
        if not _OLDEST_CONTINUED <= version <= DATASET_VERSION:
            raise DataError(
                f"cannot continue the dataset in {directory}: its {table.name} have schema version {version}, "
                f"this netmon writes {DATASET_VERSION}; run `netmon migrate {directory}`, or choose another --data "
                "(`netmon report` and `export` read both)"
            )
