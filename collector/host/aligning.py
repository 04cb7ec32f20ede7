# SPDX-License-Identifier: Apache-2.0
"""What a tick's batches tell of all hosts' clocks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from collector.host.align import SET_NS, Update, update_all
from collector.host.batches import Batches
from collector.host.session import Session
from collector.host.tables import Tables
from netmon.records import ClockExchange, ClockSample


def align_clocks(tables: Tables, sessions: Mapping[int, Session], batches: Batches, last: Mapping[int, int]) -> None:
    """Take it in; last: of each session, its last batch. Where that fails at a session, its batch fails."""
    exchanges: dict[int, list[ClockExchange]] = {}
    for batch, some in batches.exchanges.items():
        exchanges.setdefault(int(batches.place[batch]), []).extend(some)
    horizon_ns, settled_ns = (tables.places.table[name].tolist() for name in ("horizon_ns", "settled_ns"))
    clock_of: list[Any] = batches.many.heads[["mono_ns", "utc_ns", "error_ns", "utc_error_ns"]].tolist()
    disciplines, updates = batches.many.disciplines, dict[int, Update]()
    for place, batch in last.items():
        sample = ClockSample(*(*clock_of[batch], disciplines.get(batch, "")))
        try:
            known_ns = sessions[place].window.alignment.sample.offset_ns
            if abs(sample.offset_ns - known_ns) >= SET_NS:
                sessions[place].window.alignment.hear_set(*_set(batches, place, known_ns))
            update = sessions[place].window.align(
                sample, exchanges.get(place, ()), horizon_ns[place], settled_ns[place]
            )
        except Exception as error:
            batches.fail(batch, error)
        else:
            if update:
                updates[place] = update
    before = {place: update.alignment.map for place, update in updates.items()}
    try:
        jumps = dict(zip(updates, update_all(list(updates.values())), strict=True))
    except Exception:  # at one of them: each by itself
        jumps = {}
        for place, update in updates.items():
            try:
                jumps[place] = update_all([update])[0]
            except Exception as error:
                batches.fail(last[place], error)
    for place, jump_ns in jumps.items():
        sessions[place].window.aligned(before[place], jump_ns)


def _set(batches: Batches, place: int, known_ns: int) -> tuple[int, int]:
    """The first of a session's samples by which its own UTC has moved (mono), and how far."""
    clocks = batches.many.heads[batches.place == place]
    moved_ns = clocks["utc_ns"] - clocks["mono_ns"] - known_ns
    first = int(np.argmax(np.abs(moved_ns) >= SET_NS))
    return int(clocks["mono_ns"][first]), int(moved_ns[first])
