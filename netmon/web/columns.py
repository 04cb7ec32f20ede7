# SPDX-License-Identifier: Apache-2.0
"""Columns for a browser: one binary message that it reads as typed arrays, without a copy.

uint32 length of the head | the head, JSON | columns, each at a multiple of 8 bytes. The head's `columns` says of each
its type, its offset and its length in items; all are little-endian.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNED = 8
_TYPES = {"<f4": "f32", "<f8": "f64", "|u1": "u8", "<u2": "u16", "<u4": "u32", "<i4": "i32"}


def encode(head: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The message. Raises ValueError for a type that browsers have no array of."""
    arrays = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    offset, indices = 0, {}
    for name, array in arrays.items():
        if array.dtype.str not in _TYPES:
            raise ValueError(f"column {name} is of {array.dtype.str}, which no typed array holds")
        indices[name] = [_TYPES[array.dtype.str], offset, array.size]
        offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
    text = json.dumps({**head, "columns": indices}, allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % _ALIGNED)
    parts = [len(text).to_bytes(4, "little"), text]
    for array in arrays.values():
        parts += [array.tobytes(), b"\0" * (-array.nbytes % _ALIGNED)]
    return b"".join(parts)
