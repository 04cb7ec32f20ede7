# SPDX-License-Identifier: Apache-2.0
"""The result of one probe."""

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How a probe ended."""

    OK = "ok"
    NOTE = "note"  # worth knowing; nothing to be done
    LIMITED = "limited"  # netmon runs, but shows less or less exactly
    UNKNOWN = "unknown"  # could not be tried
    MISSING = "missing"  # the agent cannot run without it


@dataclass(frozen=True)
class Check:
    """One thing that was probed. advice is empty where nothing needs to be done."""

    name: str
    status: Status
    detail: str
    advice: str = ""
