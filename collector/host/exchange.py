# SPDX-License-Identifier: Apache-2.0
"""How the host stage talks to the job stage within a tick: it tells what is new, and goes on with the answer."""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TypeVar

from collector.host.session import Session
from collector.host.tables import Tables
from collector.messages import flow_id_of, session_of
from collector.tick_messages import TickAnswer, TickNews

_T = TypeVar("_T")

Talk = Generator[TickNews, TickAnswer, _T]
"""Work that tells the job stage what it has to, and goes on when it is sent the answer."""

Fail = Callable[[int, Exception], None]
"""Something has failed at the session at a place."""


def exchange(tables: Tables, sessions: Mapping[int, Session], fail: Fail) -> Talk[None]:
    """Tell all that is new, if anything is, and take over what is answered; sessions: by index."""
    log, flows = tables.rank_log, tables.flows
    over, ends = flows.ends.take(flows.flows, flows.state)
    if not (log or len(over) or ends):
        return
    answer = yield TickNews(**log.take(), flows_over=over, flows=ends)
    log.apply_answer(answer.counts, answer.lost)
    for serial, name in answer.names:
        if serial in log.ranks:
            ranks, rank = log.ranks[serial]
            try:
                ranks.named(rank, name)
                sessions[ranks.session].window.rename()
            except Exception as error:
                fail(ranks.session, error)
    for serial, shift in answer.moved:
        if serial in log.ranks:
            ranks, rank = log.ranks[serial]
            ranks.renumbered(rank, shift)
    for flow, job, number in answer.peers:
        session = sessions.get(session_of(flow))
        if session:
            session.set_peer(flow_id_of(flow), job, number)


def query_names(
    tables: Tables, sessions: Mapping[int, Session], fail: Fail, session_indices: Iterable[int]
) -> Talk[None]:
    """The same when those ranks of some sessions that have no name have asked for it."""
    for session_index in sorted(session_indices):
        ranks = sessions[session_index].window.ranks
        try:
            if ranks.unnamed:
                ranks.request_names()
        except Exception as error:
            fail(session_index, error)
    yield from exchange(tables, sessions, fail)


def end_ranks(
    tables: Tables, sessions: Mapping[int, Session], fail: Fail, session_indices: Iterable[int]
) -> Talk[None]:
    """No marks will come of some sessions any more: their ranks have names now or never, and end."""
    ranks = [sessions[session_index].window.ranks for session_index in session_indices]
    for own in ranks:
        own.request_last_names()
    yield from exchange(tables, sessions, fail)
    for own in ranks:
        own.end_of_stream()


def find_peer_flows(
    tables: Tables, sessions: Mapping[int, Session], fail: Fail, session_indices: Iterable[int]
) -> None:
    """Flows of some sessions that are a job's by their other end; the other end may be described before or after."""
    horizon_ns = tables.sessions.table["horizon_ns"]
    for session_index in session_indices:
        session = sessions[session_index]
        if session.serves:
            try:
                session.find_peer_flows(int(horizon_ns[session_index]))
            except Exception as error:
                fail(session_index, error)
