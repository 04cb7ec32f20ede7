# SPDX-License-Identifier: Apache-2.0
"""Every table that a command prints, compared with the files in frames/: nothing is cut, at any width.

NETMON_WRITE_FRAMES=1 writes them anew; look at the difference before you commit it.
"""

import ast
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from printed_examples import every_table
from rich.cells import cell_len
from rich.console import Console
from test_doctor import NIC, VETH

from netmon.kernel.interfaces import Interfaces
from netmon.terminal import BREAK, ENDLESS, FittingTable, console, figures, labels

ROOT = Path(__file__).parents[2]
FRAMES = Path(__file__).parent / "frames"
WIDTHS = (80, 120, 200)
RESULT = ROOT / "netmon/bench/result.py"
MAKE = {"FittingTable", "terminal.FittingTable", "table", "figures_table"}
LAPTOP = Interfaces((replace(NIC, name="enp4s0f0np0", rdma=("mlx5_0",)), VETH), ())


def drawn(width: int) -> str:
    out = Console(width=width, highlight=False, color_system=None)
    with out.capture() as capture:
        for command, tables in every_table(LAPTOP).items():
            out.print(f"$ netmon {command}")
            for table in tables:
                out.print(table)
                out.print()
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def test_every_table_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_by, made = set(), FittingTable.__init__

    def noting(self: FittingTable, *args: object, **more: object) -> None:
        caller = sys._getframe(1)
        while Path(caller.f_code.co_filename).resolve() == RESULT:  # which makes tables of rows for the benchmarks
            caller = caller.f_back
        drawn_by.add((Path(caller.f_code.co_filename).resolve(), caller.f_code.co_name))
        made(self, *args, **more)

    monkeypatch.setattr(FittingTable, "__init__", noting)
    for tables in every_table(LAPTOP).values():
        list(tables)
    written = {
        (path, function.name)
        for path in {*(ROOT / "netmon").rglob("*.py")} - {RESULT}
        if "FittingTable" in (text := path.read_text())
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        if any(isinstance(call, ast.Call) and ast.unparse(call.func) in MAKE for call in ast.walk(function))
    }
    assert len(written) > 20
    assert written - drawn_by == set()


def words(text: str) -> list[str]:
    return sorted(re.findall(r"[^\s·─]+", text))


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_fit(width: int) -> None:
    text = drawn(width)
    path = FRAMES / f"tables-{width}.txt"
    if os.environ.get("NETMON_WRITE_FRAMES") == "1":
        path.write_text(text)
    assert text == path.read_text()
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= width


def test_nothing_is_left_out_where_there_is_less_room() -> None:
    everything = set(words(drawn(ENDLESS)))
    for width in WIDTHS:
        gone = everything - set(words(drawn(width)))
        assert gone <= {"certificate", "varied", "effect"}  # headings of labels, and one of figures that are not there
    gone = everything - set(words(drawn(40)))
    assert [word for word in gone if any(map(str.isdigit, word))] == []


def table(prose: str) -> FittingTable:
    one = FittingTable([*labels("name"), *figures("bytes sent"), *labels("what", prose=True)], "a title")
    one.add_row("[bold]first[/]", f"12{BREAK}345", prose)
    one.add_section()
    one.add_row("", "6", "")
    return one


def text_of(one: FittingTable, width: int) -> list[str]:
    out = Console(width=width, highlight=False, color_system=None)
    with out.capture() as capture:
        out.print(one)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_row_is_a_line_where_there_is_room_and_no_markup_is_read() -> None:
    lines = text_of(table("short"), 80)
    assert lines[0] == "a title"
    assert lines[1].split() == ["name", "bytes", "sent", "what"]
    assert lines[3] == "[bold]first[/]      12 345  short"


def test_headings_and_prose_take_more_lines_before_anything_else() -> None:
    lines = text_of(table("some words that are long enough to be broken"), 50)
    assert lines[1].split() == ["bytes"]
    assert lines[2].split() == ["name", "sent", "what"]
    assert lines[4].startswith("[bold]first[/]     12  some words that are")


def test_rows_stand_below_their_label_where_nothing_else_fits() -> None:
    below = ["  bytes sent 12 345", "  what some words", "  bytes sent 6"]
    assert text_of(table("some words"), 24) == ["a title", "[bold]first[/]", *below]
    assert all(len(line) <= 8 for line in text_of(table("somewordsthataretoolong"), 8))


def test_the_number_of_cells_is_checked() -> None:
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        table("").add_row("a", "b")


def test_what_is_no_terminal_has_no_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "word " * 100
    console().print(table(long))
    assert long.strip() in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    console().print(table(long))
    assert max(map(len, capsys.readouterr().out.splitlines())) == 60
