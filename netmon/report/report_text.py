# SPDX-License-Identifier: Apache-2.0
"""Texts as numbers, and the numbers of a row's link, class and job as one."""

import numpy as np
import pyarrow as pa

from netmon.records import CLASS_NAMES
from netmon.report.bursts import Ints

_JOB_BITS, _CLASS_BITS, _DIRECTION_BITS, _INTERFACE_BITS = 20, 4, 3, 14
_CLASS = _JOB_BITS
_DIRECTION = _CLASS + _CLASS_BITS
_INTERFACE = _DIRECTION + _DIRECTION_BITS
_HOST = _INTERFACE + _INTERFACE_BITS
WITHOUT_JOB = -1 << _JOB_BITS
"""Mask of a packed number that leaves its link and class."""
ANY_CLASS = (1 << _CLASS_BITS) - 1 << _CLASS
"""Bits that all are set in a packed number that stands for a link whatever the class."""


class Words:
    """Numbers for texts, in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def number(self, text: str) -> int:
        """Its number, a new one for a new text."""
        if text not in self.values:
            self.values.append(text)
        return self.values.index(text)

    def encode(self, column: pa.Array) -> Ints:
        """The number of each row's text; a null is the empty text."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        own = np.array([self.number(text or "") for text in coded.dictionary.to_pylist()] + [-1], np.int64)
        if coded.null_count:
            own[-1] = self.number("")
        numbers: Ints = np.take(own, coded.indices.fill_null(-1).to_numpy(zero_copy_only=False))
        return numbers


def packed(words: dict[str, Ints]) -> Ints:
    """host, interface, direction, class and job of each row in one number."""
    link = words["host"] << _HOST | words["interface"] << _INTERFACE | words["direction"] << _DIRECTION
    return link | words["class"] << _CLASS | words["job"]


def unpacked(value: int, words: dict[str, Words]) -> dict[str, str]:
    """host, interface, direction and class of a packed number."""
    fields = {
        "host": value >> _HOST,
        "interface": value >> _INTERFACE & (1 << _INTERFACE_BITS) - 1,
        "direction": value >> _DIRECTION & (1 << _DIRECTION_BITS) - 1,
    }
    found = {name: words[name].values[number] for name, number in fields.items()}
    return {**found, "class": CLASS_NAMES[value >> _CLASS & (1 << _CLASS_BITS) - 1]}


def job_of(value: int, words: dict[str, Words]) -> str:
    """The job of a packed number."""
    return words["job"].values[value & (1 << _JOB_BITS) - 1]
