# SPDX-License-Identifier: Apache-2.0
"""Rows that stay where they are while one reads them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from netmon.top.rows import Kind

HOLD_NS = 2_000_000_000
"""How long a row keeps its place after it has left the top."""


@dataclass
class _Row:
    view: Any
    seen_ns: int


class Places:
    """Remembers which view stands in which row of a table."""

    def __init__(self, kind: Kind) -> None:
        """No row is taken."""
        self._kind = kind
        self._rows: list[_Row] = []

    def clear(self) -> None:
        """Forget all places: the reader asked for another order."""
        self._rows.clear()

    def place(self, views: Sequence[Any], rows: int, now_ns: int) -> list[Any]:
        """All views to show, given in the wanted order, of which `rows` fit on the screen.

        A view stays in its row while it is among the first `rows`, and for HOLD_NS after; a row that became free goes
        to the first view that has none. What is below the screen stands in the wanted order. A view that is shown but
        is not known any more is what the kind makes of it.
        """
        key = self._kind.key
        known = {key(view): view for view in views}
        top = dict(list(known.items())[:rows])
        kept: list[_Row | None] = [self._renewed(row, known, top, now_ns) for row in self._rows[:rows]]
        kept += [None] * (rows - len(kept))
        placed = {key(row.view) for row in kept if row}
        newcomers = iter([view for name, view in top.items() if name not in placed])
        filled = [row or _new_row(next(newcomers, None), now_ns) for row in kept]
        self._rows = [row for row in filled if row]
        shown = {key(row.view) for row in self._rows}
        return [row.view for row in self._rows] + [view for name, view in known.items() if name not in shown]

    def _renewed(self, row: _Row, known: dict[Hashable, Any], top: dict[Hashable, Any], now_ns: int) -> _Row | None:
        name = self._kind.key(row.view)
        if name in top:
            return _Row(top[name], now_ns)
        if now_ns - row.seen_ns >= HOLD_NS:
            return None
        return _Row(known[name] if name in known else self._kind.gone(row.view), row.seen_ns)


def _new_row(view: Any, now_ns: int) -> _Row | None:
    return None if view is None else _Row(view, now_ns)
