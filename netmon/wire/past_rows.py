# SPDX-License-Identifier: Apache-2.0
"""Rows of the dataset that a collector writes, asked of the collector: both ends of its Past call."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from netmon.errors import WireError
from netmon.past import TABLES, RowQuery
from netmon.views import RankTimes, Selection, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.full import read_rows
from netmon.wire.limits import MAX_NAME
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import open_channel
from netmon.wire.security import PLAIN, Security
from netmon.wire.watch import OPTIONS, VIEWERS, UnreachableError, answers, split, watch_once

_MOST_COLUMNS, _MOST_VALUES = 64, 4_096


class CollectorRows:
    """See netmon.past.Rows. Of several workers, which share a dataset, the first one that answers is asked."""

    def __init__(self, addresses: str, security: Security = PLAIN) -> None:
        """addresses: of a collector, or of several workers with commas."""
        self.name = f"the collector at {addresses}"
        self._addresses, self._security = addresses, security

    def newest_ns(self) -> int:
        """Now, by the collector's clock. Raises UnreachableError."""
        selection = Selection(most_links=1, most_hosts=1, most_jobs=1, most_ranks=1)
        return watch_once(self._addresses, selection, self._security).time_ns

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        """See Rows. Raises UnreachableError where no collector answers, or tells; WireError where it answers nonsense.

        UsageError and CertificateError where none may be asked.
        """
        last: UnreachableError | None = None
        for address in split(self._addresses):
            try:
                first = True
                for batch in self._of(address, wanted):
                    first = False
                    yield batch
                return
            except UnreachableError as error:
                if not first:
                    raise
                last = error
        assert last is not None
        raise last

    def explained(self, job: str, iteration: int) -> Sequence[tuple[Verdict, Sequence[RankTimes]]]:
        """Nothing: the collector sent it with its verdict."""
        return ()

    def _of(self, address: str, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        with open_channel(address, self._security, OPTIONS, *VIEWERS) as channel:
            call = CollectorStub(channel).Past(encode_wanted(wanted))  # type: ignore[no-untyped-call]
            for part in answers(call, address, self._security):
                yield from read_rows(part.rows, address).to_batches()


def encode_wanted(wanted: RowQuery) -> netmon_pb2.PastQuery:
    """The question as a message."""
    query = netmon_pb2.PastQuery(
        table=wanted.table, columns=wanted.columns, since_ns=wanted.since_ns, until_ns=wanted.until_ns
    )
    for column, values in wanted.among.items():
        among = query.among.add(column=column)
        among.words.extend(value for value in values if isinstance(value, str))
        among.numbers.extend(value for value in values if not isinstance(value, str))
    return query


def decode_wanted(query: netmon_pb2.PastQuery) -> RowQuery:
    """The question of a message. Raises WireError."""
    if query.table not in TABLES:
        raise WireError(f"PastQuery.table is {query.table[:MAX_NAME]!r}, not one of {', '.join(TABLES)}")
    if query.until_ns <= query.since_ns:
        raise WireError("a time has to end after it begins")
    values = sum(len(one.words) + len(one.numbers) for one in query.among)
    if len(query.columns) + len(query.among) > _MOST_COLUMNS or values > _MOST_VALUES:
        raise WireError(f"PastQuery names more than {_MOST_COLUMNS} columns or {_MOST_VALUES} values")
    among: dict[str, Sequence[str | int]] = {one.column: [*one.words, *one.numbers] for one in query.among}
    return RowQuery(query.table, tuple(query.columns), query.since_ns, query.until_ns, among)
