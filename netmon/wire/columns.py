# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers ↔ packed little-endian bytes; one copy each way, never a loop over rows."""

from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import WireError


def pack(column: npt.NDArray[Any], dtype: str) -> bytes:
    """The column's numbers as dtype (`<u4`, `<f8`, …), row after row."""
    return np.ascontiguousarray(column, dtype).tobytes()


def unpack(data: bytes, dtype: str, rows: int, name: str) -> npt.NDArray[Any]:
    """A read-only view (rows,) of packed numbers. Raises WireError naming the column where the length is wrong."""
    expected = rows * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise WireError(f"{name} has {len(data)} bytes where {rows} rows need {expected}")
    return np.frombuffer(data, dtype)
