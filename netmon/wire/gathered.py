# SPDX-License-Identifier: Apache-2.0
"""What is read message by message of many batches: as little as can be, and all of it checked."""

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from netmon.errors import WireError
from netmon.evidence import HOST_PART, TRANSPORT
from netmon.mark_runs import MarkRun, MarkTable, mark_table, whose
from netmon.records import ClockExchange, Flow, Moment, NicSample
from netmon.wire import netmon_pb2
from netmon.wire.details import (
    LEDGER_MOST,
    check_ledger,
    check_times,
    clock_values,
    cost_values,
    read_exchange,
    read_flow,
    read_mark,
    read_mark_runs,
    read_name,
    read_nic,
)
from netmon.wire.evidence_columns import Columns as EvidenceColumns
from netmon.wire.evidence_columns import read_jobs, split_evidence
from netmon.wire.head import check_counts, check_head
from netmon.wire.limits import (
    FURTHEST_NS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_MONO_NS,
    MAX_SPAN_NS,
    MAX_UTC_NS,
)
from netmon.wire.stacked import Split, split_buckets

LEDGER_FIELDS = ("interface", "direction", *LEDGER_MOST)

_sample = attrgetter(*LEDGER_FIELDS)
_head = attrgetter("sequence", "horizon_ns", "clock", "cost", "buckets", "marks", "ledger")
_clock = attrgetter("mono_ns", "utc_ns", "error_ns", "utc_error_ns", "discipline")
_cost = attrgetter("cpu_fraction", "rss_bytes", "spool_bytes", "warnings")
_few = attrgetter("flows", "exchanges", "nic")
_told = attrgetter("moment", "iteration", "time_ns", "error_ns")
_MOMENTS = [int(moment) for moment in Moment]
_LEAST_HEAD = np.array([1, 0, -1, 0, 0, 0, 0, 0, 0, 0])
_MOST_HEAD = np.array(
    [
        *(MAX_COUNT, MAX_MONO_NS, 1 << 62),
        *(MAX_MONO_NS, MAX_UTC_NS, MAX_SPAN_NS, MAX_SPAN_NS),
        *(MAX_BYTES, MAX_BYTES, MAX_BYTES),
    ]
)


class Gathered:
    """What is read message by message."""

    def __init__(self) -> None:
        """Of no message."""
        self.indices: list[int] = []  # of the messages that are not refused
        self.heads: list[tuple[int, ...]] = []
        self.loads: list[float] = []
        self.flows: list[tuple[int, Flow]] = []
        self.runs: list[tuple[int, MarkRun]] = []  # of marks, that were read one by one
        self.marks: MarkTable | None = None  # that were read together
        self.exchanges: list[tuple[int, ClockExchange]] = []
        self.nic: list[tuple[int, NicSample]] = []
        self.ledger: list[tuple[int, ...]] = []
        self.ledger_of: list[int] = []
        self.buckets: list[Split] = []
        self.disciplines: dict[int, str] = {}
        self.evidence: tuple[list[EvidenceColumns], list[EvidenceColumns]] = [], []  # of TRANSPORT, of HOST_PART
        self.evidence_of: tuple[list[int], list[int]] = [], []
        self.host_jobs: dict[int, tuple[str, ...]] = {}

    def add(self, index: int, message: netmon_pb2.Batch) -> None:
        """Read one completely, then keep it. Raises WireError."""
        buckets = split_buckets(message.buckets)
        check_counts(message)
        *clock, discipline = clock_values(message.clock)
        load, *cost = cost_values(message.cost)
        sequence, horizon_ns = check_head(message)
        flows = [read_flow(flow) for flow in message.flows]
        marks = read_mark_runs(message.marks)
        exchanges = [read_exchange(exchange) for exchange in message.exchanges]
        nic = read_nic(message.nic)
        ledger = [_sample(sample) for sample in message.ledger]
        for sample in ledger:
            check_ledger("direction", sample[1], 1)
            check_ledger("time_ns", sample[2], LEDGER_MOST["time_ns"])
        check_times(horizon_ns, 0, flows, max((sample[2] for sample in ledger), default=0))
        self._add_evidence(index, message)
        self.indices.append(index)
        self.heads.append((sequence, horizon_ns, buckets.bucket_ns, *clock, *cost))
        self.loads.append(load)
        self.buckets.append(buckets)
        if flows:
            self.flows += [(index, flow) for flow in flows]
        if marks:
            self.runs += [(index, run) for run in marks]
        if exchanges:
            self.exchanges += [(index, exchange) for exchange in exchanges]
        if nic:
            self.nic += [(index, sample) for sample in nic]
        if ledger:
            self.ledger += ledger
            self.ledger_of += [index] * len(ledger)
        if discipline:
            self.disciplines[index] = discipline

    def _add_evidence(self, index: int, message: netmon_pb2.Batch) -> None:
        if message.HasField("transport"):
            self.evidence[0].append(split_evidence(message.transport, TRANSPORT))
            self.evidence_of[0].append(index)
        if message.HasField("host"):
            columns = split_evidence(message.host, HOST_PART)
            self.host_jobs[index] = read_jobs(message.host, columns)
            self.evidence[1].append(columns)
            self.evidence_of[1].append(index)


def gather(messages: Sequence[netmon_pb2.Batch]) -> Gathered:
    """As Gathered.add of each, in half of the time. Raises WireError, OverflowError where one of them is wrong."""
    found = Gathered()
    marks: list[netmon_pb2.Mark] = []
    counts: list[int] = []
    for index, message in enumerate(messages):
        sequence, horizon_ns, clock, cost, own_buckets, own_marks, ledger = _head(message)
        check_counts(message)
        if not message.HasField("clock"):
            raise WireError("Batch.clock is missing")
        buckets = split_buckets(own_buckets)
        *times, discipline = _clock(clock)
        load, *amounts = _cost(cost)
        found.heads.append((sequence, horizon_ns, buckets.bucket_ns, *times, *amounts))
        found.loads.append(load)
        found.buckets.append(buckets)
        marks += own_marks
        counts.append(len(own_marks))
        if ledger:
            found.ledger += map(_sample, ledger)
            found.ledger_of += [index] * len(ledger)
        flows, exchanges, nic = _few(message)
        if flows:
            own = [read_flow(flow) for flow in flows]
            check_times(horizon_ns, 0, own, 0)
            found.flows += [(index, flow) for flow in own]
        if exchanges:
            found.exchanges += [(index, read_exchange(exchange)) for exchange in exchanges]
        if nic:
            found.nic += [(index, sample) for sample in read_nic(nic)]
        if discipline:
            found.disciplines[index] = read_name(discipline, "clock")
        found._add_evidence(index, message)
    found.indices = list(range(len(messages)))
    _check_heads(found)
    found.marks = _mark_table(marks, counts)
    return found


def _check_heads(found: Gathered) -> None:
    heads = np.array(found.heads, np.int64).reshape(-1, len(_MOST_HEAD))
    loads = np.array(found.loads, np.float64)
    good = ((heads >= _LEAST_HEAD) & (heads <= _MOST_HEAD)).all() and np.isfinite(loads).all()
    for place, sample in zip(found.ledger_of, found.ledger, strict=True):
        good &= sample[1] <= 1 and sample[2] <= min(LEDGER_MOST["time_ns"], found.heads[place][1] + FURTHEST_NS)
        good &= sample[2] >= 0
    if not good:
        raise WireError("a batch holds impossible values")
    found.loads = np.maximum(loads, 0.0).tolist()


def _mark_table(marks: list[netmon_pb2.Mark], counts: list[int]) -> MarkTable:
    """As mark_table of read_mark_runs of each message's; counts: how many marks each has."""
    if not marks:
        return mark_table(())
    known: dict[tuple[object, ...], int] = {}
    number = np.array([known.setdefault(who, len(known)) for who in map(whose, marks)], np.int64)
    told = np.array(list(map(_told, marks)), np.int64)
    most = np.array([max(_MOMENTS), MAX_COUNT, MAX_MONO_NS, MAX_SPAN_NS])
    if (told < 0).any() or (told > most).any() or not np.isin(told[:, 0], _MOMENTS).all():
        raise WireError("a mark holds impossible values")
    leaders = [read_mark(marks[place]) for place in np.unique(number, return_index=True)[1].tolist()]
    columns = (np.repeat(np.arange(len(counts)), counts), number, *(np.ascontiguousarray(one) for one in told.T))
    return MarkTable([whose(one) for one in leaders], *columns)
