# SPDX-License-Identifier: Apache-2.0
"""A table as separate columns: whoever works on one of them does not pay for the others, as in a structured array."""

from collections.abc import Iterable, Mapping
from typing import Any, overload

import numpy as np
import numpy.typing as npt

_Column = npt.NDArray[Any]


class Columns:
    """Arrays of one length, by name. A part of it shares memory with it; what is taken by an index is a copy."""

    __slots__ = ("_begin", "_columns", "_end")

    def __init__(self, columns: Mapping[str, _Column], begin: int = 0, end: int = -1) -> None:
        """Take over the arrays, at least one; begin, end: of the rows that count, −1: to the last one."""
        self._columns, self._begin = columns, begin
        self._end = end if end >= 0 else len(next(iter(columns.values())))

    @classmethod
    def zeros(cls, rows: int, dtype: "np.dtype[np.void]") -> "Columns":
        """As np.zeros of a structured dtype."""
        return cls({name: np.zeros(rows, dtype[name]) for name in dtype.names or ()})

    @property
    def names(self) -> list[str]:
        """Of the columns, in their order."""
        return list(self._columns)

    @property
    def nbytes(self) -> int:
        return len(self) * sum(column.itemsize for column in self._columns.values())

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, what: str) -> _Column: ...
    @overload
    def __getitem__(self, what: "slice | npt.NDArray[np.bool_]") -> "Columns": ...
    def __getitem__(self, what: "str | slice | npt.NDArray[np.bool_]") -> "_Column | Columns":
        """A column; or rows: a slice without steps shares memory, those where a mask is true are copied."""
        if isinstance(what, str):
            return self._columns[what][self._begin : self._end]
        if isinstance(what, slice):
            begin, end, _ = what.indices(len(self))
            return Columns(self._columns, self._begin + begin, self._begin + max(begin, end))
        return self.take(np.flatnonzero(what))

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        """Write into a column that is there."""
        self._columns[name][self._begin : self._end] = values

    def take(self, indices: npt.NDArray[np.integer]) -> "Columns":
        """Rows by their indices."""
        return Columns({name: self[name].take(indices) for name in self._columns})

    def replaced(self, **columns: _Column) -> "Columns":
        return Columns({name: self[name] for name in self._columns} | columns)


def joined(tables: Iterable[Columns]) -> Columns:
    """Tables with the same columns, at least one, one after the other; a single one is not copied."""
    tables = list(tables)
    if len(tables) == 1:
        return tables[0]
    return Columns({name: np.concatenate([table[name] for table in tables]) for name in tables[0].names})
