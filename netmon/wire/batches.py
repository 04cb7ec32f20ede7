# SPDX-License-Identifier: Apache-2.0
"""What an agent sends: Hello and Batch ↔ protobuf. Decoding trusts nothing and raises WireError with the reason."""

import ipaddress
from functools import lru_cache

from netmon.records import (
    PROTOCOL_NON_IP,
    Batch,
    ClockSample,
    Flow,
    Hello,
    LedgerSample,
    Mark,
    NicSample,
    Table,
)
from netmon.wire import netmon_pb2
from netmon.wire.buckets import decode_buckets, encode_buckets
from netmon.wire.mapping import check, from_message, to_message

MAX_WIDTH_NS = 1_000_000_000
"""The widest buckets that a batch may carry."""


def encode_hello(hello: Hello) -> netmon_pb2.Hello:
    """Hello → message. Raises WireError where a value does not fit its field."""
    return to_message(hello, netmon_pb2.Hello())


def decode_hello(message: netmon_pb2.Hello) -> Hello:
    """Message → Hello, checked but for its schema version. Raises WireError with a one-line reason."""
    hello = from_message(message, Hello)
    # The host's name becomes a directory of the dataset.
    nameable = hello.host.isprintable() and "/" not in hello.host and hello.host not in ("", ".", "..")
    check(nameable, f"Hello.host {hello.host!r} cannot name a host")
    check(hello.session != "", "Hello.session is empty")
    check(hello.bucket_ns > 0, "Hello.bucket_ns is 0")
    whole = hello.streamed_ns % hello.bucket_ns == 0
    check(whole, f"Hello.stream_ns is {hello.stream_ns}, no multiple of {hello.bucket_ns}")
    indices = [interface.index for interface in hello.interfaces]
    check(bool(indices), "Hello.interfaces is empty")
    check(len(set(indices)) == len(indices), f"Hello.interfaces has an index twice: {indices}")
    _check_clock(hello.clock)
    return hello


def encode_batch(batch: Batch) -> netmon_pb2.Batch:
    """Batch → message. Raises WireError where a value does not fit its field."""
    message = encode_body(batch)
    encode_buckets(batch.buckets, batch.bucket_ns, message.buckets)
    return message


def encode_body(batch: Batch) -> netmon_pb2.Batch:
    """Everything but the rows. Raises WireError where a value does not fit its field."""
    message = to_message(batch, netmon_pb2.Batch(), given=("buckets", "bucket_ns"))
    message.buckets.bucket_ns = batch.bucket_ns
    return message


def serialise_buckets(buckets: Table, bucket_ns: int) -> bytes:
    """An AgentMessage of nothing but the rows, to be put after one of the body: together they are the batch.

    Empty where there are none.
    """
    if not len(buckets):
        return b""
    message = netmon_pb2.AgentMessage()
    encode_buckets(buckets, bucket_ns, message.batch.buckets)
    return message.SerializeToString()


def serialise_flow(flow: netmon_pb2.Flow) -> bytes:
    """An AgentMessage of nothing but an introduction's flow, to be put after one of the rest, as is each other one."""
    return netmon_pb2.AgentMessage(hello=netmon_pb2.Hello(flows=(flow,))).SerializeToString()


def decode_batch(message: netmon_pb2.Batch) -> Batch:
    """Message → Batch, checked. Raises WireError with a one-line reason."""
    rows, width = decode_buckets(message.buckets), message.buckets.bucket_ns
    check(width <= MAX_WIDTH_NS, f"Buckets.bucket_ns is {width}, more than {MAX_WIDTH_NS}")
    batch = from_message(message, Batch, buckets=rows, bucket_ns=width)
    check(batch.sequence > 0, "Batch.sequence is 0, the first batch has 1")
    check(batch.horizon_ns >= 0, f"Batch.horizon_ns is negative: {batch.horizon_ns}")
    _check_clock(batch.clock)
    for flow in batch.flows:
        _check_flow(flow)
    for mark in batch.marks:
        _check_mark(mark)
    for sample in batch.ledger:
        _check_ledger(sample)
    for counters in batch.nic:
        _check_nic(counters)
    return batch


def _check_clock(clock: ClockSample) -> None:
    check(min(clock.mono_ns, clock.utc_ns, clock.error_ns) >= 0, f"the clock sample has a negative time: {clock}")


def _check_flow(flow: Flow) -> None:
    name = f"flow {flow.flow_id}"
    check(max(flow.src_port, flow.dst_port) <= 0xFFFF, f"{name} has a port above 65535")
    check(flow.protocol <= 0xFF, f"{name} has protocol {flow.protocol}, above 255")
    check(flow.first_ns >= 0, f"{name} begins at a negative time: {flow.first_ns}")
    check(flow.prefix_bits <= 128, f"{name} has a prefix of {flow.prefix_bits} bits")
    check(flow.owner.rank >= -1, f"{name} belongs to rank {flow.owner.rank}")
    if flow.protocol != PROTOCOL_NON_IP:
        for text in (flow.src, flow.dst):
            check(_is_address(text), f"{name} has {text!r} for an address")


def _check_mark(mark: Mark) -> None:
    check(mark.rank >= 0 and mark.size >= 0, f"a mark of job {mark.job!r} names rank {mark.rank} of {mark.size}")
    check(min(mark.iteration, mark.time_ns, mark.error_ns) >= 0, f"a mark of job {mark.job!r} is negative: {mark}")


def _check_ledger(sample: LedgerSample) -> None:
    check(sample.time_ns >= 0, f"a ledger sample of interface {sample.interface} has a negative time")


def _check_nic(sample: NicSample) -> None:
    names, values = len(sample.names), len(sample.values)
    check(names == values, f"a sample of {sample.device} has {names} counters and {values} values")
    check(sample.time_ns >= 0, f"a sample of {sample.device} has a negative time")


@lru_cache(maxsize=4096)
def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
