# SPDX-License-Identifier: Apache-2.0
"""The dataset's schema, and how rows become Arrow tables. Date and hour are in the path, not in the file.

Strings that repeat are dictionary-encoded; where there is nothing to say they are empty, ranks and iterations −1.
Times are int64 ns of the UTC epoch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from collector.host.flows import STATE, Links
from collector.host.ledger import LedgerRow
from collector.host.rows import CARRIED
from netmon.dl.account import Tally
from netmon.dl.classify import NS_PER_S
from netmon.dl.iterations import Iteration
from netmon.dl.timemap import TimeMap
from netmon.dl.traffic import TRAFFIC_NAMES
from netmon.records import CLASS_NAMES, Class, Flow, Hello, Interface, NicSample, Table

DATASET_VERSION = 4
"""Of the files' schema; it rises with every change that a reader can tell."""

DIRECTIONS = ("rx", "tx")
_WORD = pa.dictionary(pa.int32(), pa.string())
_I64 = pa.int64()


def _fields(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


_BUCKETS = [
    *_fields(_WORD, "host", "session", "interface", "direction"),
    *_fields(pa.uint32(), "flow_id"),
    *_fields(_I64, "bucket_start_ns", "bucket_ns", "packets", "wire_bytes", "payload_bytes"),
    *_fields(_I64, "peak_bytes", "busy_buckets"),
    *_fields(_WORD, "class", "job"),
    *_fields(_I64, "iteration"),
]

SCHEMAS = {
    "buckets": pa.schema(_BUCKETS),
    "full": pa.schema([*_BUCKETS, *_fields(_WORD, "reason", "gap")]),
    "flows": pa.schema(
        [
            *_fields(_WORD, "host", "session", "interface", "direction"),
            *_fields(pa.uint32(), "flow_id"),
            *_fields(_WORD, "src", "dst"),
            *_fields(pa.uint16(), "src_port", "dst_port"),
            *_fields(pa.uint8(), "protocol"),
            *_fields(_WORD, "process"),
            *_fields(pa.uint32(), "pid"),
            *_fields(_WORD, "container", "job"),
            *_fields(pa.int32(), "rank", "peer_rank"),
            *_fields(_I64, "first_ns", "last_ns"),
            *_fields(_WORD, "class", "class_source", "traffic"),
            *_fields(pa.uint32(), "members"),
            *_fields(pa.uint8(), "prefix_bits"),
        ]
    ),
    "iterations": pa.schema(
        [
            *_fields(_WORD, "host", "session", "job"),
            *_fields(pa.int32(), "rank", "size"),
            *_fields(_I64, "iteration", "start_ns", "end_ns"),
            *_fields(_WORD, "start_moment", "end_moment"),
            *_fields(_I64, "comm_start_ns", "comm_end_ns", "wait_start_ns", "exposed_ns"),
            *_fields(_WORD, "source"),
            *_fields(_I64, "error_ns"),
            *_fields(pa.bool_(), "relative"),
            *_fields(_I64, "parameters"),
            *_fields(pa.bool_(), "node_shared"),
            *_fields(_I64, "dl_tx_bytes", "dl_rx_bytes", "dl_shared_tx_bytes", "dl_shared_rx_bytes"),
            *_fields(_I64, "dl_control_tx_bytes", "dl_control_rx_bytes", "cross_tx_bytes", "cross_rx_bytes"),
            *_fields(_I64, "other_job_tx_bytes", "other_job_rx_bytes"),
            *_fields(_I64, "unclassified_tx_bytes", "unclassified_rx_bytes"),
            *_fields(_WORD, "cross_top"),
            *_fields(_I64, "cross_top_tx_bytes", "cross_top_rx_bytes"),
            *_fields(_I64, "peak_bps"),
        ]
    ),
    "ledger": pa.schema(
        [
            *_fields(_WORD, "host", "session", "interface", "direction"),
            *_fields(_I64, "start_ns", "end_ns", "nic_bytes", "attributed_bytes", "overflow_bytes"),
            *_fields(_I64, "lost_kernel_bytes", "lost_agent_bytes", "invisible_bytes"),
            *_fields(pa.float64(), "coverage"),
            *_fields(_I64, "nic_counter_bytes", "nic_packets"),
            *_fields(_WORD, "hook", "byte_basis"),
        ]
    ),
    "nic": pa.schema(
        [
            *_fields(_WORD, "host", "session"),
            *_fields(_I64, "time_ns"),
            *_fields(_WORD, "device", "source", "counter"),
            *_fields(_I64, "value"),
        ]
    ),
    "sessions": pa.schema(
        [
            *_fields(_WORD, "host", "session", "interface", "agent_version"),
            *_fields(_I64, "start_ns", "bucket_ns", "full_bucket_ns", "capacity_bps"),
            *_fields(_WORD, "byte_basis"),
            *_fields(_I64, "super_packet_ns"),
            *_fields(_WORD, "hook_rx", "hook_tx"),
            *_fields(_I64, "clock_error_ns"),
            *_fields(_WORD, "clock_source"),
            *_fields(_I64, "share_window_ns"),
            *_fields(pa.float64(), "share_threshold"),
        ]
    ),
}
"""Arrow schema per table; comm_start_ns and comm_end_ns are null where unknown, coverage where the NIC was idle.

sessions has a row per interface of each session; super_packet_ns is how long the largest packet that the hook sees as
one takes on the link: below it, a row's bucket is finer than its truth. 0: not known.
"""

TIMES = {
    "buckets": "bucket_start_ns",
    "full": "bucket_start_ns",
    "flows": "first_ns",
    "iterations": "start_ns",
    "ledger": "start_ns",
    "nic": "time_ns",
    "sessions": "start_ns",
}
"""The column that tells which hour a row belongs to."""


def _words(numbers: Sequence[int] | np.ndarray, names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(names, pa.string()))


def _encode(values: Sequence[str]) -> pa.DictionaryArray:
    return pa.array(values, pa.string()).dictionary_encode()


def _table(name: str, hello: Hello, rows: int, columns: dict[str, Any]) -> pa.Table:
    whose = {"host": hello.host, "session": hello.session}
    arrays = {key: _words(np.zeros(rows, np.int32), [value]) for key, value in whose.items()} | columns
    schema = SCHEMAS[name]
    converted = [a if isinstance(a, pa.Array) else pa.array(a, f.type) for f in schema for a in [arrays[f.name]]]
    return pa.Table.from_arrays(converted, schema=schema)


def _link_columns(links: Links, numbers: np.ndarray) -> dict[str, object]:
    return {
        "interface": _words(numbers // 2, [interface.name for interface in links.interfaces]),
        "direction": _words(numbers % 2, DIRECTIONS),
    }


def bucket_table(hello: Hello, links: Links, jobs: Sequence[str], rows: Table) -> pa.Table:
    """Settled rows (collector.host.rows.SETTLED) as the table `buckets`."""
    plain = ("flow_id", "bucket_start_ns", *CARRIED, "iteration")
    columns = _link_columns(links, rows["link"]) | {name: np.ascontiguousarray(rows[name]) for name in plain}
    columns["class"] = _words(rows["class"].astype(np.int32), CLASS_NAMES)
    columns["job"] = _words(np.ascontiguousarray(rows["job"]), jobs)
    return _table("buckets", hello, len(rows), columns)


def flow_table(
    hello: Hello, links: Links, clock: TimeMap, flows: Sequence[Flow], state: Table, peers: Sequence[int]
) -> pa.Table:
    """Flows with their state (collector.host.flows.STATE, same order) as the table `flows`.

    The class is what is known at last; rows that had settled before keep what was known then. That of a DL flow is
    DL-shared as soon as one of its rows was.
    """
    assert state.dtype == STATE
    classes = np.where(state["shared"], np.uint8(Class.DL_SHARED), state["class"]).astype(np.int32)
    columns = _link_columns(links, state["link"])
    plain = ("flow_id", "src_port", "dst_port", "protocol", "members", "prefix_bits")
    columns |= {name: [getattr(flow, name) for flow in flows] for name in plain}
    columns |= {name: _encode([getattr(flow, name) for flow in flows]) for name in ("src", "dst")}
    columns |= {
        name: _encode([getattr(flow.owner, name) for flow in flows]) for name in ("process", "container", "job")
    }
    columns |= {name: [getattr(flow.owner, name) for flow in flows] for name in ("pid", "rank")}
    columns["peer_rank"] = peers
    columns["first_ns"] = clock.utcs(np.array([flow.first_ns for flow in flows], np.int64))
    columns["last_ns"] = clock.utcs(state["last_ns"])
    columns["class"] = _words(classes, CLASS_NAMES)
    columns["class_source"] = _encode([flow.owner.source for flow in flows])
    columns["traffic"] = _words(state["traffic"].astype(np.int32), TRAFFIC_NAMES)
    return _table("flows", hello, len(flows), columns)


def iteration_table(hello: Hello, clock: TimeMap, rows: Sequence[tuple[Iteration, Tally]]) -> pa.Table:
    """Iterations with their account as the table `iterations`."""
    iterations, tallies = [row[0] for row in rows], [row[1] for row in rows]
    same = ("rank", "size", "error_ns", "relative", "parameters")
    columns: dict[str, object] = {name: [getattr(iteration, name) for iteration in iterations] for name in same}
    columns |= {name: [getattr(tally, name) for tally in tallies] for name in Tally.__dataclass_fields__}
    columns["iteration"] = [iteration.number for iteration in iterations]
    for name in ("start_ns", "end_ns"):
        columns[name] = [clock.utc(getattr(iteration, name)) for iteration in iterations]
    columns["cross_top"] = _encode([tally.cross_top for tally in tallies])
    columns["exposed_ns"] = [i.exposed_ns if i.exposed_ns >= 0 else None for i in iterations]
    for name in ("comm_start_ns", "comm_end_ns", "wait_start_ns"):
        columns[name] = [clock.utc(time) if time else None for time in (getattr(i, name) for i in iterations)]
    columns["job"] = _encode([iteration.job for iteration in iterations])
    for name in ("start_moment", "end_moment", "source"):
        columns[name] = _encode([getattr(iteration, name).name.lower() for iteration in iterations])
    return _table("iterations", hello, len(rows), columns)


def ledger_table(hello: Hello, links: Links, clock: TimeMap, rows: Sequence[LedgerRow]) -> pa.Table:
    """Ledger rows as the table `ledger`."""
    numbers = np.array([row.link for row in rows], np.int64)
    plain = [f.name for f in SCHEMAS["ledger"] if f.name.endswith("_bytes") or f.name == "nic_packets"]
    columns = _link_columns(links, numbers) | {name: [getattr(row, name) for row in rows] for name in plain}
    columns["coverage"] = [row.coverage if row.nic_bytes else None for row in rows]
    columns["start_ns"] = [clock.utc(row.start_ns) for row in rows]
    columns["end_ns"] = [clock.utc(row.end_ns) for row in rows]
    columns["hook"] = _encode([links.hook(row.link) for row in rows])
    columns["byte_basis"] = _encode([links.interface(row.link).byte_basis for row in rows])
    return _table("ledger", hello, len(rows), columns)


def nic_table(hello: Hello, clock: TimeMap, samples: Sequence[NicSample]) -> pa.Table:
    """The NICs' counters as the table `nic`: one row per counter, cumulative since whenever the device began."""
    rows = [len(sample.names) for sample in samples]
    times = clock.utcs(np.array([sample.time_ns for sample in samples], np.int64))
    columns: dict[str, object] = {"time_ns": np.repeat(times, rows)}
    for name in ("device", "source"):
        columns[name] = _encode([getattr(s, name) for s in samples]).take(
            pa.array(np.repeat(np.arange(len(rows)), rows))
        )
    columns["counter"] = _encode([name for sample in samples for name in sample.names])
    columns["value"] = [value for sample in samples for value in sample.values]
    return _table("nic", hello, sum(rows), columns)


def full_table(buckets: pa.Table, reason: str, gap: str) -> pa.Table:
    """Rows of full resolution with the columns of `buckets` as the table `full`: why they are kept, what is missing."""
    zeros = np.zeros(len(buckets), np.int32)
    return buckets.append_column("reason", _words(zeros, [reason])).append_column("gap", _words(zeros, [gap]))


def session_table(hello: Hello, clock_error_ns: int, clock_source: str, share: tuple[int, float]) -> pa.Table:
    """What holds for all rows of a session as the table `sessions`. share: window in ns, and threshold."""
    interfaces = hello.interfaces
    columns: dict[str, object] = {
        "interface": _encode([interface.name for interface in interfaces]),
        "capacity_bps": [interface.capacity_bps for interface in interfaces],
        "super_packet_ns": [super_packet_ns(interface) for interface in interfaces],
        **{
            name: _encode([getattr(interface, name) for interface in interfaces])
            for name in ("byte_basis", "hook_rx", "hook_tx")
        },
    }
    same: dict[str, object] = {
        "agent_version": hello.agent_version,
        "start_ns": hello.clock.utc_ns,
        "bucket_ns": hello.streamed_ns,
        "full_bucket_ns": hello.bucket_ns,
        "clock_error_ns": clock_error_ns,
        "clock_source": clock_source,
        "share_window_ns": share[0],
        "share_threshold": share[1],
    }
    for name, value in same.items():
        values = [value] * len(interfaces)
        columns[name] = _encode(list(map(str, values))) if isinstance(value, str) else values
    return _table("sessions", hello, len(interfaces), columns)


def super_packet_ns(interface: Interface) -> int:
    """How long the largest packet that the hook sees as one takes on the link; 0 where that is not known."""
    if not (interface.capacity_bps and interface.super_packet_bytes):
        return 0
    return round(interface.super_packet_bytes * 8 * NS_PER_S / interface.capacity_bps)
