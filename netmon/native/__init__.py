# SPDX-License-Identifier: Apache-2.0
"""Loops over rows in C, where an installation could build them; each has a twin in numpy next to its caller."""

from importlib import import_module
from types import ModuleType

compiled: ModuleType | None
"""The functions of compiled.c; None: there was no compiler, or no Python headers, where netmon was installed."""
try:
    compiled = import_module("netmon.native.compiled")
except ImportError:
    compiled = None

KNOWN_COUNTS = frozenset(("packets", "wire_bytes", "payload_bytes"))
"""What a row counts, as compiled.c has it: where it counts more, the twins serve."""
