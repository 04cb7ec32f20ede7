# SPDX-License-Identifier: Apache-2.0
"""Going through data frames."""

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

FORMULA = r"[=+\-@\t\r]."
"""What a text begins with that a spreadsheet would run; an apostrophe before it makes it a text (OWASP)."""


def plain_words(table: pd.DataFrame) -> pd.DataFrame:
    """Words of dictionaries as they are: each file numbers them in its own way."""
    return table.astype({name: object for name in table if isinstance(table[name].dtype, pd.CategoricalDtype)})


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """For a CSV: no text of it is a formula; numbers stay as they are."""

    def harmless(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and re.match(FORMULA, cell, re.DOTALL) else cell

    words = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    return plain_words(table).assign(**{str(name): table[name].astype(object).map(harmless) for name in words})


def records(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples(index=False))


def groups(table: pd.DataFrame, *by: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each combination of values, in order; none of an empty table."""
    if not table.empty:
        yield from table.groupby(list(by), observed=True)
