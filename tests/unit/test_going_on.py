# SPDX-License-Identifier: Apache-2.0
"""Whether an incident goes on: all that show a dataset say the same, and nothing does of one that nobody writes."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from waiting import wait_for

from collector.dataset.sink import ParquetSink
from collector.flushing import verdict_table
from netmon.cli import main
from netmon.history.judging import stored_incidents, verdicts
from netmon.history.past import DatasetPast, StoredRows
from netmon.top.incidents import of_past
from netmon.web.answers import Answers
from netmon.web.stored import Stored

RECORDED = Path(__file__).parents[1] / "data/verdict"
ENDED_NS = 1_795_339_247_262_276_769


def as_of_now(data: Path) -> None:
    """The recording, as if its last step had ended a moment ago."""
    later = time.time_ns() - ENDED_NS
    for path in RECORDED.rglob("*.parquet"):
        table = pq.read_table(path)
        for at, name in enumerate(table.schema.names):
            column = table.column(name).to_pandas()
            if name.endswith("_ns") and column.max() > 1e18:
                shifted = column.where(~(column > 1e18), column + later)
                table = table.set_column(at, name, pa.array(shifted, table.schema.field(name).type))
        to = data / path.relative_to(RECORDED)
        to.parent.mkdir(parents=True)
        pq.write_table(table, to)


def test_all_views_of_a_dataset_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    as_of_now(data)
    sink = ParquetSink(data)
    sink.write({"verdicts": verdict_table(list(verdicts(data)))}, {})
    past = DatasetPast(StoredRows(data))
    page = Stored(data)
    answers = Answers(page)

    def ongoing() -> list[set[str]]:
        assert main(["why", "--data", str(data), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["incidents"]
        jobs = past.newest().snapshot.jobs
        answers._requested_s = -1.0
        answers.jobs()
        return [
            {one.job for one in stored_incidents(data) if one.ongoing},
            {one["job"] for one in said if one["ongoing"]},
            {one.job for one in of_past(past.steps()) if one.ongoing},
            {one["job"] for one in answers.incidents(lambda one: one)["incidents"] if one["ongoing"]},
            {job.job for job in jobs for one in job.incidents if one.ongoing} or set(),
        ]

    try:
        wait_for(lambda: page.verdicts())
        *whole, newest = ongoing()
        assert whole == [{"ddp-5", "ddp-6", "ddp-7"}] * 4
        assert newest <= whole[0]  # of the job that it shows
        sink.close()
        wait_for(lambda: not page.state().live)
        assert ongoing() == [set()] * 5
    finally:
        page.close()
