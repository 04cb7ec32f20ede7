# SPDX-License-Identifier: Apache-2.0
"""Going through data frames."""

from collections.abc import Iterator
from typing import Any

import pandas as pd


def plain_words(table: pd.DataFrame) -> pd.DataFrame:
    """Words of dictionaries as they are: each file numbers them in its own way."""
    return table.astype({name: object for name in table if isinstance(table[name].dtype, pd.CategoricalDtype)})


def records(table: pd.DataFrame) -> list[Any]:
    """The rows as named tuples."""
    return list(table.itertuples(index=False))


def groups(table: pd.DataFrame, *by: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each combination of values, in order; none of an empty table."""
    if not table.empty:
        yield from table.groupby(list(by), observed=True)
