# SPDX-License-Identifier: Apache-2.0
"""A snapshot as one JSON document: plain numbers, names instead of codes, null for what is not known."""

import dataclasses
import json
import math
from enum import IntEnum
from typing import Any

import numpy as np

from netmon.records import CLASS_NAMES, Class
from netmon.views import Snapshot


def document(snapshot: Snapshot) -> str:
    """The fields of Snapshot by name, on one line. LinkView.wire_bps is an object: class → rates, oldest first."""
    return json.dumps(plain(snapshot), allow_nan=False, ensure_ascii=False)


def plain(value: Any) -> Any:
    if type(value) in (int, str, bool):  # most of them
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {name.rstrip("_"): plain(item) for name, item in vars(value).items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Class):
        return CLASS_NAMES[value]
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, np.ndarray):
        if value.dtype.names:
            return [dict(zip(value.dtype.names, row, strict=True)) for row in value.tolist()]
        if value.ndim == 2:
            return {name: plain(column) for name, column in zip(CLASS_NAMES, value.T, strict=True)}
        return value.tolist() if np.isfinite(value).all() else [plain(item) for item in value.tolist()]
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
