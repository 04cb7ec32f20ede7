# SPDX-License-Identifier: Apache-2.0
"""Every table that an agent sends in addition to its bucket rows: which columns it has, what they may hold, and the one
encoding of all of them. A new table is an entry of TABLES.

A table is a matrix of int64, a row per row. On the wire all tables of a message lie one after the other, each column by
column, as unsigned numbers that count from the least that the column may be. Columns of words hold indices into the
message's words; a reader of many messages gets indices into the words of all of them. Decoding trusts nothing.
"""

import ipaddress
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.errors import WireError
from netmon.evidence import EVIDENCE, UNKNOWN, ProcessState, WaitsFor
from netmon.marks import MOST_RANKS, printable
from netmon.records import (
    ITERATION,
    PROTOCOL_NON_IP,
    SCORE,
    ClockExchange,
    Columns,
    Direction,
    Flow,
    LedgerSample,
    Moment,
    NicSample,
    Owner,
    RankState,
    Source,
    Table,
    Training,
)
from netmon.wire import netmon_pb2
from netmon.wire.limits import (
    FURTHEST_NS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_EVIDENCE,
    MAX_EXCHANGES,
    MAX_FLOWS,
    MAX_HEADER_BYTES,
    MAX_ITERATION,
    MAX_ITERATIONS,
    MAX_LEDGER,
    MAX_MONO_NS,
    MAX_NAME,
    MAX_NIC,
    MAX_NIC_COUNTERS,
    MAX_PACKETS,
    MAX_RANKS,
    MAX_SPAN_NS,
    MAX_UTC_NS,
    MAX_WIDTH_NS,
    MAX_WORDS,
)

Matrix = npt.NDArray[np.int64]
"""(rows, columns) of a table."""

_Stored = npt.NDArray[np.uint64]
"""(columns, rows) of a table, as it travels."""

_Numbers = npt.NDArray[np.int64]


class Limits(NamedTuple):
    """What a column may hold. is_word: a place among the words; −1: the empty one."""

    least: int
    most: int
    is_word: bool = False


WORD = Limits(-1, MAX_WORDS - 1, is_word=True)
_U32 = Limits(0, 2**32 - 1)
_MONO, _UTC, _SPAN = Limits(0, MAX_MONO_NS), Limits(0, MAX_UTC_NS), Limits(0, MAX_SPAN_NS)
_COUNT, _BYTES, _PACKETS = Limits(0, MAX_COUNT), Limits(0, MAX_BYTES), Limits(0, MAX_PACKETS)
_RANK_ID = Limits(1, 2**31 - 1)
_FLAG, _PORT, _RANK = Limits(0, 1), Limits(0, 0xFFFF), Limits(0, MOST_RANKS - 1)


@dataclass(frozen=True)
class Format:
    """A table: its name, the most rows of it in a message, its columns in their order.

    latest: the column that lies at most FURTHEST_NS after the batch's horizon; empty: none. Where there are `start_ns`
    and `end_ns`, none ends before it begins, but those that have not ended: at 0.
    """

    name: str
    most_rows: int
    columns: Mapping[str, Limits]
    latest: str = ""

    @cached_property
    def least(self) -> _Stored:
        """Of each column, (columns, 1); below zero it is what it takes to get there modulo 2^64."""
        return np.array([[limits.least] for limits in self.columns.values()], np.int64).view(np.uint64)

    @cached_property
    def span(self) -> _Stored:
        """The most that each column may be above its least."""
        return np.array([[limits.most - limits.least] for limits in self.columns.values()], np.uint64)

    @cached_property
    def words(self) -> list[int]:
        """Indices of the columns of words."""
        return [place for place, limits in enumerate(self.columns.values()) if limits.is_word]

    def stored(self, rows: Matrix) -> _Stored:
        """As they travel."""
        return np.ascontiguousarray(rows.T).view(np.uint64) - self.least

    def empty(self) -> Columns:
        return Columns({name: np.zeros(0, np.int64) for name in ("batch", *self.columns)})


_BY_UNIT = {"ns": MAX_SPAN_NS, "bytes": MAX_BYTES, "packets": MAX_PACKETS}
_OF_EVIDENCE = {
    **dict.fromkeys(("start_ns", "end_ns"), _MONO),
    **{
        "flow_id": _U32,
        "job": WORD,
        "application_limited": Limits(UNKNOWN, 1),
        "rank": Limits(UNKNOWN, MOST_RANKS - 1),
    },
    **{name: Limits(UNKNOWN, _U32.most) for name in ("reverse_flow_id", "pid")},
    **{name: Limits(UNKNOWN, MAX_PACKETS) for name in ("softnet_dropped", "softnet_squeezed")},
    "delivery_bps": Limits(UNKNOWN, MAX_COUNT),
    "timeouts": Limits(UNKNOWN, 0xFFFF),
    **{name: Limits(UNKNOWN, MAX_COUNT) for name in ("group", "sequence", "position", "calls", "forward_calls")},
    **{name: Limits(UNKNOWN, MAX_COUNT) for name in ("longest_sequence", "late_sequence")},
    **{name: Limits(UNKNOWN, MOST_RANKS) for name in ("size", "group_rank", "group_size", "peer")},
    **{"quiet": _FLAG, "state": Limits(0, max(ProcessState)), "waits_for": Limits(0, max(WaitsFor))},
    **dict.fromkeys(("communicator", "channel", "device"), Limits(UNKNOWN, _U32.most)),
    **dict.fromkeys(("sends", "level", "collective", "algorithm", "protocol"), Limits(UNKNOWN, 0xFF)),
    **dict.fromkeys(("number", "transfers", "missed", "operations"), Limits(UNKNOWN, MAX_COUNT)),
    "queued_ns": Limits(UNKNOWN, MAX_MONO_NS),
    **dict.fromkeys(("process", "container", "user", "rdma_device", "remote", "verb"), WORD),
    **{"queue": _U32, "remote_queue": _U32, "requests": _COUNT, "unread": _COUNT, "whole": _FLAG},
    **{"operation": Limits(UNKNOWN, 0xFFFF), "bytes": Limits(UNKNOWN, MAX_BYTES), "pending": Limits(0, 2)},
}
"""Columns of netmon.evidence whose limits their units do not give; all may be unknown that need not be known."""


def _evidence(name: str, dtype: np.dtype[np.void]) -> Format:
    columns = {
        column: _OF_EVIDENCE.get(column) or Limits(UNKNOWN, _BY_UNIT[column.rpartition("_")[2]])
        for column in dtype.names or ()
    }
    return Format(name, MAX_EVIDENCE, columns, "end_ns")


FLOWS = Format(
    "flows",
    MAX_FLOWS,
    {
        **{"flow_id": _U32, "interface": _U32, "direction": _FLAG, "src": WORD, "dst": WORD},
        **{"src_port": _PORT, "dst_port": _PORT, "protocol": Limits(0, 0xFF), "first_ns": _MONO},
        **{"pid": _U32, "process": WORD, "container": WORD, "job": WORD, "rank": Limits(-1, MOST_RANKS - 1)},
        **{"source": WORD, "user": WORD, "members": _U32, "prefix_bits": Limits(0, 128)},
    },
    latest="first_ns",
)
_SOURCE = Limits(min(Source), max(Source))
RANKS = Format(
    "ranks",
    MAX_RANKS,
    {
        **{"rank_id": _RANK_ID, "job": WORD, "rank": _RANK, "size": Limits(0, MOST_RANKS), "pid": _U32},
        **{"joined_ns": _MONO, "left_ns": _MONO, "trust": Limits(0, 2), "hooked": _FLAG, "understanding": Limits(0, 2)},
        **{"set_ups": _U32, "parameters": _COUNT, "gradient_bytes": _COUNT},
        **{"parameters_source": Limits(0, max(Source)), "job_name": WORD},
    },
)
ITERATIONS = Format(
    "iterations",
    MAX_ITERATIONS,
    {
        **{"rank_id": _RANK_ID, "number": Limits(-1, MAX_ITERATION), "source": _SOURCE},
        **{"start_moment": Limits(min(Moment), max(Moment)), "end_moment": Limits(0, max(Moment))},
        **{"start_ns": _MONO, "end_ns": _MONO, "error_ns": _SPAN},
        **dict.fromkeys(("comm_start_ns", "wait_start_ns", "comm_end_ns"), _MONO),
    },
)
"""As netmon.records.ITERATION. A time is what a training process says: none is the message's fault."""
SCORES = Format(
    "scores",
    MAX_RANKS,
    {
        **{"rank_id": _RANK_ID, "source": _SOURCE, "reference": _SOURCE},
        **dict.fromkeys(("iterations", "found", "matched", "error_ns"), _COUNT),
    },
)
LEDGER = Format(
    "ledger",
    MAX_LEDGER,
    {
        **{"interface": _U32, "direction": _FLAG, "time_ns": _MONO, "nic_bytes": _BYTES, "nic_packets": _PACKETS},
        **{"nic_header_bytes": Limits(0, MAX_HEADER_BYTES), "frames": _PACKETS, "packets": _PACKETS},
        **{"frame_bytes": _BYTES, "wire_bytes": _BYTES},
        **{
            f"{what}_{unit}": most
            for what in ("overflow", "lost_kernel", "lost_agent")
            for unit, most in (("packets", _PACKETS), ("wire_bytes", _BYTES), ("payload_bytes", _BYTES))
        },
        "uncounted": _FLAG,
    },
    latest="time_ns",
)
EXCHANGES = Format(
    "exchanges",
    MAX_EXCHANGES,
    {
        **{"agent_sent_ns": _MONO, "collector_received_ns": _UTC},
        **{"collector_sent_ns": _UTC, "agent_received_ns": _MONO},
    },
)
NIC = Format(
    "nic",
    MAX_NIC_COUNTERS,
    {
        **{"sample": Limits(0, MAX_NIC - 1), "device": WORD, "source": WORD, "time_ns": _MONO},
        **{"counter": WORD, "value": Limits(-(2**63), 2**63 - 1)},
    },
)
"""A row per counter; sample: which of the message's samples it is of."""

_EVIDENCE = [_evidence(name, dtype) for name, dtype in EVIDENCE.items()]
TABLES = (FLOWS, RANKS, ITERATIONS, SCORES, LEDGER, EXCHANGES, NIC, *_EVIDENCE)
"""In the order in which they travel."""

WORDS_OF = {
    format_.name: [name for name, limits in format_.columns.items() if limits.is_word and name != "job"]
    for format_ in TABLES
}
"""By table, the columns that are words, without the job's name."""

HEAD = Format(
    "batch",
    0,
    {
        **{"sequence": Limits(1, MAX_COUNT), "horizon_ns": _MONO, "bucket_ns": Limits(0, MAX_WIDTH_NS)},
        **{"mono_ns": _MONO, "utc_ns": _UTC, "error_ns": _SPAN, "utc_error_ns": _SPAN},
        **{"rss_bytes": _BYTES, "spool_bytes": _BYTES, "warnings": _BYTES},
    },
)
"""Of a batch: fields of its message and of the messages in it."""


# --- tables → message


class Words:
    """The words of a message, each once."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        """words: that have their indices already."""
        self._indices = {word: place for place, word in enumerate(words)}

    def place(self, word: str) -> int:
        """Of a word, which it has from here on; −1: it is empty."""
        return self._indices.setdefault(word, len(self._indices)) if word else -1

    @property
    def all(self) -> list[str]:
        """In the order of their indices."""
        return list(self._indices)


def matrix(table: Table) -> Matrix:
    """The rows of a structured table whose columns are all int64."""
    return np.frombuffer(table.tobytes(), np.int64).reshape(len(table), -1)


def encode_tables(tables: Mapping[str, Matrix], words: Words, message: netmon_pb2.Tables) -> None:
    """Into an empty message. tables: by their names; those without rows may be left out."""
    rows = [len(tables[format_.name]) if format_.name in tables else 0 for format_ in TABLES]
    while rows and not rows[-1]:
        rows.pop()
    message.rows.extend(rows)
    message.words.extend(words.all)
    data = b"".join([TABLES[at].stored(tables[TABLES[at].name]).tobytes() for at, count in enumerate(rows) if count])
    message.columns, message.deflated = zlib.compress(data, 1) if data else b"", bool(data)


# --- messages → tables


class Pieces(NamedTuple):
    """One message's tables, where they lie in its bytes, in the order of TABLES; and its words."""

    tables: Sequence[_Stored]
    words: Sequence[str]


_NONE = tuple(np.zeros((len(format_.columns), 0), np.uint64) for format_ in TABLES)


def split_tables(message: netmon_pb2.Tables) -> Pieces:
    """Inflate the columns of a message, and find them. Raises WireError with a one-line reason."""
    rows = list(message.rows)
    if not rows:
        return Pieces(_NONE, ())
    if len(rows) > len(TABLES):
        raise WireError(f"Tables.rows are of {len(rows)} tables, there are {len(TABLES)}")
    for format_, count in zip(TABLES, rows, strict=False):
        if count > format_.most_rows:
            raise WireError(f"{format_.name} are {count} rows, more than {format_.most_rows}")
    if len(message.words) > MAX_WORDS:
        raise WireError(f"Tables.words are {len(message.words)}, more than {MAX_WORDS}")
    shapes = [(len(format_.columns), count) for format_, count in zip(TABLES, rows, strict=False)]
    data = _inflated(message, 8 * sum(columns * count for columns, count in shapes))
    tables, offset = list(_NONE), 0
    for at, (columns, count) in enumerate(shapes):
        if count:
            size = columns * count
            tables[at] = np.frombuffer(data, "<u8", size, offset).reshape(columns, count)
            offset += 8 * size
    return Pieces(tables, [read_name(word, "a word") for word in message.words])


def _inflated(message: netmon_pb2.Tables, size: int) -> bytes:
    data = message.columns
    if message.deflated:
        try:
            data = zlib.decompressobj().decompress(data, size + 1) if size else b""
        except zlib.error as error:
            raise WireError(f"Tables.columns cannot be inflated: {error}") from None
    if len(data) != size:
        raise WireError(f"Tables.columns has {len(data)} bytes or more where its rows need {size}")
    return data


@dataclass(frozen=True)
class JoinedTables:
    """The tables of many messages. In each, `batch` says of which; words: of all, which columns of words name."""

    tables: Mapping[str, Columns]
    words: Sequence[str]
    faults: Mapping[int, str]  # why messages are refused; their rows mean nothing

    def word(self, place: int) -> str:
        return self.words[place] if place >= 0 else ""


def join_tables(pieces: Sequence[Pieces], of: Sequence[int], horizons_ns: Sequence[int]) -> JoinedTables:
    """of, horizons_ns: of each message, its number and its batch's horizon."""
    known: dict[str, int] = {}
    first, indices = [], list[int]()
    for own in pieces:
        first.append(len(indices))
        indices += [known.setdefault(word, len(known)) for word in own.words]
    words = np.array(first, np.int64), np.array([len(own.words) for own in pieces], np.uint64)
    faults: dict[int, str] = {}
    tables = {}
    for at, format_ in enumerate(TABLES):
        there = [number for number, own in enumerate(pieces) if own.tables[at].shape[1]]
        if not there:
            tables[format_.name] = format_.empty()
            continue
        parts = [pieces[number].tables[at] for number in there]
        stored = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        piece = np.repeat(np.array(there, np.int64), [part.shape[1] for part in parts])
        tables[format_.name] = _read(
            format_, stored, piece, np.array(of, np.int32), words, np.array(indices, np.int64), faults
        )
        _check_times(format_, tables[format_.name], np.array(horizons_ns, np.int64)[piece], faults)
    return JoinedTables(tables, list(known), faults)


def _read(
    format_: Format,
    stored: _Stored,
    piece: _Numbers,
    of: npt.NDArray[np.int32],
    words: tuple[_Numbers, npt.NDArray[np.uint64]],
    indices: _Numbers,
    faults: dict[int, str],
) -> Columns:
    """piece: of each row, which of the messages it is of; words: of each of these, the first in `indices`, and how
    many."""
    (first, count), batch = words, of[piece]
    over = stored > format_.span
    for column in format_.words:
        over[column] |= stored[column] > count[piece]
    if over.any():
        stored = np.where(over, np.uint64(0), stored)
        _blame(format_, over, batch, faults)
    columns: dict[str, npt.NDArray[np.integer]] = {"batch": batch}
    columns |= dict(zip(format_.columns, (stored + format_.least).view(np.int64), strict=True))
    for name, limits in format_.columns.items():
        if limits.is_word:
            place, found = columns[name], np.full(len(batch), -1)
            there = np.flatnonzero(place >= 0)
            found[there] = indices[first[piece[there]] + place[there]]
            columns[name] = found
    return Columns(columns)


def _blame(format_: Format, over: npt.NDArray[np.bool_], batch: npt.NDArray[np.int32], faults: dict[int, str]) -> None:
    """Which column of which message is out of its range."""
    for column, (name, limits) in enumerate(format_.columns.items()):
        for index in np.unique(batch[over[column]]).tolist():
            most = "the words there are" if limits.is_word else f"{limits.least} to {limits.most}"
            faults.setdefault(index, f"{format_.name}.{name} is out of its range, {most}")


def check_limits(format_: Format, values: Matrix, of: Sequence[int], faults: dict[int, str]) -> None:
    """Say of rows that are no table on the wire which are out of their ranges. of: of each row, its message."""
    over = format_.stored(values) > format_.span
    if over.any():
        _blame(format_, over, np.array(of, np.int32), faults)


def faults_of(name: str, rows: Table, horizon_ns: int) -> dict[int, str]:
    """Why rows of a table of netmon.evidence would be refused, and their batch with them; by their indices."""
    format_ = next(one for one in TABLES if one.name == name)
    faults: dict[int, str] = {}
    check_limits(format_, matrix(rows), range(len(rows)), faults)
    columns = {column: rows[column] for column in format_.columns}
    own = Columns({"batch": np.arange(len(rows), dtype=np.int32), **columns})
    _check_times(format_, own, np.full(len(rows), horizon_ns), faults)
    return faults


def _check_times(format_: Format, table: Columns, horizon_ns: _Numbers, faults: dict[int, str]) -> None:
    batch = table["batch"]
    if "start_ns" in format_.columns:
        for index in np.unique(batch[(table["end_ns"] < table["start_ns"]) & (table["end_ns"] != 0)]).tolist():
            faults.setdefault(index, f"{format_.name} has a time that ends before it begins")
    if format_.latest:
        for index in np.unique(batch[table[format_.latest] > horizon_ns + FURTHEST_NS]).tolist():
            faults.setdefault(index, f"{format_.name}.{format_.latest} is long after the batch's horizon")


def claimed(message: netmon_pb2.Tables) -> dict[str, int]:
    """Rows of each table, before anything is checked: no more than a message may have."""
    rows = zip(TABLES, message.rows, strict=False)
    return {format_.name: min(count, format_.most_rows) for format_, count in rows}


@lru_cache(4096)
def read_name(text: str, label: str) -> str:
    """A name that a stranger has given, printable. Raises WireError where it is too long."""
    if len(text) > MAX_NAME:
        raise WireError(f"{label} has {len(text)} characters, more than {MAX_NAME}")
    return text if text.isprintable() else printable(text, 4 * MAX_NAME)


# --- Records of which a message has few → rows of the tables

_NO_TRAINING = Training()


def rows_of(
    words: Words,
    flows: Sequence[Flow] = (),
    training: Training = _NO_TRAINING,
    ledger: Sequence[LedgerSample] = (),
    exchanges: Sequence[ClockExchange] = (),
    nic: Sequence[NicSample] = (),
) -> dict[str, Matrix]:
    """Tables by their names; words: what they name gets its indices. Raises WireError where a number is no int64."""
    place = words.place
    counters = [
        (number, place(sample.device), place(sample.source), sample.time_ns, place(name), value)
        for number, sample in enumerate(nic)
        for name, value in zip(sample.names, sample.values, strict=True)
    ]
    return {
        **_table(FLOWS, [_flow_row(flow, words) for flow in flows]),
        **_table(RANKS, [_rank_row(rank, words) for rank in training.ranks]),
        **_matrix(ITERATIONS, training.iterations),
        **_matrix(SCORES, training.scores),
        **_table(LEDGER, list(map(_of_ledger, ledger))),
        **_table(EXCHANGES, list(map(_of_exchange, exchanges))),
        **_table(NIC, counters),
    }


_of_ledger = attrgetter(*LEDGER.columns)
_of_exchange = attrgetter(*EXCHANGES.columns)


def _flow_row(flow: Flow, words: Words) -> tuple[int, ...]:
    place, owner = words.place, flow.owner
    return (
        *(flow.flow_id, flow.interface, flow.direction, place(flow.src), place(flow.dst)),
        *(flow.src_port, flow.dst_port, flow.protocol, flow.first_ns),
        *(owner.pid, place(owner.process), place(owner.container), place(owner.job), owner.rank),
        *(place(owner.source), place(owner.user), flow.members, flow.prefix_bits),
    )


def _rank_row(state: RankState, words: Words) -> tuple[int, ...]:
    return (
        *(state.rank_id, words.place(state.job), state.rank, state.size, state.pid, state.joined_ns, state.left_ns),
        *(state.trust, state.hooked, state.understanding, state.set_ups, state.parameters, state.gradient_bytes),
        *(state.parameters_source, words.place(state.job_name)),
    )


def _matrix(format_: Format, table: Table) -> dict[str, Matrix]:
    return {format_.name: matrix(table)} if len(table) else {}


def _table(format_: Format, rows: Sequence[tuple[int, ...]]) -> dict[str, Matrix]:
    if not rows:
        return {}
    try:
        return {format_.name: np.array(rows, np.int64)}
    except OverflowError as error:
        raise WireError(f"cannot send {format_.name}: {error}") from None


# --- rows → records

_UNOWNED = Owner()
_DIRECTIONS = {int(direction): direction for direction in Direction}


def _rows(table: Columns) -> Iterable[tuple[int, ...]]:
    return zip(*(table[name].tolist() for name in table.names), strict=True)


def read_flows(joined: JoinedTables) -> tuple[list[tuple[int, Flow]], dict[int, str]]:
    """Each with its message's number; and why messages are refused: they name what is no address."""
    found, faults, word = list[tuple[int, Flow]](), dict[int, str](), joined.word
    for batch, flow_id, interface, direction, src, dst, *row in _rows(joined.tables[FLOWS.name]):
        *ports, first_ns, pid, process, container, job, rank, source, user, members, prefix_bits = row
        ends = word(src), word(dst)
        if ports[2] != PROTOCOL_NON_IP and not all(map(_is_address, ends)):
            faults.setdefault(batch, f"flow {flow_id} has {ends[0][:64]!r} and {ends[1][:64]!r} for addresses")
            continue
        names = word(process), word(container), word(job)
        owner = Owner(pid, *names, rank, word(source), word(user)) if pid or max(job, source) >= 0 else _UNOWNED
        at = flow_id, interface, _DIRECTIONS[direction], *ends
        found.append((batch, Flow(*at, ports[0], ports[1], ports[2], first_ns, owner, members, prefix_bits)))
    return found, faults


@lru_cache(maxsize=4096)
def _is_address(text: str) -> bool:
    try:
        return len(text) <= 64 and ipaddress.ip_address(text) is not None
    except ValueError:
        return False


def read_ranks(table: Columns, words: Sequence[str]) -> list[RankState]:
    """Of a table of RANKS; words: as JoinedTables has them."""
    found = []
    for _, rank_id, job, rank, size, pid, joined_ns, left_ns, trust, hooked, understanding, *row in _rows(table):
        set_ups, parameters, gradient_bytes, source, name = row
        whose = rank_id, _word(words, job), rank, size, pid, joined_ns, left_ns
        about = set_ups, parameters, gradient_bytes, source, _word(words, name)
        found.append(RankState(*whose, trust, bool(hooked), understanding, *about))
    return found


def read_training(ranks: Columns, iterations: Columns, scores: Columns, words: Sequence[str]) -> Training:
    """Of one message."""
    return Training(tuple(read_ranks(ranks, words)), table_of(iterations, ITERATION), table_of(scores, SCORE))


def table_of(columns: Columns, dtype: np.dtype[np.void]) -> Table:
    """Columns that are a dtype's as a structured table."""
    table = np.zeros(len(columns), dtype)
    for name in dtype.names or ():
        table[name] = columns[name]
    return table


def _word(words: Sequence[str], place: int) -> str:
    return words[place] if place >= 0 else ""


def read_exchanges(joined: JoinedTables) -> list[tuple[int, ClockExchange]]:
    """Each with its message's number."""
    return [(batch, ClockExchange(*times)) for batch, *times in _rows(joined.tables[EXCHANGES.name])]


def read_ledger(table: Columns) -> list[LedgerSample]:
    """The samples of a table of LEDGER."""
    return [LedgerSample(link, _DIRECTIONS[direction], *rest) for _, link, direction, *rest in _rows(table)]


def read_nic(joined: JoinedTables) -> list[tuple[int, NicSample]]:
    """Each with its message's number."""
    found, word = list[tuple[int, NicSample]](), joined.word
    for _, rows in groupby(_rows(joined.tables[NIC.name]), itemgetter(0, 1)):
        own = list(rows)
        batch, _, device, source, time_ns, _, _ = own[0]
        names, values = tuple(word(row[5]) for row in own), tuple(row[6] for row in own)
        found.append((batch, NicSample(word(device), word(source), time_ns, names, values)))
    return found
