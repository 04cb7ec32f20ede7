# SPDX-License-Identifier: Apache-2.0
"""Rows that stay where they are while one reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from netmon.views import FlowView

HOLD_NS = 2_000_000_000
"""How long a flow keeps its row after it has left the top."""


class FlowKey(NamedTuple):
    """What makes a flow the same flow in two snapshots."""

    host: str
    interface: str
    direction: int
    src: str
    src_port: int
    dst: str
    dst_port: int
    protocol: int


@dataclass
class _Row:
    view: FlowView
    seen_ns: int


@dataclass
class Places:
    """Remembers which flow stands in which row."""

    _rows: list[_Row] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all places: the reader asked for another order."""
        self._rows.clear()

    def place(self, flows: Sequence[FlowView], rows: int, now_ns: int) -> tuple[FlowView, ...]:
        """The `rows` flows to show, given all of them in the wanted order.

        A flow stays in its row while it is among the first `rows`, and for HOLD_NS after; a row that became free
        goes to the first flow that has none. A flow that is shown but is no longer known has rate nan.
        """
        known = {flow_key(view): view for view in flows}
        top = dict(list(known.items())[:rows])
        kept: list[_Row | None] = [_renewed(row, known, top, now_ns) for row in self._rows[:rows]]
        kept += [None] * (rows - len(kept))
        placed = {flow_key(row.view) for row in kept if row}
        newcomers = iter([view for key, view in top.items() if key not in placed])
        filled = (row or _new_row(next(newcomers, None), now_ns) for row in kept)
        self._rows = [row for row in filled if row]
        return tuple(row.view for row in self._rows)


def flow_key(view: FlowView) -> FlowKey:
    """The 5-tuple on its link."""
    flow = view.flow
    source = f"{flow.src}/{flow.prefix_bits}" if flow.members else flow.src  # a /8 may begin as a /24 of its does
    end = (source, flow.src_port, flow.dst, flow.dst_port, flow.protocol)
    return FlowKey(view.host, view.interface, flow.direction, *end)


def _renewed(row: _Row, known: dict[FlowKey, FlowView], top: dict[FlowKey, FlowView], now_ns: int) -> _Row | None:
    key = flow_key(row.view)
    if key in top:
        return _Row(top[key], now_ns)
    if now_ns - row.seen_ns >= HOLD_NS:
        return None
    return _Row(known.get(key) or replace(row.view, wire_bps=float("nan")), row.seen_ns)


def _new_row(view: FlowView | None, now_ns: int) -> _Row | None:
    return _Row(view, now_ns) if view else None
