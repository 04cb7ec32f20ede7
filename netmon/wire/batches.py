# SPDX-License-Identifier: Apache-2.0
"""What an agent sends: Hello and Batch ↔ protobuf. Decoding trusts nothing and raises WireError with the reason."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import numpy as np

from netmon.errors import WireError
from netmon.evidence import EVIDENCE
from netmon.records import SCHEMA_VERSION, AgentCost, Batch, ClockSample, Flow, Hello, Interface, Table, Training
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import decode_many
from netmon.wire.buckets import decode_buckets, encode_buckets
from netmon.wire.limits import (
    MAX_COUNT,
    MAX_FLOWS,
    MAX_HOST,
    MAX_INTERFACES,
    MAX_MESSAGE_BYTES,
    MAX_MONO_NS,
    MAX_NAME,
    MAX_PACKETS,
    MAX_SESSION,
    MAX_WIDTH_NS,
)
from netmon.wire.mapping import check, from_message, to_message
from netmon.wire.tables import (
    HEAD,
    TABLES,
    Words,
    check_limits,
    encode_tables,
    join_tables,
    matrix,
    read_flows,
    read_ledger,
    read_name,
    read_training,
    rows_of,
    split_tables,
    table_of,
)

OLDEST_AGENT = 1
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
    message = to_message(hello, netmon_pb2.Hello(), given=("flows", "training"))
    if hello.flows or hello.training:
        words = Words()
        encode_tables(rows_of(words, flows=hello.flows, training=hello.training), words, message.tables.add())
    return message


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
    check(message.HasField("clock"), "Hello.clock is missing")
    check(len(message.tables) <= MAX_FLOWS, f"Hello.tables are {len(message.tables)}, more than {MAX_FLOWS}")
    for at, format_ in enumerate(TABLES):
        rows = sum(tables.rows[at] for tables in message.tables if at < len(tables.rows))
        check(rows <= format_.most_rows, f"Hello.tables have {rows} {format_.name}, more than {format_.most_rows}")
    pieces = [split_tables(tables) for tables in message.tables]
    joined = join_tables(pieces, range(len(pieces)), [MAX_MONO_NS] * len(pieces))
    flows, faults = read_flows(joined)
    for reason in (*joined.faults.values(), *faults.values()):
        raise WireError(f"Hello: {reason}")
    ranks, iterations, scores = (joined.tables[name] for name in ("ranks", "iterations", "scores"))
    hello = Hello(
        host=host,
        session=session,
        bucket_ns=message.bucket_ns,
        clock=_read_clock(message.clock),
        interfaces=tuple(map(_read_interface, message.interfaces)),
        agent_version=read_name(message.agent_version, "Hello.agent_version"),
        schema_version=message.schema_version,
        flows=tuple(flow for _, flow in flows),
        training=read_training(ranks, iterations, scores, joined.words),
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


def _read_clock(message: netmon_pb2.ClockSample) -> ClockSample:
    clock = ClockSample(
        *(message.mono_ns, message.utc_ns, message.error_ns, message.utc_error_ns),
        read_name(message.discipline, "clock"),
    )
    faults = dict[int, str]()
    head = 1, 0, 0, clock.mono_ns, clock.utc_ns, clock.error_ns, clock.utc_error_ns, 0, 0, 0
    check_limits(HEAD, np.array([head], np.int64), [0], faults)
    check(not faults, faults.get(0, ""))
    return clock


def _read_interface(message: netmon_pb2.Interface) -> Interface:
    card = from_message(message, Interface)
    for name in ("name", "hook_rx", "hook_tx", "driver"):
        text = getattr(card, name)
        check(len(text) <= MAX_NAME, f"Interface.{name} has {len(text)} characters, more than {MAX_NAME}")
        check(text.isprintable(), f"Interface.{name} {text!r} is not printable")
    check(card.name != "", f"interface {card.index} has no name")
    check(card.byte_basis.isprintable(), f"Interface.byte_basis of {card.name} is not printable")
    check(card.capacity_bps <= MAX_PACKETS, f"{card.name} has a capacity of {card.capacity_bps} bit/s")
    return card


def encode_batch(batch: Batch) -> netmon_pb2.Batch:
    """Batch → message. Raises WireError where a value does not fit its field."""
    message = encode_body(batch)
    encode_buckets(batch.buckets, batch.bucket_ns, message.buckets)
    return message


def encode_body(batch: Batch) -> netmon_pb2.Batch:
    """Everything but the rows. Raises WireError where a value does not fit its field."""
    message = netmon_pb2.Batch()
    try:
        message.sequence, message.horizon_ns = batch.sequence, batch.horizon_ns
    except ValueError as error:
        raise WireError(f"cannot send batch {batch.sequence}: {error}") from None
    to_message(batch.clock, message.clock)
    message.clock.SetInParent()
    to_message(batch.cost, message.cost)
    message.buckets.bucket_ns = batch.bucket_ns
    words = Words(batch.words)
    tables = rows_of(words, batch.flows, batch.training, batch.ledger, batch.exchanges, batch.nic)
    tables |= {name: matrix(table) for name, table in batch.evidence.items() if len(table)}
    if tables:
        encode_tables(tables, words, message.tables)
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


def serialise_flow(flow: Flow) -> bytes:
    """An AgentMessage of nothing but an introduction's flow, to be put after one of the rest, as is each other one."""
    message, words = netmon_pb2.AgentMessage(), Words()
    encode_tables(rows_of(words, flows=[flow]), words, message.hello.tables.add())
    return message.SerializeToString()


def decode_batch(message: netmon_pb2.Batch) -> Batch:
    """Message → Batch, checked completely. Raises WireError with a one-line reason."""
    many = decode_many([message])
    for reason in many.refused.values():
        raise WireError(reason)
    head = many.heads[0]
    evidence = {name: table_of(many.evidence[name], dtype) for name, dtype in EVIDENCE.items()}
    mono_ns, utc_ns, *errors = (int(head[name]) for name in ("mono_ns", "utc_ns", "error_ns", "utc_error_ns"))
    return Batch(
        sequence=int(head["sequence"]),
        clock=ClockSample(mono_ns, utc_ns, errors[0], errors[1], many.disciplines.get(0, "")),
        horizon_ns=int(head["horizon_ns"]),
        buckets=decode_buckets(message.buckets),
        flows=tuple(flow for _, flow in many.flows),
        training=read_training(many.ranks, many.iterations, many.scores, many.words),
        ledger=tuple(read_ledger(many.ledger)),
        cost=AgentCost(float(head["cpu_fraction"]), *map(int, head[["rss_bytes", "spool_bytes", "warnings"]].tolist())),
        exchanges=tuple(exchange for _, exchange in many.exchanges),
        nic=tuple(sample for _, sample in many.nic),
        bucket_ns=int(head["bucket_ns"]),
        evidence=evidence,
        words=tuple(many.words),
    )


MOST_ROWS = 1 << 17
"""Of a batch: at most 6 MB of a message, and half of what a collector takes."""

_NOTHING_ELSE: dict[str, Any] = dict.fromkeys(("flows", "ledger", "exchanges", "nic", "words"), ())
_NOTHING_ELSE |= {"evidence": {}, "training": Training()}
_BEHIND_NS = 5_000_000_000  # what else is in the batch must not lie too long after its horizon


def batch_parts(batch: Batch, most_rows: int = MOST_ROWS) -> Iterator[Batch]:
    """One or more batches with ascending numbers; the first has everything but the rows of the others.

    Rows go by time, so that a part's horizon is where the next one begins. Only where the gaps are long does a part's
    horizon pass rows that come later, as it does with stragglers.
    """
    rows = batch.buckets
    if len(rows) <= most_rows:
        yield batch
        return
    rows = rows[np.argsort(rows["bucket_start_ns"], kind="stable")]
    for number, first in enumerate(range(0, len(rows), most_rows)):
        end = first + most_rows
        next_ns = int(rows["bucket_start_ns"][end]) if end < len(rows) else batch.horizon_ns
        horizon_ns = min(batch.horizon_ns, max(next_ns, batch.horizon_ns - _BEHIND_NS))
        part = replace(batch, sequence=batch.sequence + number, horizon_ns=horizon_ns, buckets=rows[first:end])
        yield replace(part, **_NOTHING_ELSE) if number else part


def within_a_message(flows: Iterable[bytes]) -> Iterator[bytes]:
    """As many as a collector takes in an introduction. Batches whose flows are left out are refused one by one."""
    size = 0
    for flow in itertools.islice(flows, MAX_FLOWS):
        size += len(flow)
        if size > MAX_MESSAGE_BYTES // 2:
            return
        yield flow
