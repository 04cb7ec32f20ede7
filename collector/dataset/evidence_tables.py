# SPDX-License-Identifier: Apache-2.0
"""Rows of what TCP says and of the host's part as Arrow tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.dataset.tables import SCHEMAS, Origins, column_of
from netmon.columnar import Columns
from netmon.evidence import UNKNOWN

_Indices = npt.NDArray[np.integer]


def transport_table(origins: Origins, of: _Indices, pieces: Sequence[Columns]) -> pa.Table:
    """Rows of collector.host.evidence.STORED_TRANSPORT as the table `transport`; null: the kernel does not report."""
    columns = _numbers("transport", pieces) | _times(origins, of, pieces)
    limited = column_of(pieces, "application_limited")
    columns["application_limited"] = pa.array(limited == 1, mask=limited == UNKNOWN)
    return origins.table("transport", of, columns | origins.link_columns(of, column_of(pieces, "link")))


def host_table(origins: Origins, of: _Indices, jobs: Sequence[str], pieces: Sequence[Columns]) -> pa.Table:
    """Rows of collector.host.evidence.STORED_HOST_PART as the table `host`; jobs: by the rows' number."""
    columns = _numbers("host", pieces) | _times(origins, of, pieces)
    job = column_of(pieces, "job")
    names = pa.array([*jobs, ""], pa.string())
    columns["job"] = pa.DictionaryArray.from_arrays(pa.array(np.where(job < 0, len(jobs), job), pa.int32()), names)
    columns["rank"] = column_of(pieces, "rank")
    columns["pid"] = np.maximum(column_of(pieces, "pid"), 0)
    return origins.table("host", of, columns)


def _times(origins: Origins, of: _Indices, pieces: Sequence[Columns]) -> dict[str, Any]:
    return {name: origins.utcs(of, column_of(pieces, name)) for name in ("start_ns", "end_ns")}


def _numbers(name: str, pieces: Sequence[Columns]) -> dict[str, Any]:
    """The columns that are numbers or not known."""
    there = [field for field in SCHEMAS[name] if field.name in pieces[0].names]
    numbers = {}
    for field in there:
        if pa.types.is_integer(field.type):
            column = column_of(pieces, field.name)
            numbers[field.name] = pa.array(column, field.type, mask=column == UNKNOWN, safe=False)
    return numbers
