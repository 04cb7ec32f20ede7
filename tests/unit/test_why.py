# SPDX-License-Identifier: Apache-2.0
"""`netmon why` on stored verdicts: incidents first, few of many, in people's names."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dataset_rows import BEGIN_NS, MS, table

from collector.dataset.sink import ParquetSink
from collector.flushing import hang_table, verdict_table
from netmon.cli import main
from netmon.records import Direction
from netmon.views import Cause, Hang, Hung, Verdict

RECORDED = Path(__file__).parents[1] / "data/verdict"
APART_NS = 60_000 * MS


def slow(number: int, culprit: str, excess_ms: int = 100, cause: Cause = Cause.CROSS) -> Verdict:
    start, usual = BEGIN_NS + number * APART_NS, 200 * MS
    where = ("h0", "eth0", Direction.RX, 0)
    ends = {
        "culprit_user": "ann",
        "sender": "h9",
        "receiver": "h0",
        "counterfactual_ns": usual,
        "cross_ns": excess_ms * MS,
    }
    took = usual + excess_ms * MS
    return Verdict("id", number, start, start + took, took, usual, excess_ms * MS, cause, culprit, *where, **ends)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An hour of a job that people call train.py: thirty incidents of a step each."""
    numbers = range(60)
    starts = [BEGIN_NS + number * APART_NS for number in numbers]
    words = {"host": "h0", "session": "s0", "job": "id", "job_name": "train.py", "source": "hook"}
    times = {"start_ns": starts, "end_ns": [ns + 200 * MS for ns in starts]}
    sink = ParquetSink(tmp_path)
    sink.write({"iterations": table("iterations", 60, **words, **times, rank=0, size=1, iteration=list(numbers))}, {})
    verdicts = [slow(number, f"p{number}", 100 + number) for number in range(0, 60, 2)]
    sink.write({"verdicts": verdict_table([*verdicts[:-1], slow(58, "job id", 500, Cause.OTHER_JOB)])}, {})
    sink.close()
    return tmp_path


def test_incidents_come_first_and_few_of_many(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "train.py", "--data", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("train.py 3.5 × slower at 20")
    assert lines[0].endswith(": job train.py (ann, h9) → h0; 1 step, 500 ms lost")
    assert sum(" × slower " in line for line in lines) == 20
    assert lines[20].startswith("and 10 more, ")
    assert lines[21].startswith("what to do: ")
    assert lines[21].endswith(f"netmon advise --data {data}")
    assert lines[23] == "the 5 of 30 slow steps that lost most (--all: every one):"
    assert sum(line.startswith("iteration ") for line in lines) == 5
    assert main(["why", "--data", str(data), "--all"]) == 0
    out = capsys.readouterr().out
    assert (out.count(" × slower "), out.count("\niteration ")) == (30, 30)


def test_programs_get_them_too(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--data", str(data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["incidents"]) == len(told["verdicts"]) == 30
    assert {"job": "id", "cause": "cross", "culprit": "p2", "culprit_user": "ann"}.items() <= told["incidents"][
        1
    ].items()
    assert told["incidents"][1]["cross_ns"] == told["incidents"][1]["lost_ns"] == 102 * MS


def test_a_job_that_stood_still_comes_first(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = Hang(
        *("id", BEGIN_NS, 0, BEGIN_NS + 4_000 * MS, Hung.NOT_ENTERED, "all-reduce", 41, "", 3, "h7", "it sleeps"),
        *((3,), (0, 1, 2)),
    )
    sink = ParquetSink(data)
    sink.write({"hangs": hang_table([begun])}, {})
    sink.write({"hangs": hang_table([replace(begun, until_ns=BEGIN_NS + 9_000 * MS)])}, {})
    sink.close()
    assert main(["why", "--data", str(data)]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("train.py stood still: rank 3 on h7 has not entered all-reduce 41; 3 ranks waited from ")
    assert first.endswith("; it sleeps")
    assert "slower" in second
    assert main(["why", "--data", str(data), "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["hangs"]
    assert (told["rank"], told["what"], told["until_ns"]) == (3, "not_entered", BEGIN_NS + 9_000 * MS)


def test_a_job_that_stood_still_before_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hang = Hang(
        *("first", BEGIN_NS, 0, BEGIN_NS + 4_000 * MS, Hung.NOT_ENTERED, "all-reduce", 1, "", 3, "h7", "it sleeps"),
        *((3,), (0, 1, 2)),
    )
    sink = ParquetSink(tmp_path)
    sink.write({"hangs": hang_table([hang])}, {})
    sink.close()
    for job in ([], ["first"]):
        assert main(["why", *job, "--data", str(tmp_path)]) == 0
        assert capsys.readouterr().out.startswith("first stands still: rank 3 on h7 has not entered all-reduce 1; ")
    assert main(["why", "second", "--data", str(tmp_path)]) == 1


def test_nothing_wrong_is_said_and_another_job_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "other", "--data", str(data)]) == 1
    assert "it has jobs: id" in capsys.readouterr().err
    path = next((data / "verdicts").rglob("*.parquet"), None) or next((data / ".netmon").rglob("verdicts/**/*.parquet"))
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 0), path)
    assert main(["why", "--data", str(data)]) == 0
    assert re.fullmatch(
        r"no iteration of job train.py stands out, of \d+: usually .* ms, at most .* ms\n", capsys.readouterr().out
    )


def test_verdicts_that_are_made_now_say_who_sent_to_whom(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "ring-3", "--data", str(RECORDED), "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["incidents"]
    assert (one["culprit"], one["sender"], one["receiver"]) == ("job injected-5", "h2", "h0")


def test_groups_are_of_a_dataset_and_where_no_calls_are_told_of_that_is_said(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "--groups", "--data", str(data)]) == 0
    assert capsys.readouterr().out.startswith("no calls are reported, and traffic shows no groups")
    assert main(["why", "--groups", "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"groups": {}}
    assert main(["why", "--groups"]) != 0
    assert "give the dataset's --data" in capsys.readouterr().err
