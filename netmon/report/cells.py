# SPDX-License-Identifier: Apache-2.0
"""Sums by an integer key, summed piece by piece."""

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]
_PENDING = 1 << 22  # keys that wait to be merged


def sum_by(key: Ints, *amounts: Ints) -> tuple[Ints, list[Ints]]:
    """The distinct keys, ascending, and the sum of each amount per key; exact below 2^53."""
    codes, distinct = pd.factorize(key)
    order = np.argsort(distinct)
    sums = [np.bincount(codes, weights=amount, minlength=len(distinct))[order].astype(np.int64) for amount in amounts]
    return np.asarray(distinct)[order].astype(np.int64), sums


class Cells:
    """Sums by key, of which only the non-empty ones take memory."""

    def __init__(self, amounts: int) -> None:
        self._empty = np.empty(0, np.int64)
        self._merged: tuple[Ints, list[Ints]] = (self._empty, [self._empty] * amounts)
        self._waiting: list[tuple[Ints, list[Ints]]] = []
        self._rows = 0

    def add(self, key: Ints, *amounts: Ints) -> None:
        """Add rows; arrays of one length."""
        self._waiting.append(sum_by(key, *amounts))
        self._rows += len(self._waiting[-1][0])
        if self._rows > max(_PENDING, len(self._merged[0])):
            self.sums()

    def sums(self) -> tuple[Ints, list[Ints]]:
        """The distinct keys, ascending, and the sums."""
        if self._waiting:
            pieces = [self._merged, *self._waiting]
            columns = zip(*(piece[1] for piece in pieces), strict=True)
            self._merged = sum_by(
                np.concatenate([piece[0] for piece in pieces]), *(np.concatenate(column) for column in columns)
            )
            self._waiting, self._rows = [], 0
        return self._merged


class Codes:
    """Numbers for the distinct values of arrays, in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._code: dict[int, int] = {}

    def encode(self, values: Ints) -> Ints:
        """The number of each value, same shape."""
        codes, distinct = pd.factorize(values)
        return np.array([self._number(int(value)) for value in distinct], np.int64)[codes]

    def _number(self, value: int) -> int:
        code = self._code.get(value)
        if code is None:
            code = self._code[value] = len(self.values)
            self.values.append(value)
        return code
