# SPDX-License-Identifier: Apache-2.0
"""Recorded calls of ranks of real scripts, with the steps that the scripts wrote down: one file per script."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from netmon.records import STEP, Table

FOLDER = Path(__file__).parents[1] / "data" / "steps"
NAMES = sorted(path.stem for path in FOLDER.glob("*.parquet"))


class RecordedRank(NamedTuple):
    """calls: dtype STEP, in order; steps: (begin, end) of each, as the script knows them."""

    rank: int
    ranks: int  # of the job
    calls: Table
    steps: list[tuple[int, int]]


def write(name: str, recorded: list[RecordedRank]) -> None:
    """Keep them as a recording of this name."""
    calls = np.concatenate([rank.calls for rank in recorded])
    about = [(int(rank.calls["pid"][0]), rank.rank, rank.ranks, rank.steps) for rank in recorded]
    table = pa.table({column: calls[column] for column in STEP.names or ()})
    table = table.replace_schema_metadata({"ranks": json.dumps(about)})
    dictionary = [column for column in STEP.names or () if column != "time_ns"]
    encoding = {"time_ns": "DELTA_BINARY_PACKED"}
    FOLDER.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        FOLDER / f"{name}.parquet",
        compression="zstd",
        compression_level=19,
        use_dictionary=dictionary,
        column_encoding=encoding,
    )


def read(name: str) -> list[RecordedRank]:
    """The ranks of this recording."""
    table = pq.read_table(FOLDER / f"{name}.parquet")
    calls = np.zeros(len(table), STEP)
    for column in table.column_names:
        calls[column] = table[column]
    return [
        RecordedRank(rank, ranks, calls[calls["pid"] == pid], [(begin, end) for begin, end in steps])
        for pid, rank, ranks, steps in json.loads(table.schema.metadata[b"ranks"])
    ]
