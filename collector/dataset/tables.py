# SPDX-License-Identifier: Apache-2.0
"""The dataset's schema, and how rows become Arrow tables. Date and hour are in the path, not in the file.

Strings that repeat are dictionary-encoded; where there is nothing to say they are empty, ranks and iterations −1.
Times are int64 ns of the UTC epoch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.host.flows import STATE, Links
from collector.host.iteration_rows import Accounted
from collector.host.rows import COLUMNS
from netmon.dl.classify import NS_PER_S, TRAFFIC_NAMES
from netmon.dl.iterations import Iteration
from netmon.dl.timemap import TimeMap, TimeMaps
from netmon.evidence import EVIDENCE, UNKNOWN
from netmon.records import CLASS_NAMES, Class, Columns, Flow, Hello, Interface, Moment, NicSample, Owner, Source, Table
from netmon.views import SHARES
from netmon.wire.tables import WORDS_OF

DATASET_VERSION = 1
"""Of the files' schema; one of another version is not continued. It rises where what a column means changes, or one
goes; a new column does not raise it."""

DIRECTIONS = ("rx", "tx")
_WORD = pa.dictionary(pa.int32(), pa.string())
_I64 = pa.int64()
_MOMENTS, _SOURCES = (
    ["", *(one.name.lower() for one in sorted(kind))] for kind in (Moment, Source)
)  # by their numbers
_Indices = npt.NDArray[np.integer]


def _fields(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


_BUCKETS = [
    *_fields(_WORD, "host", "session", "interface", "direction"),
    *_fields(pa.uint32(), "flow_id"),
    *_fields(_I64, "bucket_start_ns", *COLUMNS),
    *_fields(_WORD, "class", "job"),
    *_fields(_I64, "iteration"),
]

_EVIDENCE_TYPES = {
    **dict.fromkeys(("flow_id", "reverse_flow_id", "pid"), pa.uint32()),
    **{"job": _WORD, "rank": pa.int32(), "application_limited": pa.bool_()},
    **dict.fromkeys((name for table in EVIDENCE for name in WORDS_OF[table]), _WORD),
    **{"queue": pa.uint32(), "remote_queue": pa.uint32(), "whole": pa.bool_()},
}


def _evidence_schema(dtype: np.dtype[np.void]) -> pa.Schema:
    """As the dtype in netmon.evidence, whose flow stands for its link."""
    names = dtype.names or ()
    link = ("interface", "direction") if "flow_id" in names else ()
    columns = [pa.field(name, _EVIDENCE_TYPES.get(name, _I64)) for name in names]
    return pa.schema([*_fields(_WORD, "host", "session", *link), *columns])


_RANK_TIMES = [
    *_fields(pa.int32(), "rank", "waited_for"),
    *_fields(pa.string(), "host", "stalled_by"),
    *_fields(pa.bool_(), "known"),
    *_fields(_I64, "duration_ns", "computed_ns", "waited_ns", "transfer_ns", "stalled_ns", "after_ns", "error_ns"),
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
            *_fields(_WORD, "container", "user", "job"),
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
            *_fields(_I64, "parameters", "gradient_bytes"),
            *_fields(_WORD, "parameters_basis", "job_name"),
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
            *_fields(_I64, "nic_counter_bytes", "nic_packets", "clock_offset_ns", "clock_error_ns"),
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
    **{name: _evidence_schema(dtype) for name, dtype in EVIDENCE.items()},
    "verdicts": pa.schema(
        [
            *_fields(_WORD, "host", "job"),
            *_fields(_I64, "iteration", "start_ns", "end_ns", "duration_ns", "baseline_ns", "excess_ns"),
            *_fields(_WORD, "cause", "culprit", "interface", "direction"),
            *_fields(pa.int32(), "rank"),
            *_fields(_I64, "bytes", *(f"{share}_ns" for share in SHARES), "error_ns"),
            *_fields(_I64, "counterfactual_ns", "counterfactual_low_ns", "counterfactual_high_ns"),
            *_fields(pa.float64(), "confidence"),
            *_fields(_WORD, "second_cause", "second_culprit"),
            *_fields(_I64, "reported_ns"),
            *_fields(pa.bool_(), "relative"),
            *_fields(_I64, "receiver_ns", "sender_ns"),
            *_fields(_WORD, "culprit_user", "sender", "receiver"),
            *_fields(pa.string(), "group_waits"),
            *_fields(pa.list_(pa.struct(_RANK_TIMES)), "ranks"),
        ]
    ),
    "hangs": pa.schema(
        [
            *_fields(_WORD, "host", "job"),
            *_fields(_I64, "since_ns", "until_ns", "reported_ns"),
            *_fields(_WORD, "what", "collective"),
            *_fields(_I64, "sequence"),
            *_fields(_WORD, "group"),
            *_fields(pa.int32(), "rank"),
            *_fields(_WORD, "why"),
            *_fields(pa.list_(pa.int32()), "missing", "waiting"),
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

transport and host are null where the kernel does not report: see netmon.evidence. host has rows of the host itself
(rank −1), one a second, and of each rank on it: shorter ones while something kept the rank from running.

verdicts has a row per job and slow iteration (netmon.views.Verdict); the counterfactual is null where
nobody's bytes delayed it; ranks are netmon.views.RankTimes, of a large job the most informative ones.

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
    "verdicts": "start_ns",
    "hangs": "since_ns",
    **dict.fromkeys(EVIDENCE, "start_ns"),
    "sessions": "start_ns",
}
"""The column that tells which hour a row belongs to."""

LATER = {"flows": ("last_ns", "traffic"), "sessions": ("clock_error_ns",)}
"""Columns of rows that change, which grow with each flush: alone they are no reason to write a row anew at once."""


class Origin(NamedTuple):
    """A session of which rows are stored."""

    hello: Hello
    links: Links
    clock: TimeMap  # as the rows use it
    host_offset_ns: int = 0  # the host's own UTC minus mono, as it said last
    clock_error_ns: int = 0  # of the rows' times


class Origins:
    """The sessions whose rows are stored together; the rows name them by their indices here."""

    def __init__(self, sessions: Sequence[Origin]) -> None:
        """At least one."""
        self.sessions = sessions
        self._clocks = TimeMaps([session.clock for session in sessions])
        counts = [len(session.links) for session in sessions]
        self._first_link = np.cumsum([0, *counts[:-1]])
        self._numbered: dict[object, tuple[npt.NDArray[np.int32], list[str]]] = {}

    def table(self, name: str, of: _Indices, columns: dict[str, Any]) -> pa.Table:
        """The rows of a table. of: the session of each; columns: all that do not follow from it."""
        whose = {key: self._known_words(of, key, self._of_hello(key)) for key in ("host", "session")}
        arrays = whose | columns
        schema = SCHEMAS[name]
        converted = [a if isinstance(a, pa.Array) else pa.array(a, f.type) for f in schema for a in [arrays[f.name]]]
        return pa.Table.from_arrays(converted, schema=schema)

    def _of_hello(self, key: str) -> Iterator[str]:
        return (getattr(session.hello, key) for session in self.sessions)

    @staticmethod
    def words(of: _Indices, words: Iterable[str]) -> pa.DictionaryArray:
        """The word of each row; words: by what `of` says, may repeat."""
        codes, names = _numbered(words)
        return _words(codes[of], names)

    def _known_words(self, of: _Indices, what: object, words: Iterable[str]) -> pa.DictionaryArray:
        """The same, of words that are read once; what: which."""
        if what not in self._numbered:
            self._numbered[what] = _numbered(words)
        codes, names = self._numbered[what]
        return _words(codes.take(of.astype(np.intp, copy=False)), names)

    def link_words(self, of: _Indices, link: npt.NDArray[np.integer], name: str) -> pa.DictionaryArray:
        """A word of each row's link; link: as its session counts them; name: of these words in Links."""
        words = chain.from_iterable(getattr(session.links, name) for session in self.sessions)
        return self._known_words(self._first_link[of] + link, name, words)

    def link_columns(self, of: _Indices, link: npt.NDArray[np.integer]) -> dict[str, Any]:
        return {
            "interface": self.link_words(of, link, "names"),
            "direction": _words((link & 1).astype(np.int32), DIRECTIONS),
        }

    def utcs(self, of: _Indices, mono_ns: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._clocks.utcs(of, np.asarray(mono_ns, np.int64))


def _numbered(words: Iterable[str]) -> tuple[npt.NDArray[np.int32], list[str]]:
    """The number of each word, and the words by their numbers."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int32)
    return codes, list(numbers)


def _words(numbers: Sequence[int] | np.ndarray, names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(names, pa.string()))


def _encode(values: Sequence[str]) -> pa.DictionaryArray:
    return pa.array(values, pa.string()).dictionary_encode()


def bucket_table(
    origins: Origins,
    of: _Indices,
    jobs: Sequence[str],
    pieces: Sequence[Columns],
    order: npt.NDArray[np.intp] | None = None,
) -> pa.Table:
    """Settled rows (collector.host.rows.SETTLED) as the table `buckets`; jobs: by the rows' number.

    order: in which they are stored; None: as they are.
    """

    def column(name: str, dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        plain = column_of(pieces, name)
        return (plain if order is None else plain.take(order)).astype(dtype, copy=False)

    of = of if order is None else of.take(order)
    columns = origins.link_columns(of, column("link", np.int32)) | {"flow_id": column("flow_id", np.uint32)}
    columns |= {name: column(name) for name in ("bucket_start_ns", *COLUMNS, "iteration")}
    columns["class"] = _words(column("class", np.int32), CLASS_NAMES)
    columns["job"] = _words(column("job", np.int32), jobs)
    return origins.table("buckets", of, columns)


def column_of(pieces: Sequence[Columns], name: str) -> npt.NDArray[Any]:
    """A column of tables, one after the other."""
    return pieces[0][name] if len(pieces) == 1 else np.concatenate([rows[name] for rows in pieces])


def flow_table(origins: Origins, of: _Indices, flows: Sequence[Flow], state: Table, peers: Sequence[int]) -> pa.Table:
    """Flows with their state (collector.host.flows.STATE, same order) as the table `flows`.

    The class is what is known at last; rows that had settled before keep what was known then. That of a DL flow is
    DL-shared as soon as one of its rows was.
    """
    assert state.dtype == STATE
    classes = np.where(state["shared"], np.uint8(Class.DL_SHARED), state["class"]).astype(np.int32)
    columns = origins.link_columns(of, np.ascontiguousarray(state["link"]))
    columns["peer_rank"] = peers
    columns["first_ns"] = origins.utcs(of, [flow.first_ns for flow in flows])
    columns["last_ns"] = origins.utcs(of, state["last_ns"])
    columns["class"] = _words(classes, CLASS_NAMES)
    columns["class_source"] = _encode([flow.owner.source for flow in flows])
    columns["traffic"] = _words(state["traffic"].astype(np.int32), TRAFFIC_NAMES)
    owners = [flow.owner for flow in flows]
    for field in SCHEMAS["flows"]:  # all others by their names
        if (name := field.name) in (*columns, "host", "session"):
            continue
        whose = next((of for kind, of in ((Flow, flows), (Owner, owners)) if name in kind.__dataclass_fields__), None)
        values = state[name] if whose is None else list(map(attrgetter(name), whose))
        columns[name] = _encode(values) if field.type == _WORD else values
    return origins.table("flows", of, columns)


def iteration_table(origins: Origins, of: _Indices, accounted: Accounted) -> pa.Table:
    """Iterations with their account as the table `iterations`; of: the session of each."""
    rows = accounted.rows
    columns: dict[str, Any] = {name: rows.each_of(name) for name in ("rank", "size", "relative", "parameters")}
    columns |= {"gradient_bytes": rows.each_of("gradient_bytes"), "error_ns": rows.error_ns, "iteration": rows.number}
    columns |= accounted.tallies
    for name in ("start_ns", "end_ns"):
        columns[name] = origins.utcs(of, getattr(rows, name))
    columns["exposed_ns"] = pa.array(rows.exposed_ns, mask=rows.exposed_ns < 0)
    for name in ("comm_start_ns", "comm_end_ns", "wait_start_ns"):
        times = getattr(rows, name)
        columns[name] = pa.array(origins.utcs(of, times), mask=times == 0)
    words: dict[str, Callable[[Iteration], str]] = {
        "job": lambda one: one.job,
        "job_name": lambda one: one.job_name or one.job,
        "parameters_basis": lambda one: one.parameters_basis,
    }
    for name, word_of in words.items():
        columns[name] = origins.words(rows.whose, map(word_of, rows.about))
    for name, words_of in (("start_moment", _MOMENTS), ("end_moment", _MOMENTS), ("source", _SOURCES)):
        columns[name] = _words(getattr(rows, name).astype(np.int32), words_of)
    columns["cross_top"] = _encode(accounted.tallies["cross_top"].tolist())
    return origins.table("iterations", of, columns)


def ledger_table(origins: Origins, of: _Indices, pieces: Sequence[Columns]) -> pa.Table:
    """Rows of collector.host.ledger as the table `ledger`."""
    link, end_ns, coverage = (column_of(pieces, name) for name in ("link", "end_ns", "coverage"))
    plain = [f.name for f in SCHEMAS["ledger"] if f.name.endswith("_bytes") or f.name == "nic_packets"]
    columns = origins.link_columns(of, link) | {name: column_of(pieces, name) for name in plain}
    columns["coverage"] = pa.array(coverage, mask=np.isnan(coverage))
    columns |= _times(origins, of, pieces)
    offsets = np.array([(own.host_offset_ns, own.clock_error_ns) for own in origins.sessions], np.int64)[of]
    columns["clock_offset_ns"] = end_ns + offsets[:, 0] - columns["end_ns"]
    columns["clock_error_ns"] = offsets[:, 1]
    hooks = origins.link_words(of, link, "hooks")
    watched = column_of(pieces, "watched")
    if not watched.all():
        words = zip(hooks.to_pylist(), watched.tolist(), strict=True)
        hooks = _encode([hook if own else "none" for hook, own in words])
    columns["hook"] = hooks
    columns["byte_basis"] = origins.link_words(of, link, "byte_bases")
    return origins.table("ledger", of, columns)


def nic_table(origins: Origins, of: _Indices, samples: Sequence[NicSample]) -> pa.Table:
    """The NICs' counters as the table `nic`: one row per counter, cumulative since whenever the device began."""
    rows = [len(sample.names) for sample in samples]
    times = origins.utcs(of, [sample.time_ns for sample in samples])
    columns: dict[str, object] = {"time_ns": np.repeat(times, rows)}
    for name in ("device", "source"):
        columns[name] = _encode([getattr(s, name) for s in samples]).take(
            pa.array(np.repeat(np.arange(len(rows)), rows))
        )
    columns["counter"] = _encode([name for sample in samples for name in sample.names])
    columns["value"] = [value for sample in samples for value in sample.values]
    return origins.table("nic", np.repeat(of, rows), columns)


def full_table(buckets: pa.Table, reason: str, gap: str) -> pa.Table:
    """Rows of full resolution with the columns of `buckets` as the table `full`: why they are kept, what is missing."""
    zeros = np.zeros(len(buckets), np.int32)
    return buckets.append_column("reason", _words(zeros, [reason])).append_column("gap", _words(zeros, [gap]))


def evidence_table(
    name: str, origins: Origins, of: _Indices, jobs: Sequence[str], pieces: Sequence[Columns]
) -> pa.Table:
    """Rows of collector.host.tables.Evidence as the table of this name; null: the kernel does not report.

    jobs: by the rows' number.
    """
    columns, there = _known_numbers(name, pieces) | _times(origins, of, pieces), pieces[0].names
    for column in (field.name for field in SCHEMAS[name] if pa.types.is_boolean(field.type)):
        holds = column_of(pieces, column)
        columns[column] = pa.array(holds == 1, mask=holds == UNKNOWN)
    for column in (column for column in EVIDENCE[name].names or () if _EVIDENCE_TYPES.get(column) == _WORD):
        if column != "job":
            columns[column] = _encode(column_of(pieces, column).tolist())
    if "job" in there:
        job, names = column_of(pieces, "job"), pa.array([*jobs, ""], pa.string())
        columns["job"] = pa.DictionaryArray.from_arrays(pa.array(np.where(job < 0, len(jobs), job), pa.int32()), names)
        columns["rank"], columns["pid"] = column_of(pieces, "rank"), np.maximum(column_of(pieces, "pid"), 0)
    if "link" in there:
        columns |= origins.link_columns(of, column_of(pieces, "link"))
    return origins.table(name, of, columns)


def _times(origins: Origins, of: _Indices, pieces: Sequence[Columns]) -> dict[str, Any]:
    times: dict[str, Any] = {name: origins.utcs(of, column_of(pieces, name)) for name in ("start_ns", "end_ns")}
    if "queued_ns" in pieces[0].names:
        queued_ns = column_of(pieces, "queued_ns")
        times["queued_ns"] = pa.array(origins.utcs(of, queued_ns), mask=queued_ns == UNKNOWN)
    return times


def _known_numbers(name: str, pieces: Sequence[Columns]) -> dict[str, Any]:
    """The columns that are numbers or not known."""
    there = [field for field in SCHEMAS[name] if field.name in pieces[0].names]
    numbers = {}
    for field in there:
        if pa.types.is_integer(field.type):
            column = column_of(pieces, field.name)
            numbers[field.name] = pa.array(column, field.type, mask=column == UNKNOWN, safe=False)
    return numbers


class SessionMeta(NamedTuple):
    """What holds for all rows of a session."""

    clock_error_ns: int
    clock_source: str
    share_window_ns: int
    share_threshold: float


def session_table(origins: Origins, sessions: Mapping[int, SessionMeta]) -> pa.Table:
    """What holds for all rows of some sessions, by index, as the table `sessions`."""
    rows = [(number, interface) for number in sessions for interface in origins.sessions[number].hello.interfaces]
    of, interfaces = np.array([number for number, _ in rows], np.int64), [interface for _, interface in rows]
    hellos = [origins.sessions[number].hello for number, _ in rows]
    columns: dict[str, object] = {
        "interface": _encode([interface.name for interface in interfaces]),
        "capacity_bps": [interface.capacity_bps for interface in interfaces],
        "super_packet_ns": [super_packet_ns(interface) for interface in interfaces],
        "agent_version": _encode([hello.agent_version for hello in hellos]),
        "start_ns": [hello.clock.utc_ns for hello in hellos],
        "bucket_ns": [hello.streamed_ns for hello in hellos],
        "full_bucket_ns": [hello.bucket_ns for hello in hellos],
        "clock_source": _encode([sessions[number].clock_source for number, _ in rows]),
    }
    for name in ("byte_basis", "hook_rx", "hook_tx"):
        columns[name] = _encode([getattr(interface, name) for interface in interfaces])
    for name in ("clock_error_ns", "share_window_ns", "share_threshold"):
        columns[name] = [getattr(sessions[number], name) for number, _ in rows]
    return origins.table("sessions", of, columns)


def super_packet_ns(interface: Interface) -> int:
    """How long the largest packet that the hook sees as one takes on the link; 0 where that is not known."""
    if not (interface.capacity_bps and interface.super_packet_bytes):
        return 0
    return round(interface.super_packet_bytes * 8 * NS_PER_S / interface.capacity_bps)
