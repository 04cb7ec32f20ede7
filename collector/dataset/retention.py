# SPDX-License-Identifier: Apache-2.0
"""How long rows are kept: by age or size per table; whole hours go, the oldest first."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from collector.dataset.tables import SCHEMAS
from netmon.errors import UsageError
from netmon.units import parse_duration, parse_size

_FORM = "TABLE=AGE or TABLE=SIZE, such as buckets=7d, full=10GB or all=90d"


@dataclass(frozen=True)
class Keep:
    """What to keep of a table; the default of each limit is none."""

    table: str  # "all": of each
    most_ns: int = 0
    most_bytes: int = 0


def parse_keep(text: str) -> Keep:
    """`buckets=7d`, `full=10GB` → Keep. Raises UsageError."""
    table, _, amount = text.partition("=")
    if not amount or table not in (*SCHEMAS, "all"):
        raise UsageError(f"cannot read {text!r}: write {_FORM}; tables are {', '.join(SCHEMAS)}")
    for parse, limit in ((parse_duration, "most_ns"), (parse_size, "most_bytes")):
        try:
            value = parse(amount)
        except UsageError:
            continue
        if value <= 0:
            break
        return Keep(table, **{limit: value})
    raise UsageError(f"cannot read {text!r}: write {_FORM}")


def too_old(directory: Path, keep: Iterable[Keep], now_s: float | None = None) -> list[Path]:
    """Folders of hours to be dropped; not a table's newest.

    Age counts up to the newest rows of the dataset: a clock that jumps ahead makes nothing old.
    """
    found: dict[Path, None] = {}
    if not keep:
        return []
    partitions = {table: _partitions(directory / table) for table in SCHEMAS}
    ends = [own[-1][0] for own in partitions.values() if own]
    now = min(
        [datetime.fromtimestamp(time.time() if now_s is None else now_s, timezone.utc), *([max(ends)] if ends else [])]
    )
    for rule in keep:
        for table in SCHEMAS if rule.table == "all" else (rule.table,):
            found |= dict.fromkeys(_of_table(partitions[table], rule, now))
    return list(found)


def _of_table(partitions: Sequence[tuple[datetime, Path]], rule: Keep, now: datetime) -> list[Path]:
    """partitions: with the time at which each ends, the oldest first."""
    older = partitions[:-1]
    if rule.most_ns:
        limit = now - timedelta(microseconds=rule.most_ns // 1000)
        return [path for end, path in older if end < limit]
    sizes = [sum(file.stat().st_size for file in path.glob("*.parquet")) for _, path in partitions]
    total, gone = sum(sizes), []
    for (_, path), size in zip(older, sizes, strict=False):
        if total <= rule.most_bytes:
            break
        gone.append(path)
        total -= size
    return gone


def _partitions(table: Path) -> list[tuple[datetime, Path]]:
    found = []
    for path in table.glob("date=*/hour=*"):
        with suppress(ValueError):  # not of ours
            begin = datetime.strptime("/".join(path.parts[-2:]), "date=%Y-%m-%d/hour=%H").replace(tzinfo=timezone.utc)
            found.append((begin + timedelta(hours=1), path))
    return sorted(found)
