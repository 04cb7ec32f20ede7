# SPDX-License-Identifier: Apache-2.0
"""`netmon.open`: tables, explanations and figures of a dataset, and of a live collector."""

import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pandas as pd
import pytest
from collector_thread import collecting
from sent_agent import Sent
from test_store import store_small
from waiting import wait_for

import netmon
from netmon.analysis import Live
from netmon.errors import DataError, UsageError
from netmon.history.dataset import Window, open_rows
from netmon.wire.watch import UnreachableError

RECORDED = Path(__file__).parents[1] / "data/verdict"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("open") / "data"
    store_small(directory)
    return directory


@pytest.fixture
def data(path):
    return netmon.open(path)


def test_nothing_heavy_is_imported_before_it_is_asked_for():
    script = "import sys, netmon; print([m for m in ('pandas', 'pyarrow', 'grpc', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_moments_have_a_time_zone_and_durations_are_ns(data, path):
    rows = data.iterations()
    stored = pd.read_parquet(path / "iterations").sort_values("start_ns")
    assert rows["start"].astype("int64").tolist() == stored["start_ns"].tolist()
    assert str(rows["start"].dt.tz) == str(rows["end"].dt.tz) == "UTC"
    assert rows["duration_ns"].tolist() == (stored["end_ns"] - stored["start_ns"]).tolist()
    assert data.jobs == ["train"]
    assert "train" in repr(data)


def test_selections(data):
    rows = data.iterations(job="train", iterations=(2, 4))
    assert sorted(set(rows["iteration"])) == [2, 3]
    assert data.iterations(iterations=range(2, 4)).equals(rows)
    begin = rows["start"].min()
    for since in (begin, begin.isoformat(), begin.to_pydatetime() + timedelta(0), int(begin.value)):
        assert data.buckets(since=since, until=rows["end"].max(), host="h0")["bucket_start"].min() >= begin.floor("us")
    with pytest.raises(DataError, match=r"no host nobody in .*: it has h0"):
        data.iterations(host=["nobody"])
    with pytest.raises(DataError, match=r"no job other in .*: it has train"):
        data.iterations(job="other")
    assert data.iterations(since=datetime(2031, 1, 1, tzinfo=timezone.utc)).empty
    with pytest.raises(UsageError, match="cannot read"):
        data.iterations(iterations=range(0, 9, 3))
    with pytest.raises(UsageError, match="as a time"):
        data.buckets(since="yesterday")


def test_only_the_files_of_that_time_are_looked_at(path, tmp_path):
    source = next((path / "buckets").glob("date=*/hour=08"))
    for hour in ("07", "08", "09"):
        shutil.copytree(source, tmp_path / "buckets" / source.parent.name / f"hour={hour}")
    begin = netmon.open(path).buckets()["bucket_start"].min()
    window = Window(int(begin.value), int(begin.value) + 1_000_000_000)
    assert {Path(name).parent.name for name in open_rows(tmp_path, "buckets", window)[0].files} == {"hour=08"}


def test_buckets_are_added_up(data):
    fine, coarse = data.buckets(), data.buckets(width="100ms")
    assert coarse["wire_bytes"].sum() == fine["wire_bytes"].sum()
    assert len(coarse) < len(fine)
    assert set(coarse["bucket_ns"]) == {100_000_000}
    assert coarse["bucket_start"].is_monotonic_increasing
    by_flow = data.buckets(width="1s", by=("session", "flow_id"))
    named = by_flow.merge(data.flows(), on=["session", "flow_id"])
    assert named["wire_bytes"].sum() == fine["wire_bytes"].sum()
    with pytest.raises(UsageError, match="give a larger width"):
        data.buckets(width="1us")
    with pytest.raises(DataError, match="no host nobody"):
        data.buckets(host="nobody", width="1s")


def test_more_than_fits_is_refused(data, monkeypatch):
    monkeypatch.setattr(type(data), "MOST_ROWS", 10)
    with pytest.raises(DataError, match="add buckets up with width="):
        data.buckets()


def test_other_tables(data):
    ledger = data.table("ledger", columns=["host", "end_ns", "coverage"])
    assert list(ledger) == ["host", "end", "coverage"]
    with pytest.raises(DataError, match="there are buckets"):
        data.table("nothing")
    with pytest.raises(DataError, match="it has host"):
        data.table("ledger", columns=["colour"])


@pytest.mark.parametrize("where", ["nowhere", "/no/such/folder", "host:port"])
def test_what_is_not_there(where):
    with pytest.raises(DataError, match="no such folder"):
        netmon.open(where)


def test_a_folder_without_a_dataset_is_none(tmp_path):
    with pytest.raises(DataError, match="there is no dataset in it"):
        netmon.open(tmp_path)


def test_what_there_is_and_who_slowed_whom():
    data = netmon.open(RECORDED)
    found = data.incidents()
    assert found["steps"].sum() == len(data.verdicts())
    worst = found.loc[found["lost_ns"].idxmax()]
    assert worst["line"] in repr(data)
    assert "hosts: h0, h1, h2" in repr(data)
    assert f"and {len(found) - 5} more" in repr(data)
    assert data._repr_html_().startswith("<pre>&lt;netmon dataset")
    own = data.incidents(job=worst["job"])
    assert set(own["job"]) == {worst["job"]}
    summary = data.summary().set_index("job")
    assert summary.loc[worst["job"], "lost_ns"] == own["lost_ns"].sum()
    assert summary.loc[worst["job"], "worst"] == worst["line"]


def test_a_dataset_in_which_nothing_was_slow(data):
    assert data.incidents().empty
    assert {"since", "until", "line"} <= set(data.incidents())
    assert "no incidents" in repr(data)
    assert data.summary()["slow_steps"].tolist() == [0]


def test_an_iteration_is_explained_and_drawn():
    data = netmon.open(RECORDED)
    verdicts = data.verdicts(job="ddp-5")
    worst = verdicts.iloc[verdicts["excess_ns"].argmax()]
    explained = data.explain(int(worst["iteration"]), job="ddp-5")
    assert explained.sentence == worst["sentence"]
    assert explained.arithmetic[0] in str(explained)
    assert len(explained.ranks) == 2
    assert "<table" in explained._repr_html_()
    figure = data.plot_iteration(int(worst["iteration"]), job="ddp-5")
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == [worst["sentence"], "enters h0"]
    parts = {bars.get_label(): sum(bar.get_width() for bar in bars) for bars in figure.axes[0].containers}
    assert sum(parts.values()) == pytest.approx(explained.ranks["duration_ns"].sum() / 1e6)
    assert parts["held up"] == pytest.approx(explained.ranks["stalled_ns"].sum() / 1e6)
    assert data.plot_iterations(job="ddp-5").get_ylabel() == "iteration time (ms)"
    assert data.plot_rates("h0", since=worst["start"], until=worst["end"], width="1ms").get_ylabel() == "Mbit/s"
    later = data.verdicts(job="ddp-5", since=worst["end"] + timedelta(seconds=1))
    assert int(worst["iteration"]) not in set(later["iteration"])
    with pytest.raises(DataError, match="no such iteration"):
        data.plot_iteration(10**6)
    with pytest.raises(DataError, match=r"jobs .* have one; give job="):
        data.explain(40)


def test_the_reports_exhibits_one_by_one(data):
    contents = data.exhibits()
    assert "thesis, equation 3.1" in set(contents["follows"])
    assert all(map(len, data.exhibit("durations").values()))
    assert data.plot_exhibit("durations").axes
    with pytest.raises(DataError, match="no exhibit colour"):
        data.exhibit("colour")


def test_a_live_collector(tmp_path):
    address = f"unix:{tmp_path}/collector.sock"
    sent = Sent(tmp_path / "spool", address)
    sent.append(30)
    with collecting(address, tmp_path / "data"):
        sent.start()
        wait_for(lambda: sent.spool.acknowledged > 0)
        live = netmon.open(address)
        assert isinstance(live, Live)
        wait_for(lambda: not live.iterations().empty)
        assert live.jobs == ["train"]
        rows = live.iterations(job="train")
        assert rows[["rank", "host"]].values.tolist() == [[0, "h0"]]
        assert live.durations()["duration_ns"].min() > 0
        assert set(live.links()["direction"]) == {"rx", "tx"}
        assert live.flows().empty or set(live.flows()["host"]) == {"h0"}
        assert live.verdicts().empty
        assert "sentence" in live.verdicts()
        assert live.incidents().empty
        assert "no incidents" in repr(live)
        assert live.summary()["job"].tolist() == ["train"]
        with pytest.raises(DataError, match=r"no host h9 at .*: it has h0"):
            live.buckets(since=5, until=6, host="h9")
        with pytest.raises(DataError, match="knows no such job"):
            live.iterations(job="other")
        with pytest.raises(DataError, match="open its dataset"):
            live.explain(3)
        with pytest.raises(UsageError, match="without a window"):
            live.buckets(since=5, until=5)
        sent.finish()
    with pytest.raises(UnreachableError, match="cannot reach the collector"):
        netmon.open(address)
