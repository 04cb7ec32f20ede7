# SPDX-License-Identifier: Apache-2.0
"""Messages of which a batch has few → records, each checked completely. They raise WireError with a one-line reason.

Names that strangers have given are made printable here; there is nothing to refuse in them but their length.
"""

import ipaddress
import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from netmon.errors import WireError
from netmon.mark_runs import MarkRun, whose
from netmon.marks import MOST_RANKS, printable
from netmon.records import (
    PROTOCOL_NON_IP,
    AgentCost,
    ClockExchange,
    ClockSample,
    Direction,
    Flow,
    Interface,
    LedgerSample,
    Mark,
    Moment,
    NicSample,
    Owner,
    Source,
)
from netmon.wire import netmon_pb2
from netmon.wire.limits import (
    FURTHEST_NS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_EXCHANGES,
    MAX_FLOWS,
    MAX_HEADER_BYTES,
    MAX_LEDGER,
    MAX_MARKS,
    MAX_MONO_NS,
    MAX_NAME,
    MAX_NIC,
    MAX_NIC_COUNTERS,
    MAX_PACKETS,
    MAX_SPAN_NS,
    MAX_TEXT,
    MAX_UTC_NS,
)
from netmon.wire.mapping import check, from_message

_MOST = {
    "flows": MAX_FLOWS,
    "marks": MAX_MARKS,
    "ledger": MAX_LEDGER,
    "exchanges": MAX_EXCHANGES,
    "nic": MAX_NIC,
}
_counted = attrgetter(*_MOST)


def check_counts(message: netmon_pb2.Batch) -> None:
    """Raise WireError where a batch has too much of something."""
    for name, some in zip(_MOST, _counted(message), strict=True):
        if len(some) > _MOST[name]:
            raise WireError(f"Batch.{name} are {len(some)}, more than {_MOST[name]}")


def check_head(message: netmon_pb2.Batch) -> tuple[int, int]:
    """(sequence, horizon_ns). Raises WireError where one is out of its range, or the clock is missing."""
    sequence, horizon_ns = message.sequence, message.horizon_ns
    if not message.HasField("clock"):
        raise WireError("Batch.clock is missing")
    if sequence == 0:
        raise WireError("Batch.sequence is 0, the first batch has 1")
    if sequence > MAX_COUNT:
        raise WireError(f"Batch.sequence is {sequence}, more than {MAX_COUNT}")
    if horizon_ns < 0:
        raise WireError(f"Batch.horizon_ns is negative: {horizon_ns}")
    if horizon_ns > MAX_MONO_NS:
        raise WireError(f"Batch.horizon_ns is {horizon_ns}, more than {MAX_MONO_NS}")
    return sequence, horizon_ns


LEDGER_MOST = {
    "time_ns": MAX_MONO_NS,
    "nic_bytes": MAX_BYTES,
    "nic_packets": MAX_PACKETS,
    "nic_header_bytes": MAX_HEADER_BYTES,
    "frames": MAX_PACKETS,
    "packets": MAX_PACKETS,
    "frame_bytes": MAX_BYTES,
    "wire_bytes": MAX_BYTES,
    **{
        f"{what}_{unit}": most
        for what in ("overflow", "lost_kernel", "lost_agent")
        for unit, most in (("packets", MAX_PACKETS), ("wire_bytes", MAX_BYTES), ("payload_bytes", MAX_BYTES))
    },
    "uncounted": 1,
}
"""The most that a field of LedgerSample may be, in their order there; the least is 0."""

_MOMENTS = {member.value: member for member in Moment}
_SOURCES = {member.value: member for member in Source}
_DIRECTIONS = {member.value: member for member in Direction}
_UNOWNED = Owner()


def read_name(text: str, label: str) -> str:
    """A name, printable."""
    if len(text) > MAX_NAME:
        raise WireError(f"{label} has {len(text)} characters, more than {MAX_NAME}")
    return text if text.isprintable() else printable(text, 4 * MAX_NAME)


def read_clock(message: netmon_pb2.ClockSample) -> ClockSample:
    """A reading of both clocks."""
    return ClockSample(*clock_values(message))


def clock_values(message: netmon_pb2.ClockSample) -> tuple[int, int, int, int, str]:
    """The fields of ClockSample, checked."""
    mono_ns, utc_ns, error_ns, utc_error_ns = message.mono_ns, message.utc_ns, message.error_ns, message.utc_error_ns
    discipline = read_name(message.discipline, "clock")
    least = min(mono_ns, utc_ns, error_ns, utc_error_ns)
    if least < 0:
        raise WireError(f"the clock sample has a negative time: {least}")
    if mono_ns > MAX_MONO_NS or utc_ns > MAX_UTC_NS:
        raise WireError(f"the clock sample has a time that is none: mono {mono_ns}, utc {utc_ns}")
    if error_ns > MAX_SPAN_NS or utc_error_ns > MAX_SPAN_NS:
        raise WireError(f"the clock sample has an error of {max(error_ns, utc_error_ns)} ns")
    return mono_ns, utc_ns, error_ns, utc_error_ns, discipline


def read_cost(message: netmon_pb2.AgentCost) -> AgentCost:
    """What the agent used; a difference of what is not read together may be a little below 0."""
    return AgentCost(*cost_values(message))


def cost_values(message: netmon_pb2.AgentCost) -> tuple[float, int, int, int]:
    """The fields of AgentCost, checked."""
    if not math.isfinite(message.cpu_fraction):
        raise WireError(f"AgentCost.cpu_fraction is {message.cpu_fraction}")
    fraction = max(0.0, message.cpu_fraction)
    amounts = message.rss_bytes, message.spool_bytes, message.warnings
    if max(amounts) > MAX_BYTES:
        raise WireError(f"AgentCost has {max(amounts)}, more than {MAX_BYTES}")
    return fraction, *amounts


def read_interface(message: netmon_pb2.Interface) -> Interface:
    card = from_message(message, Interface)
    for name in ("name", "hook_rx", "hook_tx", "driver"):
        text = getattr(card, name)
        check(len(text) <= MAX_NAME, f"Interface.{name} has {len(text)} characters, more than {MAX_NAME}")
        check(text.isprintable(), f"Interface.{name} {text!r} is not printable")
    check(card.name != "", f"interface {card.index} has no name")
    check(card.byte_basis.isprintable(), f"Interface.byte_basis of {card.name} is not printable")
    check(card.capacity_bps <= MAX_PACKETS, f"{card.name} has a capacity of {card.capacity_bps} bit/s")
    return card


def read_flow(message: netmon_pb2.Flow) -> Flow:
    flow_id, protocol, first_ns = message.flow_id, message.protocol, message.first_ns
    src, dst = message.src, message.dst
    direction = _DIRECTIONS.get(message.direction)
    if direction is None:
        raise WireError(f"Flow.direction is {message.direction}, not one of 0, 1")
    if max(message.src_port, message.dst_port) > 0xFFFF:
        raise WireError(f"flow {flow_id} has a port above 65535")
    if protocol > 0xFF:
        raise WireError(f"flow {flow_id} has protocol {protocol}, above 255")
    if first_ns < 0:
        raise WireError(f"flow {flow_id} begins at a negative time: {first_ns}")
    if first_ns > MAX_MONO_NS:
        raise WireError(f"flow {flow_id} begins at {first_ns}, more than {MAX_MONO_NS}")
    if message.prefix_bits > 128:
        raise WireError(f"flow {flow_id} has a prefix of {message.prefix_bits} bits")
    if protocol == PROTOCOL_NON_IP:
        src, dst = read_name(src, "Flow.src"), read_name(dst, "Flow.dst")
    else:
        for text in (src, dst):
            if not _is_address(text):
                raise WireError(f"flow {flow_id} has {text[:64]!r} for an address")
    return Flow(
        flow_id,
        message.interface,
        direction,
        src,
        dst,
        message.src_port,
        message.dst_port,
        protocol,
        first_ns,
        _read_owner(message.owner, flow_id) if message.HasField("owner") else _UNOWNED,
        message.members,
        message.prefix_bits,
    )


def _read_owner(message: netmon_pb2.Owner, flow_id: int) -> Owner:
    if not -1 <= message.rank < MOST_RANKS:
        raise WireError(f"flow {flow_id} belongs to rank {message.rank}")
    return Owner(
        message.pid,
        read_name(message.process, "Owner.process"),
        read_name(message.container, "Owner.container"),
        read_name(message.job, "Owner.job"),
        message.rank,
        read_name(message.source, "Owner.source"),
        read_name(message.user, "Owner.user"),
    )


def read_mark(message: netmon_pb2.Mark) -> Mark:
    job = read_name(message.job, "Mark.job")
    moment, source = _MOMENTS.get(message.moment), _SOURCES.get(message.source)
    if moment is None:
        raise WireError(f"Mark.moment is {message.moment}, not one of {', '.join(map(str, _MOMENTS))}")
    if source is None:
        raise WireError(f"Mark.source is {message.source}, not one of {', '.join(map(str, _SOURCES))}")
    rank, size, iteration, time_ns, error_ns = (
        *(message.rank, message.size, message.iteration),
        *(message.time_ns, message.error_ns),
    )
    if rank < 0 or size < 0 or rank >= MOST_RANKS or size > MOST_RANKS:
        raise WireError(f"a mark of job {job!r} names rank {rank} of {size}")
    if iteration < 0 or time_ns < 0 or error_ns < 0:
        raise WireError(f"a mark of job {job!r} is negative: iteration {iteration}, {time_ns} ± {error_ns} ns")
    if time_ns > MAX_MONO_NS or error_ns > MAX_SPAN_NS:
        raise WireError(f"a mark of job {job!r} is at no time: {time_ns} ± {error_ns} ns")
    if max(iteration, message.parameters, message.gradient_bytes) > MAX_COUNT:
        raise WireError(f"a mark of job {job!r} has iteration {iteration}, {message.parameters} parameters")
    return Mark(
        *(job, rank, size, message.pid, iteration, moment, time_ns, source, error_ns),
        *(message.parameters, message.relative, message.gradient_bytes, read_name(message.job_name, "Mark.job_name")),
    )


def read_mark_runs(messages: Iterable[netmon_pb2.Mark]) -> list[MarkRun]:
    """As read_mark of each, in columns of those that are one rank's."""
    runs = []
    for _, group in groupby(messages, whose):
        own = list(group)
        first = read_mark(own[0])  # with whatever is wrong about the rank
        moments, iterations, times_ns, errors_ns = (
            list(column) for column in zip(*map(_MARK_FIELDS, own), strict=True)
        )
        wrong = (
            *(min(iterations) < 0, min(times_ns) < 0, min(errors_ns) < 0, not _MOMENTS.keys() >= set(moments)),
            *(max(iterations) > MAX_COUNT, max(times_ns) > MAX_MONO_NS, max(errors_ns) > MAX_SPAN_NS),
        )
        if any(wrong):
            for message in own:
                read_mark(message)  # raises at the first that it is true of
        runs.append(MarkRun(*(*whose(first), moments, iterations, times_ns, errors_ns)))
    return runs


_MARK_FIELDS = attrgetter("moment", "iteration", "time_ns", "error_ns")


def read_exchange(message: netmon_pb2.ClockExchange) -> ClockExchange:
    """One question to the collector's clock and its answer."""
    exchange = ClockExchange(
        *(message.agent_sent_ns, message.collector_received_ns),
        *(message.collector_sent_ns, message.agent_received_ns),
    )
    for name, time_ns, most in (
        ("agent_sent_ns", exchange.agent_sent_ns, MAX_MONO_NS),
        ("agent_received_ns", exchange.agent_received_ns, MAX_MONO_NS),
        ("collector_received_ns", exchange.collector_received_ns, MAX_UTC_NS),
        ("collector_sent_ns", exchange.collector_sent_ns, MAX_UTC_NS),
    ):
        if not 0 <= time_ns <= most:
            raise WireError(f"ClockExchange.{name} is {time_ns}, not between 0 and {most}")
    return exchange


def read_ledger(message: netmon_pb2.LedgerSample) -> LedgerSample:
    """One link's counters. `netmon.wire.batch_fields` does the same to many at once."""
    sample = from_message(message, LedgerSample)
    for name, most in LEDGER_MOST.items():
        check_ledger(name, getattr(sample, name), most)
    return sample


def check_ledger(name: str, value: int, most: int) -> None:
    """Raise WireError where a field of LedgerSample is out of its range."""
    if not 0 <= value <= most:
        raise WireError(f"LedgerSample.{name} is {value}, " + ("negative" if value < 0 else f"more than {most}"))


def check_times(horizon_ns: int, bucket_ns: int, flows: Iterable[Flow], ledger_ns: int) -> None:
    """Raise WireError where something lies long after the batch's horizon.

    bucket_ns, ledger_ns: the latest beginning of a bucket and the latest sample; 0: there is none.
    """
    flow_ns = max((flow.first_ns for flow in flows), default=0)
    latest = horizon_ns + FURTHEST_NS
    if bucket_ns <= latest and flow_ns <= latest and ledger_ns <= latest:
        return
    for what, time_ns in (("a bucket", bucket_ns), ("a flow", flow_ns), ("a ledger sample", ledger_ns)):
        if time_ns > latest:
            raise WireError(f"{what} begins {(time_ns - horizon_ns) / 1e9:.0f} s after the batch's horizon")


def read_nic(messages: Iterable[netmon_pb2.NicSample]) -> list[NicSample]:
    samples, left = [], MAX_NIC_COUNTERS
    for message in messages:
        device = read_name(message.device, "NicSample.device")
        left -= len(message.names)
        check(left >= 0, f"a batch has more than {MAX_NIC_COUNTERS} counters of NICs")
        check(
            len(message.names) == len(message.values),
            f"a sample of {device} has {len(message.names)} counters and {len(message.values)} values",
        )
        check(message.time_ns >= 0, f"a sample of {device} has a negative time")
        check(message.time_ns <= MAX_MONO_NS, f"a sample of {device} has a time of {message.time_ns}")
        names = tuple(read_name(name, "NicSample.names") for name in message.names)
        source = read_name(message.source, "NicSample.source")
        samples.append(NicSample(device, source, message.time_ns, names, tuple(message.values)))
    return samples


def read_sentence(text: str, label: str) -> str:
    """A text for people, printable."""
    check(len(text) <= MAX_TEXT, f"{label} has {len(text)} characters, more than {MAX_TEXT}")
    return printable(text, 4 * MAX_TEXT)


@lru_cache(maxsize=4096)
def _is_address(text: str) -> bool:
    try:
        return len(text) <= 64 and ipaddress.ip_address(text) is not None
    except ValueError:
        return False
