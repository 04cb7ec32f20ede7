# SPDX-License-Identifier: Apache-2.0
"""Questions to a collector: full resolution of a moment, rows of its dataset, its advice. Rows come as Arrow tables,
which whoever only watches need not load.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.ipc

from netmon.errors import WireError
from netmon.views import TABLES, RankTimes, RowQuery, Selection, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.limits import MAX_NAME
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import open_channel
from netmon.wire.security import PLAIN, Security
from netmon.wire.watch import OPTIONS, VIEWERS, UnreachableError, answers, reason, split, watch_once


@dataclass(frozen=True)
class FullPart:
    """What one host had."""

    host: str
    rows: pa.Table
    gap: str  # what is missing, and why; empty: nothing


def get_full(
    address: str, hosts: Sequence[str], since_ns: int, until_ns: int, security: Security = PLAIN
) -> Iterator[FullPart]:
    """Full resolution of [since_ns, until_ns) UTC of these hosts, none named: of all; blocks for each.

    Raises UnreachableError where the collector does not answer or cannot get it, WireError where it answers nonsense,
    UsageError and CertificateError where none may be queried.
    """
    query = netmon_pb2.FullQuery(hosts=hosts, since_ns=since_ns, until_ns=until_ns)
    with open_channel(address, security, OPTIONS, *VIEWERS) as channel:
        call = CollectorStub(channel).Full(query)  # type: ignore[no-untyped-call]
        for part in answers(call, address, security):
            yield FullPart(part.host, read_rows(part.rows, address), part.gap)


def read_rows(data: bytes, address: str) -> pa.Table:
    """An Arrow stream of a collector's. Raises WireError."""
    try:
        with pyarrow.ipc.open_stream(data) as reader:
            return reader.read_all()
    except pa.ArrowException as error:
        raise WireError(f"what the collector at {address} answers is no Arrow stream: {error}") from None


_MOST_COLUMNS, _MOST_VALUES = 64, 4_096


class CollectorRows:
    """See netmon.views.Rows. Of workers that share a dataset, the first one that answers is queried."""

    def __init__(self, addresses: str, security: Security = PLAIN) -> None:
        """addresses: of a collector, or of multiple workers with commas."""
        self.name = f"the collector at {addresses}"
        self._addresses, self._security = addresses, security

    def newest_ns(self) -> int:
        """Now, by the collector's clock. Raises UnreachableError."""
        selection = Selection(most_links=1, most_hosts=1, most_jobs=1, most_ranks=1)
        return watch_once(self._addresses, selection, self._security).time_ns

    def written(self) -> bool:
        return True

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        """See Rows. Raises UnreachableError where no collector answers, or tells; WireError where it answers nonsense.

        UsageError and CertificateError where none may be queried.
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

    def judged(self, since_ns: int) -> Sequence[Verdict]:
        """None: the collector does that."""
        return ()

    def explained(self, job: str, iteration: int) -> Sequence[tuple[Verdict, Sequence[RankTimes]]]:
        """Nothing: the collector sent it with its verdict."""
        return ()

    def _of(self, address: str, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        with open_channel(address, self._security, OPTIONS, *VIEWERS) as channel:
            call = CollectorStub(channel).Past(encode_wanted(wanted))  # type: ignore[no-untyped-call]
            for part in answers(call, address, self._security):
                yield from read_rows(part.rows, address).to_batches()


def encode_wanted(wanted: RowQuery) -> netmon_pb2.PastQuery:
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


_TIMEOUT_S = 60
_OPTIONS = (("grpc.max_receive_message_length", -1),)
_LISTS = ("advice", "culprits", "jobs", "unjudged", "shares", "unknown_links", "pairs", "links")


def get_advice(addresses: str, job: str = "", security: Security = PLAIN) -> dict[str, Any]:
    """Advice (netmon.dl.sharing.advice_text.document) from a collector, or from multiple workers (`A,B`); blocks.

    job: only of this one and those that share its links; "": of all. Raises UnreachableError where a collector does not
    answer or none has anything to report, WireError where it answers nonsense, UsageError and CertificateError where
    none may be queried.
    """
    answers, last = [], UnreachableError("")
    for address in split(addresses):
        try:
            answers.append(_advice_of(address, job, security))
        except _NothingError as error:
            last = error
    if not answers:
        raise last
    return answers[0] if len(answers) == 1 else _all_advice(answers)


class _NothingError(UnreachableError):
    """It has nothing to report."""


def _advice_of(address: str, job: str, security: Security) -> dict[str, Any]:
    with open_channel(address, security, _OPTIONS, *VIEWERS) as channel:
        try:
            query = netmon_pb2.AdviceQuery(job=job)
            answer = CollectorStub(channel).Advise(query, timeout=_TIMEOUT_S)  # type: ignore[no-untyped-call]
            found = json.loads(answer.document)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.NOT_FOUND:
                raise _NothingError(str(error.details())) from None
            raise UnreachableError(f"cannot reach the collector at {address}: {reason(error, security)}") from None
        except ValueError as error:
            raise WireError(f"what the collector at {address} answers is no JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), list) for name in _LISTS):
        raise WireError(f"what the collector at {address} answers is no advice")
    if not isinstance(found.get("names", {}), dict):
        raise WireError(f"the names in what the collector at {address} answers are none")
    return found


def _all_advice(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Each job and link is with one worker."""
    span = {"begin_ns": min(one["begin_ns"] for one in answers), "end_ns": max(one["end_ns"] for one in answers)}
    names = {job: name for one in answers for job, name in one.get("names", {}).items()}
    return {**span, "names": names, **{name: [item for one in answers for item in one[name]] for name in _LISTS}}
