# SPDX-License-Identifier: Apache-2.0
"""Loops over rows in C, where an installation could build them; each has a twin in numpy next to its caller."""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

compiled: ModuleType | None
"""The functions of compiled.c; None: there was no compiler, or no Python headers, where netmon was installed."""
try:
    compiled = import_module("netmon.native.compiled")
except ImportError:
    compiled = None


def loops_over_rows(counted: Iterable[str]) -> ModuleType | None:
    """The functions for rows that count this; None: compiled.c does not know them so, and the twins serve."""
    return compiled if set(counted) == {"packets", "wire_bytes", "payload_bytes"} else None
