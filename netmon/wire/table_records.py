# SPDX-License-Identifier: Apache-2.0
"""Records of which a message has few, as rows of the tables that travel, and back."""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter

import numpy as np

from netmon.columnar import Columns
from netmon.errors import WireError
from netmon.records import (
    ITERATION,
    PROTOCOL_NON_IP,
    SCORE,
    ClockExchange,
    Direction,
    Flow,
    LedgerSample,
    NicSample,
    Owner,
    RankState,
    Table,
    Training,
)
from netmon.wire.tables import (
    EXCHANGES,
    FLOWS,
    ITERATIONS,
    LEDGER,
    NIC,
    RANKS,
    SCORES,
    Format,
    JoinedTables,
    Matrix,
    Words,
    matrix,
)

# --- records → rows

_NO_TRAINING = Training()


def rows_of(
    words: Words,
    flows: Sequence[Flow] = (),
    training: Training = _NO_TRAINING,
    ledger: Sequence[LedgerSample] = (),
    exchanges: Sequence[ClockExchange] = (),
    nic: Sequence[NicSample] = (),
) -> dict[str, Matrix]:
    """Tables by their names; words: what they name gets its places. Raises WireError where a number is no int64."""
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
