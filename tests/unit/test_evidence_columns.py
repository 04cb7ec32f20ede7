# SPDX-License-Identifier: Apache-2.0
"""What TCP says and the host's part arrive as they were sent; what breaks the contract is refused by name, alone."""

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wire_batches import a_batch

from netmon.errors import WireError
from netmon.evidence import HOST_PART, TRANSPORT, UNKNOWN
from netmon.records import Table
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import decode_many
from netmon.wire.batches import decode_batch, encode_batch
from netmon.wire.limits import MAX_TRANSPORT

SMALL = st.integers(UNKNOWN, 1000)


def table_of(dtype: np.dtype, rows: list[tuple[int, ...]]) -> Table:
    table = np.full(len(rows), UNKNOWN, dtype)
    table[:] = rows
    for name, value in (("start_ns", 500), ("end_ns", 900), ("flow_id", 7), ("application_limited", 1), ("job", 1)):
        if name in (dtype.names or ()):
            table[name] = value
    return table


def tables(dtype: np.dtype) -> st.SearchStrategy[Table]:
    row = st.tuples(*(SMALL for _ in dtype.names or ()))
    return st.lists(row, max_size=4).map(lambda rows: table_of(dtype, rows))


@given(tables(TRANSPORT), tables(HOST_PART))
def test_both_tables_arrive_as_they_were_sent(transport: Table, host: Table) -> None:
    batch = replace(a_batch(), transport=transport, host=host, host_jobs=("one", "two") if len(host) else ())
    message = netmon_pb2.Batch.FromString(encode_batch(batch).SerializeToString())
    decoded = decode_batch(message)
    assert np.array_equal(decoded.transport, transport)
    assert np.array_equal(decoded.host, host)
    assert decoded.host_jobs == batch.host_jobs
    many = decode_many([message, encode_batch(a_batch()), message])
    for name, sent in (("transport", transport), ("host", host)):
        got = getattr(many, name)
        assert got["batch"].tolist() == [0] * len(sent) + [2] * len(sent)
        assert all(np.array_equal(got[column], np.tile(sent[column], 2)) for column in sent.dtype.names or ())
    assert many.refused == {}


def columns(dtype: np.dtype, **changed: int) -> bytes:
    row = table_of(dtype, [(UNKNOWN,) * len(dtype.names or ())])
    names = [name for name in dtype.names or () if name != "stopped_ns"]  # which travels by itself
    values = [changed.get(name, int(row[name][0])) + 1 for name in names]
    return zlib.compress(np.array(values, "<u8").tobytes())


BROKEN: dict[str, Callable[[netmon_pb2.Batch], None]] = {
    f"Transport.rows is {MAX_TRANSPORT + 1}, more than {MAX_TRANSPORT}": lambda m: m.transport.MergeFrom(
        netmon_pb2.Transport(rows=MAX_TRANSPORT + 1)
    ),
    "Transport.columns cannot be inflated": lambda m: m.transport.MergeFrom(
        netmon_pb2.Transport(rows=1, columns=b"nothing")
    ),
    "Transport.columns has 129 bytes or more where 1 rows need 128": lambda m: m.transport.MergeFrom(
        netmon_pb2.Transport(rows=1, columns=zlib.compress(bytes(1 << 20)))
    ),
    "Transport.columns has a number that is out of its range": lambda m: m.transport.MergeFrom(
        netmon_pb2.Transport(rows=1, columns=columns(TRANSPORT, sent_bytes=2**63))
    ),
    "Transport.columns has a row that does not say of what": lambda m: m.transport.MergeFrom(
        netmon_pb2.Transport(rows=1, columns=columns(TRANSPORT, flow_id=UNKNOWN))
    ),
    "Transport.columns has a time that ends before it begins": lambda m: m.transport.MergeFrom(
        netmon_pb2.Transport(rows=1, columns=columns(TRANSPORT, end_ns=499))
    ),
    "HostPart.stopped cannot be inflated": lambda m: m.host.MergeFrom(
        netmon_pb2.HostPart(rows=1, columns=columns(HOST_PART), stopped=b"nothing")
    ),
    "HostPart.columns has a time long after the batch's horizon": lambda m: m.host.MergeFrom(
        netmon_pb2.HostPart(rows=1, columns=columns(HOST_PART, end_ns=10**12), jobs=["one", "two"])
    ),
    "HostPart.columns names a job that HostPart.jobs does not have": lambda m: m.host.MergeFrom(
        netmon_pb2.HostPart(rows=1, columns=columns(HOST_PART), jobs=["one"])
    ),
}


def test_an_agent_that_does_not_look_whether_ranks_are_stopped_tells_the_rest() -> None:
    batch = replace(a_batch(), host=table_of(HOST_PART, [(5,) * len(HOST_PART)]), host_jobs=("one", "two"))
    message = encode_batch(batch)
    message.host.ClearField("stopped")
    (row,) = decode_batch(message).host
    assert (row["cpu_ns"], row["stopped_ns"]) == (5, UNKNOWN)


@pytest.mark.parametrize("reason", BROKEN)
def test_what_breaks_the_contract_is_refused_and_costs_no_other_batch(reason: str) -> None:
    good = encode_batch(a_batch())
    broken = netmon_pb2.Batch.FromString(good.SerializeToString())
    BROKEN[reason](broken)
    with pytest.raises(WireError, match=reason):
        decode_batch(broken)
    many = decode_many([good, broken, good])
    assert list(many.refused) == [1]
    assert reason in many.refused[1]
    assert len(many.transport) == len(many.host) == 0
    assert set(many.rows["batch"].tolist()) == {0, 2}
