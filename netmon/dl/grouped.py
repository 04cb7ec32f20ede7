# SPDX-License-Identifier: Apache-2.0
"""Ascending values of many groups, searched and summed together."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from netmon.records import Table

Numbers = npt.NDArray[np.int64]
_Key = TypeVar("_Key", bound=np.integer)

_MOST = 2**62
_CLOSE = 64  # × as many slots as there are keys


def starts(*keys: npt.NDArray[np.generic]) -> npt.NDArray[np.intp]:
    """Indices of the first row of each run in which all keys stay equal; keys: sorted together, of one length."""
    if not len(keys[0]):
        return np.empty(0, np.intp)
    change = np.ones(len(keys[0]), np.bool_)
    np.not_equal(keys[0][1:], keys[0][:-1], out=change[1:])
    for key in keys[1:]:
        change[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(change)


def distinct(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Each of these numbers once, ascending. They are small and not negative: neither sorted nor hashed."""
    present = np.zeros(int(numbers.max(initial=-1)) + 1, np.bool_)
    present[numbers] = True
    return np.flatnonzero(present)


def numbered(keys: npt.NDArray[_Key]) -> tuple[npt.NDArray[_Key], Numbers]:
    """(the distinct keys, ascending; which one each key is), as np.unique with return_inverse gives them, without
    sorting where the keys lie close together."""
    if not len(keys):
        return keys, np.empty(0, np.int64)
    first = keys.min()
    width = int(keys.max()) - int(first) + 1
    if width == 1:
        return keys[:1], np.zeros(len(keys), np.int64)
    if width > _CLOSE * len(keys):
        distinct_keys, of_key = np.unique(keys, return_inverse=True)
        return distinct_keys, of_key.astype(np.int64, copy=False)
    place = (keys - first).astype(np.int64, copy=False)
    present = distinct(place)
    number = np.empty(width, np.int32)  # what is not written is not read
    number[present] = np.arange(len(present), dtype=np.int32)
    return present.astype(keys.dtype) + first, number.take(place).astype(np.int64)


def latest_of(value: Numbers, first: npt.NDArray[np.intp]) -> Numbers:
    """The largest value of each run; first: where the runs begin."""
    found: Numbers = np.maximum.reduceat(value, first) if len(first) else np.empty(0, np.int64)
    return found


def edges(group: Numbers, groups: int) -> npt.NDArray[np.intp]:
    """Where each of the groups 0…groups−1 begins in ascending `group`, and the end: (groups + 1,)."""
    return np.searchsorted(group, np.arange(groups + 1))


def ascending(*keys: npt.NDArray[np.integer]) -> bool:
    """Whether rows are in order of the keys, the first one first."""
    tie = np.ones(max(0, len(keys[0]) - 1), np.bool_)
    for key in keys:
        if (tie & (key[1:] < key[:-1])).any():
            return False
        tie &= key[1:] == key[:-1]
    return True


def order_by(*keys: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """The stable order of rows by the keys, the first one first. In one pass where they fit 62 bits together."""
    if not len(keys[0]):
        return np.empty(0, np.intp)
    lows = [int(key.min()) for key in keys]
    spans = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    size = 1
    for span in spans:
        size *= span
    if size >= _MOST:
        return np.lexsort(keys[::-1])
    packed = np.zeros(len(keys[0]), np.int64)
    for key, low, span in zip(keys, lows, spans, strict=True):
        if span > 1:
            packed *= span
            packed += (key - key.dtype.type(low)).astype(np.int64)
    return _order(packed, size)


def _order(packed: Numbers, size: int) -> npt.NDArray[np.intp]:
    """The stable order of numbers 0…size−1."""
    if (packed[1:] >= packed[:-1]).all():
        return np.arange(len(packed))
    bits = len(packed).bit_length()
    if size << bits >= _MOST:
        return np.argsort(packed, kind="stable")
    packed <<= bits  # with its place behind it, each number is another one: the fastest sort will do
    packed |= np.arange(len(packed))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


SAME_NS = 1_000_000_000
"""So close together are the versions of one iteration: hosts' clocks are known better and better, and move it a little.
A job that began anew counts from 0 again, later.
"""


def last_versions(rows: Table, moment: str, *by: str) -> Table:
    """Of each iteration the last row, in the order of `by`, columns that distinguish iterations of one time.

    moment: the column of that time.
    """
    ordered = rows[np.lexsort((np.arange(len(rows)), *(rows[name] for name in reversed(by))))]
    again = np.zeros(len(rows), np.bool_)
    again[:-1] = np.abs(np.diff(ordered[moment])) < SAME_NS
    for name in by:
        again[:-1] &= np.diff(ordered[name]) == 0
    return ordered[~again]


class GroupedValues:
    """Values of groups 0…n−1, ascending by group and value."""

    def __init__(self, group: Numbers, value: Numbers, groups: int) -> None:
        """group, value: (values,); groups: n."""
        self._group, self._value = group, value
        first = starts(group)
        self._base = np.zeros(groups, np.int64)
        self._base[group[first]] = value[first]
        self._span = int((value - self._base[group]).max(initial=0)) + 1
        self._packed = groups * (self._span + 2) < _MOST
        if self._packed:
            self._keys = group * (self._span + 2) + (value - self._base[group]) + 1

    def positions(self, group: Numbers, value: Numbers, side: str = "right") -> npt.NDArray[np.intp]:
        """Where the values would be inserted in their groups, as np.searchsorted says it, counted over all groups."""
        group = group.astype(np.int64, copy=False)
        if self._packed:
            near = np.clip(value - self._base[group], -1, self._span)
            return np.searchsorted(self._keys, group * (self._span + 2) + near + 1, side=side)  # type: ignore[call-overload, no-any-return]
        found = np.empty(len(group), np.intp)
        for one in np.unique(group).tolist():
            own = group == one
            begin, end = np.searchsorted(self._group, (one, one + 1))
            found[own] = begin + np.searchsorted(self._value[begin:end], value[own], side=side)  # type: ignore[call-overload]
        return found


_Column = npt.NDArray[np.int64]


def sums_by_two(major: _Column, minor: _Column, values: _Column) -> tuple[_Column, _Column, _Column]:
    """Major key, minor key and sum of every pair that occurs, ordered by major, then minor; rows in any order."""
    order = order_by(major, minor)
    major, minor, values = major[order], minor[order], values[order]
    if not len(major):
        return major, minor, values
    first = starts(major, minor)
    return major[first], minor[first], np.add.reduceat(values, first)


def joined(tables: Sequence[Table]) -> Table:
    """Tables of one dtype, one after the other; at least one. np.concatenate compares and copies column by column.

    Of such a table, `take` and `compress` copy whole rows, too; an index in brackets takes fifty times as long.
    """
    dtype = tables[0].dtype
    row = np.dtype((np.void, dtype.itemsize))
    whole: Table = np.concatenate([np.ascontiguousarray(table).view(row) for table in tables]).view(dtype)
    return whole
