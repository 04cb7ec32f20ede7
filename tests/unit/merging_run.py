# SPDX-License-Identifier: Apache-2.0
"""Writes numbered rows into a dataset and merges its files all the time, until somebody closes standard input.

The more files there are, the longer it waits for the next one, as reading them takes longer.
"""

import select
import sys
from pathlib import Path

from dataset_rows import BEGIN_NS, table

from collector.dataset import files
from collector.dataset.sink import ParquetSink

ROWS = 5  # of a write
SECOND_NS = 1_000_000_000
PAUSE_S = 0.0005  # for each file that was merged


def rows(first: int) -> dict[str, object]:
    numbers = list(range(first, first + ROWS))
    starts = [BEGIN_NS + number * SECOND_NS for number in numbers]
    words = {"host": "h0", "session": "s1", "job": "train"}
    return {
        "iterations": table(
            *("iterations", ROWS), iteration=numbers, start_ns=starts, end_ns=[ns + 1000 for ns in starts], **words
        ),
        "buckets": table(
            *("buckets", ROWS),
            bucket_start_ns=starts,
            bucket_ns=1000,
            wire_bytes=1,
            direction="tx",
            **words | {"class": "cross"},
        ),
    }


def main(directory: Path) -> None:
    files.ROLL_S = -1
    sink = ParquetSink(directory, durability="process")
    written = merged = 0
    while not select.select([sys.stdin], [], [], merged * PAUSE_S)[0]:
        for _ in range(2):
            sink.write(rows(written), {})
            written += ROWS
        while sink.merge_some(lambda: True):
            merged += 1
    sink.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
