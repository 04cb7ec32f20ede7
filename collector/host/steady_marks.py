# SPDX-License-Identifier: Apache-2.0
"""The way of marks of steady ranks through a tick, for all hosts at once."""

from collections.abc import Mapping

import numpy as np

from collector.host.batches import Batches
from collector.host.session import Session
from collector.host.tables import Tables
from netmon.wire.limits import FURTHEST_NS


def hear_steady(tables: Tables, batches: Batches) -> None:
    """Take in marks of steady ranks; all others are handed on, by batch."""
    marks, place, heads = batches.many.marks, batches.place, batches.many.heads
    marks = marks.take(batches.good[marks.batch])
    row = tables.steady.find(marks, place)
    known = np.flatnonzero(row >= 0)
    taken = np.zeros(len(marks), np.bool_)
    if len(known):
        settled_ns = tables.places.table["settled_ns"]
        own = marks.take(known)
        latest_ns = heads["horizon_ns"][own.batch] + FURTHEST_NS
        taken[known] = tables.steady.hear(own, row[known], settled_ns[place[own.batch]], latest_ns)
        batches.steady = marks.take(taken)
        tables.accounts.payload.cut_in_order(place[batches.steady.batch], batches.steady.time_ns)
    for batch, run in marks.take(~taken).runs():
        batches.marks.setdefault(batch, []).append(run)


def tell_steady(tables: Tables, sessions: Mapping[int, Session]) -> None:
    """What the job stage is told of them."""
    log, steady = tables.rank_log, tables.steady
    log.stepped(steady.take_steps())
    log.beats(steady.check(log.young, lambda ranks: sessions[ranks.place].window.alignment.error_ns))
