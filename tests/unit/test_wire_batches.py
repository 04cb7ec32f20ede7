# SPDX-License-Identifier: Apache-2.0
"""Hello and Batch on the wire: literal bytes, round trips, and every way in which a message can be wrong."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import set_cell

from netmon.errors import WireError
from netmon.evidence import EVIDENCE, UNKNOWN
from netmon.marks import printable
from netmon.records import (
    BUCKET,
    COARSE,
    ITERATION,
    SCORE,
    AgentCost,
    Batch,
    ClockExchange,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    LedgerSample,
    Moment,
    NicSample,
    Owner,
    RankState,
    Source,
    Table,
    Training,
    empty,
)
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import decode_many
from netmon.wire.batches import decode_batch, decode_hello, encode_batch, encode_hello, serialise_flow
from netmon.wire.buckets import COLUMNS, MAX_ROWS, decode_buckets, encode_buckets
from netmon.wire.limits import MAX_BYTES, MAX_COUNT, MAX_MONO_NS, MAX_UTC_NS
from netmon.wire.tables import ITERATIONS, RANKS, SCORES, TABLES, Format
from netmon.wire.tables import LEDGER as LEDGER_FORMAT

U16, U32 = (st.integers(0, 2**bits - 1) for bits in (16, 32))
MONO, UTC, COUNT = (st.integers(0, most) for most in (MAX_MONO_NS, MAX_UTC_NS, MAX_COUNT))
HORIZON = st.just(MAX_MONO_NS)  # nothing lies behind it
TEXT = st.text(max_size=20).map(printable)
CLOCK = st.builds(ClockSample, MONO, UTC, MONO)
OWNER = st.just(Owner()) | st.builds(
    Owner, st.integers(1, 2**32 - 1), TEXT, TEXT, TEXT, st.integers(-1, 1000), TEXT, TEXT
)
FLOW = st.builds(
    Flow,
    flow_id=U32,
    interface=U32,
    direction=st.sampled_from(Direction),
    src=st.ip_addresses().map(str),
    dst=st.ip_addresses().map(str),
    src_port=U16,
    dst_port=U16,
    protocol=st.integers(0, 255),
    first_ns=MONO,
    owner=OWNER,
)


def rows_of(format_: Format, dtype: np.dtype) -> st.SearchStrategy[Table]:
    columns = [st.integers(limits.least, limits.most) for limits in format_.columns.values()]
    return st.lists(st.tuples(*columns), max_size=3).map(lambda rows: np.array(rows, dtype))


_OF_RANK = {
    name: st.integers(limits.least, limits.most) for name, limits in RANKS.columns.items() if not limits.is_word
}
RANK = st.builds(RankState, **_OF_RANK | {"hooked": st.booleans(), "job": TEXT, "job_name": TEXT})
# None ends before it begins.
ITERATION_ROWS = rows_of(ITERATIONS, ITERATION).map(lambda rows: rows[rows["end_ns"] >= rows["start_ns"]])
TRAINING = st.builds(Training, st.lists(RANK, max_size=3).map(tuple), ITERATION_ROWS, rows_of(SCORES, SCORE))
_RANGES = {name: st.integers(limits.least, limits.most) for name, limits in LEDGER_FORMAT.columns.items()}
LEDGER = st.builds(LedgerSample, **_RANGES | {"direction": st.sampled_from(Direction)})
COST = st.builds(AgentCost, st.floats(0, 100), *[st.integers(0, MAX_BYTES)] * 3)
EXCHANGE = st.builds(ClockExchange, MONO, UTC, UTC, MONO)
NIC = st.lists(st.tuples(TEXT, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=3).flatmap(
    lambda pairs: st.builds(
        NicSample, TEXT, TEXT, MONO, st.just(tuple(n for n, _ in pairs)), st.just(tuple(v for _, v in pairs))
    )
)


def a_table(rows: Sequence[tuple[int, ...]]) -> Table:
    """(flow_id, bucket_start_ns, packets, wire_bytes, payload_bytes) rows as a table, whatever its layout."""
    names = ("flow_id", "bucket_start_ns", "packets", "wire_bytes", "payload_bytes")
    table = np.zeros(len(rows), BUCKET)
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        table[name] = column
    return table


BUCKETS = st.lists(st.tuples(U32, MONO, U32, U32, U32), max_size=20).map(a_table)
BATCH = st.builds(
    Batch,
    sequence=st.integers(1, MAX_COUNT),
    clock=CLOCK,
    horizon_ns=HORIZON,
    buckets=BUCKETS,
    flows=st.lists(FLOW, max_size=3).map(tuple),
    training=TRAINING,
    ledger=st.lists(LEDGER, max_size=2).map(tuple),
    cost=COST,
    exchanges=st.lists(EXCHANGE, max_size=2).map(tuple),
    nic=st.lists(NIC, max_size=2).map(tuple),
    bucket_ns=st.sampled_from([0, 1, 10_000, 1_000_000_000]),
)

A_CLOCK = ClockSample(1_000, 2_000, 30)
A_FLOW = Flow(7, 2, Direction.TX, "10.0.0.1", "10.0.0.2", 40000, 5000, 6, 900)
AN_ITERATION = (1, 12, Source.UPROBE, Moment.FIRST_ENQUEUE, Moment.LAST_WAIT, 850, 950, 10, 850, 0, 950)
A_TRAINING = Training((RankState(1, "job", 0, 3, 4711, 800),), np.array([AN_ITERATION], ITERATION))
A_HELLO = Hello(
    *("h0", "session", 10_000, A_CLOCK, (Interface(2, "eth0", 10**9, "tcx", "tcx"),), "0.1.0"),
    flows=(A_FLOW,),
    training=A_TRAINING,
)


def a_batch() -> Batch:
    buckets = a_table([(7, 880, 1, 1514, 1460), (7, 890, 2, 3028, 2920)])
    ledger = LedgerSample(2, Direction.TX, 940, *range(16))
    evidence = {name: table_of(dtype, [(UNKNOWN,) * len(dtype)]) for name, dtype in EVIDENCE.items()}
    return Batch(
        *(1, A_CLOCK, 900, buckets, (A_FLOW,), A_TRAINING, (ledger,), AgentCost(0.02, 1000)),
        *((ClockExchange(1, 2, 3, 4),), (NicSample("eth0", "sysfs", 5, ("drops",), (6,)),)),
        evidence=evidence,
        words=("10.0.0.1", "10.0.0.2", "job"),
    )


def table_of(dtype: np.dtype, rows: list[tuple[int, ...]]) -> Table:
    """Rows of evidence of flow 7 and the third word's job, in a time that the batch may tell of."""
    table = np.full(len(rows), UNKNOWN, dtype)
    table[:] = rows
    known = {"start_ns": 500, "end_ns": 900, "flow_id": 7, "application_limited": 1, "job": 2}
    known |= {"quiet": 1, "state": 2, "waits_for": 3, "pending": 2}
    known |= {"sends": 1, "level": 2, "collective": 5, "algorithm": 6, "protocol": 2}
    known |= {"container": UNKNOWN, **dict.fromkeys(("process", "user", "rdma_device", "remote", "verb"), 1)}
    known |= {"queue": 17, "remote_queue": 0, "requests": 3, "unread": 1, "whole": 1}
    for name, value in known.items():
        if name in (dtype.names or ()):
            table[name] = value
    return table


def in_order(table: Table) -> list[tuple[int, ...]]:
    """Rows come by flow."""
    return sorted(table.tolist())


def same(one: Batch, other: Batch) -> bool:
    rest = [field.name for field in fields(Batch) if field.name not in ("buckets", "evidence", "words")]
    evidence = one.evidence.keys() | other.evidence.keys()
    return (
        in_order(one.buckets) == in_order(other.buckets)
        and all(getattr(one, n) == getattr(other, n) for n in rest)
        and all(one.evidence.get(n, NOTHING).tolist() == other.evidence.get(n, NOTHING).tolist() for n in evidence)
    )


NOTHING = empty(BUCKET)


def test_a_literal_message_is_decoded() -> None:
    message = bytes.fromhex(
        "08 05"  # sequence 5
        "12 06"  # clock, 6 bytes
        "08 0a 10 14 18 03"  #   mono 10, utc 20, error 3
        "18 09"  # horizon 9
        "22 25"  # buckets, 37 bytes
        "08 02"  #   two rows
        "10 0a 18 02 20 0a"  #   10 ns wide, from 2 ns on, in units of 10 ns
        "2a 09 01 07 01 02 02 ea05 01 36"  #   runs: flow 7, two rows, 1514 bytes a packet, of which 54 are headers
        "32 0e"  #   columns, 14 bytes
        "01 00 01"  #     starts 0 and 1
        "01 01 02"  #     packets 1 and 2
        "02 00 d0 00 07"  #     2000 bytes less than 2 × 1514 in the second row: the low bytes, then the high ones
        "01 00 36"  #     a header less, too
        "48 01"  #   of one flow
    )
    batch = decode_batch(netmon_pb2.Batch.FromString(message))
    assert (batch.sequence, batch.clock, batch.horizon_ns) == (5, ClockSample(10, 20, 3), 9)
    assert in_order(batch.buckets) == in_order(a_table([(7, 2, 1, 1514, 1460), (7, 12, 2, 1028, 974)]))
    assert batch.bucket_ns == 10
    assert batch.buckets.dtype == BUCKET
    assert (batch.flows, batch.training, batch.ledger, batch.cost) == ((), Training(), (), AgentCost())


COARSE_ROWS = st.lists(st.tuples(*[U32] * 6, st.integers(0, 2**60 - 1)), max_size=50)


@given(COARSE_ROWS, st.sampled_from([0, 1, 1_000_000]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_coarse_rows_survive_the_wire(rows: list[tuple[int, ...]], width: int, deflate: bool) -> None:
    table = np.zeros(len(rows), COARSE)
    names = ("flow_id", "packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets", "bucket_start_ns")
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        table[name] = column
    message = encode_buckets(table, width, netmon_pb2.Buckets(), deflate)
    assert in_order(decode_buckets(netmon_pb2.Buckets.FromString(message.SerializeToString()))) == in_order(table)


def test_regular_traffic_takes_few_bytes() -> None:
    flow, time = np.divmod(np.arange(4000), 200)
    packets = np.random.default_rng(1).poisson(80, 4000)
    table = np.zeros(4000, COARSE)
    table["flow_id"], table["bucket_start_ns"], table["packets"] = flow + 100, time * 1_000_000 + 10**15, packets
    table["wire_bytes"], table["payload_bytes"] = packets * 1514, packets * 1448
    table["peak_bytes"], table["busy_buckets"] = packets // 4 * 1514, packets % 7
    message = encode_buckets(table, 1_000_000, netmon_pb2.Buckets())
    assert message.ByteSize() < 4 * len(table)


@given(BATCH)
@settings(max_examples=50, deadline=None)
def test_a_batch_survives_the_wire(batch: Batch) -> None:
    data = encode_batch(batch).SerializeToString()
    assert same(decode_batch(netmon_pb2.Batch.FromString(data)), batch)


@given(CLOCK, TEXT, st.lists(U32, min_size=1, max_size=4, unique=True))
@settings(max_examples=50, deadline=None)
def test_a_hello_survives_the_wire(clock: ClockSample, version: str, indices: list[int]) -> None:
    interfaces = tuple(Interface(index, f"eth{index}", index, "xdp", "tcx", "veth", 1500) for index in indices)
    flow = replace(A_FLOW, interface=indices[0])
    hello = Hello("node-1.rack", "s", 10_000, clock, interfaces, version, flows=(flow,), training=A_TRAINING)
    assert decode_hello(netmon_pb2.Hello.FromString(encode_hello(hello).SerializeToString())) == hello


def test_no_rows_are_a_batch_too() -> None:
    batch = Batch(1, A_CLOCK, 0, empty(BUCKET))
    assert same(decode_batch(encode_batch(batch)), batch)


def plain(message: netmon_pb2.Batch, columns: bytes = bytes(COLUMNS), runs: bytes = b"\1\7\1\2\0\0") -> None:
    message.buckets.deflated, message.buckets.columns, message.buckets.runs = False, columns, runs


Break = Callable[[netmon_pb2.Batch], object]
BROKEN_BATCHES: dict[str, Break] = {
    "Batch.clock is missing": lambda m: m.ClearField("clock"),
    "batch.error_ns is out": lambda m: setattr(m.clock, "error_ns", -1),
    "batch.sequence is out of its range, 1 to": lambda m: m.ClearField("sequence"),
    "batch.sequence is out": lambda m: setattr(m, "sequence", 2**62),
    "Buckets.columns is cut short or has a column of": lambda m: setattr(m.buckets, "rows", 3),
    "Buckets.columns cannot be inflated": lambda m: setattr(m.buckets, "columns", b"\0" * 7),
    "Buckets.columns is more or less than one zlib stream": lambda m: m.buckets.ClearField("columns"),
    "Buckets.columns has 3 bytes too many": lambda m: plain(m, columns=bytes(COLUMNS + 3)),
    "Buckets.columns is cut short or has a column of 3 bytes": lambda m: plain(m, columns=b"\3" * 7),
    "Buckets.runs do not have 2 rows": lambda m: plain(m, runs=b"\1\7\1\5\0\0"),
    "Buckets.flows is 0 of 2 rows": lambda m: m.buckets.ClearField("flows"),
    "Buckets.flows is 3 of 2 rows": lambda m: setattr(m.buckets, "flows", 3),
    "Buckets.bucket_ns is 1000000001, more": lambda m: setattr(m.buckets, "bucket_ns", 10**9 + 1),
    f"Buckets.rows is {MAX_ROWS + 1}, more": lambda m: setattr(m.buckets, "rows", MAX_ROWS + 1),
    "Buckets.start has 18446744073709551615": lambda m: setattr(m.buckets, "base_ns", 2**64 - 11),
    "a bucket begins 11 s after the batch's horizon": lambda m: setattr(m.buckets, "base_ns", 11 * 10**9),
    "flows.first_ns is long after the batch's horizon": lambda m: set_cell(m.tables, "flows", "first_ns", 11 * 10**9),
    "ledger.time_ns is long after the batch's horizon": lambda m: set_cell(m.tables, "ledger", "time_ns", 11 * 10**9),
    "flows.direction is out of its range, 0 to 1": lambda m: set_cell(m.tables, "flows", "direction", 2),
    "flows.dst_port is out": lambda m: set_cell(m.tables, "flows", "dst_port", 65536),
    "flows.protocol is out": lambda m: set_cell(m.tables, "flows", "protocol", 256),
    "flows.first_ns is out": lambda m: set_cell(m.tables, "flows", "first_ns", -1),
    "flow 7 has 'job' and '10.0.0.2' for addresses": lambda m: set_cell(m.tables, "flows", "src", 2),
    "flows.src is out of its range, the words there are": lambda m: set_cell(m.tables, "flows", "src", 99),
    "flows.dst is out of its range, the words there are": lambda m: set_cell(m.tables, "flows", "dst", -2),
    "flows.rank is out": lambda m: set_cell(m.tables, "flows", "rank", -2),
    "flows.prefix_bits is out": lambda m: set_cell(m.tables, "flows", "prefix_bits", 129),
    "a word has 256 characters, more than 255": lambda m: m.tables.words.append("x" * 256),
    "batch.horizon_ns is out": lambda m: setattr(m, "horizon_ns", 2**61),
    "batch.utc_ns is out": lambda m: setattr(m.clock, "utc_ns", 4 * 10**18),
    "batch.utc_error_ns is out": lambda m: setattr(m.clock, "utc_error_ns", 2**62),
    "batch.rss_bytes is out": lambda m: setattr(m.cost, "rss_bytes", 2**62),
    "batch.warnings is out": lambda m: setattr(m.cost, "warnings", -1),
    "AgentCost.cpu_fraction is nan": lambda m: setattr(m.cost, "cpu_fraction", float("nan")),
    "iterations are 32769 rows, more than 32768": lambda m: m.tables.rows.__setitem__(2, 32769),
    f"Tables.rows are of {len(TABLES) + 1} tables, there are {len(TABLES)}": lambda m: m.tables.rows.append(1),
    "Tables.columns has 0 bytes or more where its rows need": lambda m: (
        m.tables.ClearField("deflated") or m.tables.ClearField("columns")
    ),
    "Tables.columns cannot be inflated": lambda m: setattr(m.tables, "columns", b"nothing"),
    "exchanges.collector_sent_ns is out": lambda m: set_cell(m.tables, "exchanges", "collector_sent_ns", 4 * 10**18),
    "nic.time_ns is out": lambda m: set_cell(m.tables, "nic", "time_ns", -1),
    "ranks.rank is out": lambda m: set_cell(m.tables, "ranks", "rank", 2**20),
    "ranks.rank_id is out": lambda m: set_cell(m.tables, "ranks", "rank_id", 2**31),
    "ranks.job is out of its range, the words there are": lambda m: set_cell(m.tables, "ranks", "job", 99),
    "iterations.start_ns is out": lambda m: set_cell(m.tables, "iterations", "start_ns", 2**61),
    "iterations.number is out": lambda m: set_cell(m.tables, "iterations", "number", 2**62),
    "iterations.end_moment is out": lambda m: set_cell(m.tables, "iterations", "end_moment", 9),
    "iterations.source is out": lambda m: set_cell(m.tables, "iterations", "source", 0),
    "iterations has a time that ends before it begins": lambda m: set_cell(m.tables, "iterations", "end_ns", 849),
    "ledger.nic_header_bytes is out": lambda m: set_cell(m.tables, "ledger", "nic_header_bytes", 256),
    "ledger.nic_packets is out": lambda m: set_cell(m.tables, "ledger", "nic_packets", 2**54),
    "ledger.nic_bytes is out": lambda m: set_cell(m.tables, "ledger", "nic_bytes", 2**63),
    "transport.sent_bytes is out": lambda m: set_cell(m.tables, "transport", "sent_bytes", 2**63),
    "transport.flow_id is out": lambda m: set_cell(m.tables, "transport", "flow_id", -1),
    "transport has a time that ends before it begins": lambda m: set_cell(m.tables, "transport", "end_ns", 499),
    "host.end_ns is long after the batch's horizon": lambda m: set_cell(m.tables, "host", "end_ns", 10**12),
    "host.job is out of its range, the words there are": lambda m: set_cell(m.tables, "host", "job", 99),
}


@pytest.mark.parametrize("reason", BROKEN_BATCHES)
def test_a_broken_batch_is_refused_with_its_reason(reason: str) -> None:
    message = encode_batch(a_batch())
    BROKEN_BATCHES[reason](message)
    with pytest.raises(WireError) as caught:
        decode_batch(message)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


BROKEN_HELLOS: dict[str, Callable[[netmon_pb2.Hello], object]] = {
    "Hello.clock is missing": lambda m: m.ClearField("clock"),
    "Hello.host '' cannot name a host": lambda m: m.ClearField("host"),
    "Hello.host '../x' cannot name a host": lambda m: setattr(m, "host", "../x"),
    "Hello.host '..' cannot name a host": lambda m: setattr(m, "host", ".."),
    "Hello.session is empty": lambda m: m.ClearField("session"),
    "Hello.bucket_ns is 0": lambda m: m.ClearField("bucket_ns"),
    "Hello.interfaces is empty": lambda m: m.ClearField("interfaces"),
    "Hello.interfaces has an index twice: [2, 2]": lambda m: m.interfaces.add().CopyFrom(m.interfaces[0]),
    "Hello.host 'hhh": lambda m: setattr(m, "host", "h" * 254),
    "Hello.host '\u00fc": lambda m: setattr(m, "host", "\u00fc" * 43),
    "Hello.session has 65 characters, more than 64": lambda m: setattr(m, "session", "s" * 65),
    "Hello.session 'a/b' has other characters": lambda m: setattr(m, "session", "a/b"),
    "Hello.bucket_ns is 1000000001, more": lambda m: setattr(m, "bucket_ns", 10**9 + 1),
    "Hello.stream_ns is 10001, no multiple": lambda m: setattr(m, "stream_ns", 10_001),
    "Hello.acknowledged is 18446744073709551615": lambda m: setattr(m, "acknowledged", 2**64 - 1),
    "Hello.interfaces are 513, more than 512": lambda m: m.interfaces.extend([m.interfaces[0]] * 512),
    "Hello.interfaces has a name twice": lambda m: m.interfaces.add(index=3, name="eth0"),
    "interface 3 has no name": lambda m: m.interfaces.add(index=3),
    "Interface.name 'e\\n' is not printable": lambda m: setattr(m.interfaces[0], "name", "e\n"),
    "eth0 has a capacity of": lambda m: setattr(m.interfaces[0], "capacity_bps", 2**54),
    "Hello.flows name interface 9": lambda m: set_cell(m.tables[0], "flows", "interface", 9),
    "Hello: flows.first_ns is out": lambda m: set_cell(m.tables[0], "flows", "first_ns", -1),
    "Hello.tables have 32769 iterations": lambda m: m.tables.add(rows=[0, 0, 32768]),
    "Hello.tables are 65537": lambda m: m.tables.extend([netmon_pb2.Tables()] * 65536),
    "batch.mono_ns is out": lambda m: setattr(m.clock, "mono_ns", 2**60),
    "Interface.name has 2000 characters": lambda m: setattr(m.interfaces[0], "name", "x" * 2000),
}


@pytest.mark.parametrize("reason", BROKEN_HELLOS)
def test_a_broken_hello_is_refused_with_its_reason(reason: str) -> None:
    message = encode_hello(A_HELLO)
    BROKEN_HELLOS[reason](message)
    with pytest.raises(WireError) as caught:
        decode_hello(message)
    assert reason in str(caught.value)


def test_what_does_not_fit_is_not_sent() -> None:
    with pytest.raises(WireError, match=r"cannot send Hello.bucket_ns: "):
        encode_hello(Hello("h0", "s", -1, A_CLOCK, (), ""))
    with pytest.raises(WireError, match="dtype"):
        encode_batch(Batch(1, A_CLOCK, 0, np.zeros(1, [("flow_id", "<u8")])))


def test_flows_of_an_introduction_are_one_after_the_other() -> None:
    opening = netmon_pb2.AgentMessage(hello=encode_hello(A_HELLO)).SerializeToString()
    more = [replace(A_FLOW, flow_id=number, src=f"10.0.1.{number}", owner=Owner(4, "iperf3")) for number in range(3)]
    data = opening + b"".join(map(serialise_flow, more))
    assert decode_hello(netmon_pb2.AgentMessage.FromString(data).hello).flows == (A_FLOW, *more)


def test_a_name_is_made_printable() -> None:
    message = encode_batch(a_batch())
    message.tables.words[2] = "j\u202eb"
    assert decode_batch(message).training.ranks[0].job == "j\ufffdb"


def test_a_flow_that_is_not_ip_needs_no_address() -> None:
    message = encode_batch(a_batch())
    set_cell(message.tables, "flows", "protocol", 255)
    set_cell(message.tables, "flows", "src", -1)
    assert decode_batch(message).flows[0].src == ""


@pytest.mark.parametrize("record", [Hello, Interface, ClockSample, AgentCost])
def test_records_and_messages_have_the_same_fields(record: type) -> None:
    message = getattr(netmon_pb2, record.__name__)
    names = {field.name for field in fields(record)}
    if record is Hello:  # proof: looked at and let go
        names = names - {"flows", "training"} | {"tables", "proof"}
    assert names == set(message.DESCRIPTOR.fields_by_name)


RECORDS = {"flows": Flow, "ranks": RankState, "ledger": LedgerSample, "exchanges": ClockExchange}


@pytest.mark.parametrize("format_", TABLES, ids=lambda format_: format_.name)
def test_records_and_tables_have_the_same_fields(format_: Format) -> None:
    dtypes = EVIDENCE | {"iterations": ITERATION, "scores": SCORE}
    if format_.name in dtypes:
        assert tuple(format_.columns) == dtypes[format_.name].names
    elif format_.name != "nic":
        names = [field.name for field in fields(RECORDS[format_.name]) if field.name != "owner"]
        names += [field.name for field in fields(Owner)] if format_.name == "flows" else []
        assert sorted(names) == sorted(format_.columns)


SMALL = st.integers(UNKNOWN, 1000)


def evidence_of(dtype: np.dtype) -> st.SearchStrategy[Table]:
    row = st.tuples(*(SMALL for _ in dtype.names or ()))
    return st.lists(row, max_size=4).map(lambda rows: table_of(dtype, rows))


@given(st.fixed_dictionaries({name: evidence_of(dtype) for name, dtype in EVIDENCE.items()}))
def test_evidence_arrives_as_it_was_sent(sent: dict[str, Table]) -> None:
    batch = replace(a_batch(), evidence=sent)
    message = netmon_pb2.Batch.FromString(encode_batch(batch).SerializeToString())
    assert same(decode_batch(message), batch)
    other = encode_batch(replace(a_batch(), evidence={}, words=("another", "10.0.0.1")))
    many = decode_many([message, other, message])
    for name, table in sent.items():
        got = many.evidence[name]
        assert got["batch"].tolist() == [0] * len(table) + [2] * len(table)
        limits = next(one.columns for one in TABLES if one.name == name)
        numbers = [column for column in table.dtype.names or () if not limits[column].is_word]
        assert all(np.array_equal(got[column], np.tile(table[column], 2)) for column in numbers)
    assert {many.words[job] for job in many.evidence["host"]["job"].tolist()} <= {"job"}
    assert many.refused == {}


def test_a_cost_below_nothing_is_nothing() -> None:
    message = encode_batch(a_batch())
    message.cost.cpu_fraction = -0.3
    assert decode_batch(message).cost.cpu_fraction == 0
