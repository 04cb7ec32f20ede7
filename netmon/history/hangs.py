# SPDX-License-Identifier: Apache-2.0
"""Jobs that stood still, out of a dataset."""

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from netmon.errors import NoRowsError
from netmon.history.dataset import open_table, stream
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
    newest = {(one.job, one.since_ns, one.told_ns): one for one in sorted(found, key=lambda one: one.until_ns)}
    return sorted(newest.values(), key=lambda one: -one.since_ns)


def _hang(row: dict[str, Any]) -> Hang:
    ranks = {name: tuple(row[name]) for name in ("missing", "waiting")}
    return Hang(**row | ranks | {"what": Hung[row["what"].upper()]})
