# SPDX-License-Identifier: Apache-2.0
"""What a chapter of the report is made of: tables and a figure that is drawn from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from netmon.report.study import Study

Frames = Mapping[str, pd.DataFrame]


class GapError(Exception):
    """An exhibit cannot be shown; its text says why. It never leaves this room."""


@dataclass(frozen=True)
class Exhibit:
    """tables: tidy frames by name, or a GapError. draw: onto a matplotlib figure, the frames as keyword arguments."""

    name: str  # of its files
    title: str
    follows: str  # the figure or equation it repeats
    text: str  # what is shown and how it is defined
    tables: Callable[["Study"], Frames]
    draw: Callable[..., None] | None = None
    rows: int = 12  # of the first table that the page shows where there is no figure


@dataclass(frozen=True)
class Chapter:
    """A heading and what stands under it."""

    title: str
    exhibits: tuple[Exhibit, ...]


def need(table: pd.DataFrame, reason: str) -> pd.DataFrame:
    """The table, where it has rows. Raises GapError with the reason where it has none."""
    if table.empty:
        raise GapError(reason)
    return table
