# SPDX-License-Identifier: Apache-2.0
"""What an agent sends: Hello and Batch ↔ protobuf. Decoding trusts nothing and raises WireError with the reason."""

import re
from urllib.parse import quote

import numpy as np

from netmon.errors import WireError
from netmon.evidence import HOST_PART, TRANSPORT
from netmon.records import SCHEMA_VERSION, Batch, Hello, Table
from netmon.wire import netmon_pb2
from netmon.wire.buckets import decode_buckets, encode_buckets
from netmon.wire.details import (
    check_counts,
    check_head,
    check_times,
    read_clock,
    read_cost,
    read_exchange,
    read_flow,
    read_interface,
    read_ledger,
    read_mark,
    read_name,
    read_nic,
)
from netmon.wire.evidence_columns import Columns, encode_evidence, read_jobs, split_evidence, stack_evidence
from netmon.wire.limits import (
    MAX_COUNT,
    MAX_FLOWS,
    MAX_HOST,
    MAX_INTERFACES,
    MAX_MARKS,
    MAX_NAME,
    MAX_SESSION,
    MAX_WIDTH_NS,
)
from netmon.wire.mapping import check, to_message

OLDEST_AGENT = 3
"""What agents of this version and later send is understood."""


def misunderstanding(hello: netmon_pb2.Hello, own: int = SCHEMA_VERSION) -> str:
    """Why a collector whose version is `own` cannot read what will follow, and what to do; empty: it can."""
    versions = f"schema version {hello.schema_version} where the collector has {own}"
    if (hello.oldest_reader or hello.schema_version) > own:
        return f"{versions}; run the same netmon on both: update the collector, which goes before the agents"
    if hello.schema_version < OLDEST_AGENT:
        return f"{versions} and reads {OLDEST_AGENT} and later; run the same netmon on both: update the agent"
    return ""


_SESSION = re.compile(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+)*")


def encode_hello(hello: Hello) -> netmon_pb2.Hello:
    """Hello → message. Raises WireError where a value does not fit its field."""
    return to_message(hello, netmon_pb2.Hello())


def decode_hello(message: netmon_pb2.Hello) -> Hello:
    """Message → Hello, checked completely but for its schema version. Raises WireError with a one-line reason."""
    host, session, cards = message.host, message.session, len(message.interfaces)
    # The host's name becomes a directory of the dataset, the session's part of its files' names.
    nameable = host.isprintable() and "/" not in host and host not in ("", ".", "..")
    check(nameable and len(quote(host, safe="")) <= MAX_HOST, f"Hello.host {host[:MAX_NAME]!r} cannot name a host")
    check(session != "", "Hello.session is empty")
    check(len(session) <= MAX_SESSION, f"Hello.session has {len(session)} characters, more than {MAX_SESSION}")
    check(bool(_SESSION.fullmatch(session)), f"Hello.session {session!r} has other characters than A-Za-z0-9_.-")
    check(cards > 0, "Hello.interfaces is empty")
    check(cards <= MAX_INTERFACES, f"Hello.interfaces are {cards}, more than {MAX_INTERFACES}")
    for name, most in (("flows", MAX_FLOWS), ("marks", MAX_MARKS)):
        count = len(getattr(message, name))
        check(count <= most, f"Hello.{name} are {count}, more than {most}")
    check(message.HasField("clock"), "Hello.clock is missing")
    hello = Hello(
        host=host,
        session=session,
        bucket_ns=message.bucket_ns,
        clock=read_clock(message.clock),
        interfaces=tuple(map(read_interface, message.interfaces)),
        agent_version=read_name(message.agent_version, "Hello.agent_version"),
        schema_version=message.schema_version,
        flows=tuple(map(read_flow, message.flows)),
        marks=tuple(map(read_mark, message.marks)),
        acknowledged=message.acknowledged,
        stream_ns=message.stream_ns,
        oldest_reader=message.oldest_reader,
    )
    check(hello.bucket_ns > 0, "Hello.bucket_ns is 0")
    for name, width in (("bucket_ns", hello.bucket_ns), ("stream_ns", hello.stream_ns)):
        check(width <= MAX_WIDTH_NS, f"Hello.{name} is {width}, more than {MAX_WIDTH_NS}")
    whole = hello.streamed_ns % hello.bucket_ns == 0
    check(whole, f"Hello.stream_ns is {hello.stream_ns}, no multiple of {hello.bucket_ns}")
    check(hello.acknowledged <= MAX_COUNT, f"Hello.acknowledged is {hello.acknowledged}, more than {MAX_COUNT}")
    for field, values in (
        ("an index", [card.index for card in hello.interfaces]),
        ("a name", [card.name for card in hello.interfaces]),
    ):
        check(len(set(values)) == len(values), f"Hello.interfaces has {field} twice: {str(values)[:200]}")
    unknown = {flow.interface for flow in hello.flows} - {card.index for card in hello.interfaces}
    check(not unknown, f"Hello.flows name interface {min(unknown, default=0)}, which Hello.interfaces does not have")
    return hello


def encode_batch(batch: Batch) -> netmon_pb2.Batch:
    """Batch → message. Raises WireError where a value does not fit its field."""
    message = encode_body(batch)
    encode_buckets(batch.buckets, batch.bucket_ns, message.buckets)
    return message


def encode_body(batch: Batch) -> netmon_pb2.Batch:
    """Everything but the rows. Raises WireError where a value does not fit its field."""
    tables = ("buckets", "bucket_ns", "transport", "host", "host_jobs")
    message = to_message(batch, netmon_pb2.Batch(), given=tables)
    message.buckets.bucket_ns = batch.bucket_ns
    if len(batch.transport):
        encode_evidence(batch.transport, message.transport)
    if len(batch.host):
        encode_evidence(batch.host, message.host)
        message.host.jobs.extend(batch.host_jobs)
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
    """Message → Batch, checked completely. Raises WireError with a one-line reason."""
    width = message.buckets.bucket_ns
    check(width <= MAX_WIDTH_NS, f"Buckets.bucket_ns is {width}, more than {MAX_WIDTH_NS}")
    rows = decode_buckets(message.buckets)
    check_counts(message)
    sequence, horizon_ns = check_head(message)
    host = split_evidence(message.host, HOST_PART)
    batch = Batch(
        sequence=sequence,
        clock=read_clock(message.clock),
        horizon_ns=horizon_ns,
        buckets=rows,
        flows=tuple(map(read_flow, message.flows)),
        marks=tuple(map(read_mark, message.marks)),
        ledger=tuple(map(read_ledger, message.ledger)),
        cost=read_cost(message.cost),
        exchanges=tuple(map(read_exchange, message.exchanges)),
        nic=tuple(read_nic(message.nic)),
        bucket_ns=width,
        transport=_evidence(split_evidence(message.transport, TRANSPORT), horizon_ns, TRANSPORT),
        host=_evidence(host, horizon_ns, HOST_PART),
        host_jobs=read_jobs(message.host, host),
    )
    latest = int(rows["bucket_start_ns"].max(initial=0))
    check_times(horizon_ns, latest, batch.flows, max((sample.time_ns for sample in batch.ledger), default=0))
    return batch


def _evidence(columns: Columns, horizon_ns: int, dtype: np.dtype[np.void]) -> Table:
    table, faults = stack_evidence([columns], [0], [horizon_ns], dtype)
    if faults:
        raise WireError(faults[0])
    found = np.empty(len(table), dtype)
    for name in dtype.names or ():
        found[name] = table[name]
    return found
