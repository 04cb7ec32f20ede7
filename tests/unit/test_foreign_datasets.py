# SPDX-License-Identifier: Apache-2.0
"""A dataset that somebody else has made: it is read, or refused in a line, and does nothing to terminal or machine."""

import csv
import os
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_rows import BEGIN_NS, table

from collector.dataset.files import partition
from netmon.cli import main
from netmon.commands import why
from netmon.dl.past_frames import column_width
from netmon.errors import DataError
from netmon.history.dataset import open_table, stream, without_formulas
from netmon.marks import harmless
from netmon.terminal import Column, FittingTable, console
from netmon.views import Verdict

EVIL = "a\x1b]0;pwned\x07\r\x9b2J\u202eb"
SECOND_NS = 1_000_000_000
WORDS = {"host": "h0", "session": "s1", "job": "train"}


def iterations(number: int = 12, **columns: object) -> pa.Table:
    starts = [BEGIN_NS + place * SECOND_NS for place in range(number)]
    given = {"iteration": list(range(number)), "start_ns": starts, "end_ns": [ns + SECOND_NS // 2 for ns in starts]}
    return table("iterations", number, **{**given, "size": 1, **WORDS, **columns})


def stored(directory, name: str, rows: pa.Table):
    folder = directory / name / partition(BEGIN_NS // (3600 * SECOND_NS))
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / "part-x.parquet")
    return folder / "part-x.parquet"


def run(*words: object, gigabytes: int = 4) -> tuple[int, str]:
    """Status and stderr of a command that may have so much memory, and a minute or two."""
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, 2 * ({gigabytes << 30},))\n"
    program = f"{limit}from netmon.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


def test_only_what_is_shown_stays():
    assert harmless("é 漢 “x” \u00a0×") == "é 漢 “x” \u00a0×"
    assert harmless(EVIL) == "a�]0;pwned���2J�b"


def test_names_do_nothing_to_a_terminal(tmp_path, capsys):
    why._print([Verdict(EVIL, 3, BEGIN_NS, BEGIN_NS + SECOND_NS, SECOND_NS, SECOND_NS // 2, SECOND_NS // 2)])
    shown = FittingTable([Column("job")], title=EVIL)
    shown.add_row(EVIL)
    console().print(shown)
    stored(tmp_path, "iterations", iterations(job=EVIL))
    assert main(["why", "other", "--data", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.count("pwned") == 3
    assert "pwned" in err
    assert all(character.isprintable() or character == "\n" for character in out + err)


def test_no_text_of_a_csv_is_a_formula(tmp_path):
    formula = '=HYPERLINK("http://x")'
    stored(tmp_path, "iterations", iterations(job=formula, job_name="plain", exposed_ns=-5))
    assert main(["export", "--data", str(tmp_path), "--out", str(tmp_path / "a.csv")]) == 0
    with (tmp_path / "a.csv").open() as file:
        row = next(csv.DictReader(file))
    assert (row["job"], row["job_name"], row["exposed_ns"]) == (f"'{formula}", "plain", "-5")
    cells = without_formulas(pd.DataFrame({"text": ["@x", "-1+1", "\ty", "-", "ok"], "number": [-1, -2, 3, 4, 5]}))
    assert cells["text"].tolist() == ["'@x", "'-1+1", "'\ty", "-", "ok"]
    assert cells["number"].tolist() == [-1, -2, 3, 4, 5]


COMMANDS = {
    "why": ["why", "--data", "DIR"],
    "export": ["export", "--data", "DIR", "--out", "DIR/a.csv"],
    "report": ["report", "DIR", "--out", "DIR/report"],
    "top": ["top", "--data", "DIR", "--once"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fifo_hangs_nobody(tmp_path, command):
    folder = stored(tmp_path, "iterations", iterations()).parent
    os.mkfifo(folder / "part-y.parquet")
    status, error = run(*(word.replace("DIR", str(tmp_path)) for word in COMMANDS[command]))
    assert "Traceback" not in error
    if command in ("why", "export"):
        assert (status, error) == (1, f"netmon: cannot read {folder}/part-y.parquet: it is no regular file\n")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (iterations().drop_columns(["end_ns"]), "it has no column end_ns"),
        (pa.table({"x": [1]}), "it has no column job"),
        (iterations().set_column(6, "start_ns", pa.array(["soon"] * 12)), "column start_ns has the type string, not"),
    ],
)
def test_another_schema_is_named(tmp_path, rows, reason):
    path = stored(tmp_path, "iterations", rows)
    with pytest.raises(DataError, match=f"cannot read {path}: .*{reason}"):
        open_table(tmp_path, "iterations")


@pytest.mark.parametrize("column", ["start_ns", "end_ns", "comm_start_ns", "iteration", "rank", "size"])
def test_extreme_numbers_are_refused(tmp_path, column):
    most = (1 << iterations().schema.field(column).type.bit_width - 1) - 1
    path = stored(tmp_path, "iterations", iterations(**{column: [-most - 1, most] * 6}))
    with pytest.raises(DataError, match=f"cannot read {path}: {column} is -{most + 1} in one of its rows"):
        list(stream(open_table(tmp_path, "iterations")))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", ["schema", "numbers"])
def test_every_command_says_so_in_a_line(tmp_path, command, what):
    rows = iterations().drop_columns(["end_ns"]) if what == "schema" else iterations(end_ns=[(1 << 63) - 1] * 12)
    stored(tmp_path, "iterations", rows)
    status, error = run(*(word.replace("DIR", str(tmp_path)) for word in COMMANDS[command]))
    assert (status, error.count("\n")) == (1, 1)


def test_columns_of_a_frame_are_bounded_however_long_it_is():
    width = column_width(0, 1 << 62, 8, 1000)
    assert (1 << 62) / width * 8 < 10_000_000
