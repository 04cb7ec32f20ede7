# SPDX-License-Identifier: Apache-2.0
"""Numbers for what comes and goes, so that there are never many more of them than are in use."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """A number is another value's only after it has been nobody's for a while (see let_go)."""

    def __init__(self, *first: T) -> None:
        """first: have the lowest numbers, and keep them."""
        self.values: list[T] = list(first)
        """By number; of one that nobody has, what had it last."""
        self._number = {value: number for number, value in enumerate(first)}
        self._always = frozenset(range(len(first)))
        self._free: list[int] = []
        self._used: set[int] = set()  # since let_go was called last
        self._before: set[int] = set()  # between that and the call before

    def number(self, value: T) -> int:
        """The value's number; it is in use."""
        number = self._number.get(value)
        if number is None:
            number = self._free.pop() if self._free else len(self.values)
            if number == len(self.values):
                self.values.append(value)
            self.values[number] = value
            self._number[value] = number
        self._used.add(number)
        return number

    def let_go(self, in_use: Iterable[int]) -> None:
        """Who was not in use since the call before the last one, and is not now, loses the number."""
        self._used.update(in_use)
        keep = self._used | self._before | self._always
        for value, number in list(self._number.items()):
            if number not in keep:
                del self._number[value]
                self._free.append(number)
        self._used, self._before = set(), self._used
