# SPDX-License-Identifier: Apache-2.0
"""Snapshot on the wire."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from snapshot_example import cluster, example

from netmon.errors import WireError
from netmon.views import STEP, FlowView, HostView, JobView, LinkView, Page, RankView, Selection, Snapshot, Totals
from netmon.wire import netmon_pb2
from netmon.wire.mapping import decode_selection, decode_snapshot, encode_selection, encode_snapshot


def same(one: Any, other: Any) -> bool:
    """Equal, with nan equal to itself, arrays compared by value."""
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype.names:
        return np.array_equal(one, other)
    if isinstance(one, float | np.ndarray):
        rows = isinstance(one, np.ndarray) and one.dtype.names is not None
        return np.array_equal(one, other, equal_nan=not rows)
    return one == other


@pytest.mark.parametrize("snapshot", [example(), cluster(64, 32)])
def test_a_snapshot_survives_the_wire(snapshot: Snapshot) -> None:
    message = netmon_pb2.Snapshot.FromString(encode_snapshot(snapshot).SerializeToString())
    assert same(decode_snapshot(message), snapshot)


def test_an_empty_snapshot_survives_the_wire() -> None:
    snapshot = Snapshot(1, 0.01, 10_000_000, (), (), (), ())
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_iterations_survive_the_wire() -> None:
    steps = np.arange(14).view(STEP)
    snapshot = replace(example(), jobs=tuple(replace(job, steps=steps) for job in example().jobs))
    assert decode_snapshot(encode_snapshot(snapshot)).jobs[0].steps.tolist() == steps.tolist()


def test_a_selection_survives_the_wire() -> None:
    asked = Selection(("h0", "h1"), ("resnet",), 200, 64, 128, 32, 64, 16, 8)
    message = encode_selection(asked, 500)
    assert decode_selection(message) == asked
    assert message.interval_ms == 500
    with pytest.raises(WireError, match="5000 characters"):
        decode_selection(netmon_pb2.WatchRequest(hosts=["x" * 5000]))
    assert decode_selection(netmon_pb2.WatchRequest(flows=7)) == Selection(flows=7)


def test_a_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(WireError, match=r"LinkView.nic_bytes"):
        encode_snapshot(replace(example(), links=(replace(example().links[0], nic_bytes=1 << 70),)))


def test_bytes_that_are_not_attributed_may_be_negative() -> None:
    link = replace(example().links[0], invisible_bytes=-66)
    snapshot = replace(example(), links=(link,))
    assert decode_snapshot(encode_snapshot(snapshot)).links[0].invisible_bytes == -66


def test_a_column_of_the_wrong_length_is_refused() -> None:
    message = encode_snapshot(example())
    message.links[0].columns = 99
    with pytest.raises(WireError, match=r"LinkView.wire_bps has 3200 bytes where 396 rows need 3168"):
        decode_snapshot(message)
    message = encode_snapshot(example())
    message.jobs[0].durations_ns = b"\0" * 9
    with pytest.raises(WireError, match=r"JobView.durations_ns has 9 bytes where 1 rows need 8"):
        decode_snapshot(message)


def test_an_unknown_class_is_refused() -> None:
    message = encode_snapshot(example())
    setattr(message.flows[0], "class", 4)
    with pytest.raises(WireError, match=r"FlowView.class_ is 4, not one of 0, 1, 2, 3"):
        decode_snapshot(message)


def test_a_flow_view_needs_its_flow() -> None:
    message = encode_snapshot(example())
    message.flows[0].ClearField("flow")
    with pytest.raises(WireError, match=r"FlowView.flow is missing"):
        decode_snapshot(message)


@pytest.mark.parametrize("record", [Snapshot, HostView, LinkView, JobView, RankView, FlowView, Totals, Page])
def test_records_and_messages_have_the_same_fields(record: type) -> None:
    message = getattr(netmon_pb2, record.__name__)
    on_wire = set(message.DESCRIPTOR.fields_by_name) - {"columns"}  # the length of LinkView.wire_bps
    assert {field.name.rstrip("_") for field in fields(record)} == on_wire


def test_a_long_warning_is_cut() -> None:
    snapshot = replace(example(), warnings=("short", "x" * 5_000))
    short, cut = decode_snapshot(encode_snapshot(snapshot)).warnings
    assert (short, len(cut), cut[-1]) == ("short", 1024, "…")
