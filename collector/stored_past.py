# SPDX-License-Identifier: Apache-2.0
"""Rows of the dataset for viewers who go back in time: read alongside everything else, a bounded part at a time."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import grpc
import pyarrow as pa

from collector.full_resolution import arrow_stream
from netmon.dl.sharing.advice import Advice
from netmon.errors import NetmonError, WireError
from netmon.past import RowQuery
from netmon.views import Verdict
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_TEXT
from netmon.wire.queries import decode_wanted

MOST_ROWS = 6_000_000
"""Of one answer."""

_PART_ROWS = 100_000  # and more, as they come out of the files
_AT_A_TIME = 2
_LET_GO_AFTER_S = 20.0  # a reader that has not read a part until then


class Dataset(Protocol):
    """What the collector itself reads of what it has stored."""

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        """As netmon.past.Rows has them. Blocks for each. Raises NetmonError."""

    def verdicts(self, job: str, since_ns: int, until_ns: int) -> Sequence[Verdict]:
        """Made now, on a job's iterations that stand out and overlap this time (UTC). Blocks. Raises DataError."""

    def advice(self, jobs: Collection[str]) -> Advice:
        """On the last seconds of these jobs and those on their links; none: of all. Blocks. Raises DataError."""


class StoredPast:
    """Of one collector; lives on one event loop."""

    def __init__(self, rows: Dataset | None) -> None:
        """rows: None where nobody may read the dataset."""
        self._rows = rows
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    async def send(self, request: netmon_pb2.PastQuery, context: Any) -> None:
        """Answer a query, or end the call with the reason."""
        if self._rows is None:
            line = "this collector does not tell of its dataset"
            await context.abort(grpc.StatusCode.NOT_FOUND, line)
            return
        try:
            wanted = decode_wanted(request)
            async with self._turns:
                coming, sent = self._rows.batches(wanted), 0
                while (part := await asyncio.to_thread(_part, coming)) is not None:
                    rows, data = part
                    sent += rows
                    if sent > MOST_ROWS:
                        line = f"these are more than {MOST_ROWS:,} rows of {wanted.table}: ask for less time"
                        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, line)
                    await asyncio.wait_for(context.write(netmon_pb2.PastPart(rows=data)), _LET_GO_AFTER_S)
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NetmonError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except (ValueError, TypeError, OverflowError) as error:  # Arrow's are among them
            why = str(error).splitlines()[0][:MAX_TEXT]
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot read {wanted.table} so: {why}")
        except asyncio.TimeoutError:
            reason = f"no part was read for {_LET_GO_AFTER_S:.0f} s"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


def _part(coming: Iterator[pa.RecordBatch]) -> tuple[int, bytes] | None:
    """The next part, and its number of rows; None: there is none."""
    batches, rows = [], 0
    for batch in coming:
        batches.append(batch)
        rows += batch.num_rows
        if rows >= _PART_ROWS:
            break
    if not batches:
        return None
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    return rows, arrow_stream(table)
