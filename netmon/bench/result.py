# SPDX-License-Identifier: Apache-2.0
"""A benchmark's result: a dataclass, printed as tables or as one JSON document."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from rich.console import Console

from netmon.terminal import Column, FittingTable, console, labels


class Result(Protocol):
    """What measure() returns. ALSO: properties that its document adds to the fields; LEFT_OUT: fields that it lacks.

    One whose document is something else has a method of that name.
    """

    def shown(self) -> Iterable[FittingTable | str]:
        """Tables, and lines between them."""


def document(value: Any) -> Any:
    """Of a result or a part of one, for JSON, which has no NaN: null."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if hasattr(value, "document"):
        return value.document()
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.name not in getattr(value, "LEFT_OUT", ())]
        return {name: document(getattr(value, name)) for name in (*names, *getattr(value, "ALSO", ()))}
    if isinstance(value, Mapping):
        return {name: document(item) for name, item in value.items()}
    return [document(item) for item in value] if isinstance(value, list | tuple) else value


def print_result(result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document(result)))
        return
    show(result, console())


def show(result: Result, out: Console) -> None:
    """Lines are as long as they are."""
    for part in result.shown():
        out.print(part, soft_wrap=isinstance(part, str), markup=False)


def table(
    title: str, columns: Iterable[Column], rows: Iterable[Iterable[str]], caption: str = "", headings: bool = True
) -> FittingTable:
    """A row without cells ends a section."""
    made = FittingTable(columns, title, caption, headings)
    for row in rows:
        if cells := tuple(row):
            made.add_row(*cells)
        else:
            made.add_section()
    return made


def figures_table(title: str, rows: Iterable[Iterable[str]], caption: str = "") -> FittingTable:
    """A row per figure: its name and its value."""
    columns = [*labels("", prose=True), Column("", right=True, prose=True)]
    return table(title, columns, rows, caption, headings=False)


def or_dash(value: float | None, form: str) -> str:
    """The value in this form; a dash where it is not known."""
    return "–" if value is None or math.isnan(value) else form.format(value)
