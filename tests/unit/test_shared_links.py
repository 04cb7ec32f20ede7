# SPDX-License-Identifier: Apache-2.0
"""Two jobs and cross traffic on one host, from batches to the dataset: whose bytes met whom."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from collector_stream import MS, Host, as_told, flows, mark, rows
from test_store import Collector, read

from collector.dataset import files
from netmon.errors import DataError
from netmon.records import Class, Direction, Flow, Moment, Owner, Source

OTHER_TX, CONTROL_TX, BACKUP_RX = 10, 11, 12


def more_flows():
    other = Owner(20, "python", "", "bert", 0, "socket")
    own = Owner(10, "python", "", "train", 0, "socket")
    backup = Owner(30, "rsync", "backup.service", source="socket")

    def flow(number, direction, owner):
        return Flow(number, 7, direction, "198.18.0.1", "198.18.0.9", 1000 + number, 2000, 6, 0, owner)

    return (
        flow(OTHER_TX, Direction.TX, other),
        flow(CONTROL_TX, Direction.TX, own),
        flow(BACKUP_RX, Direction.RX, backup),
    )


def batches(count):
    """As Host, and: another job sends 50 kB per ms from 1 s on, a backup enters from 2 s on, control all the time."""
    host, made = Host(), []
    for number in range(count):
        batch, first = host.batch(), 100 * number
        extra = [(CONTROL_TX, time_ms, 30) for time_ms in range(first, first + 100, 10)]
        if number >= 10:
            extra += [(OTHER_TX, time_ms, 50_000) for time_ms in range(first, first + 100)]
        if number >= 20:
            extra += [(BACKUP_RX, time_ms, 40_000) for time_ms in range(first, first + 100)]
        marks = [*batch.marks]
        if number == 10:
            marks.append(mark(Moment.JOIN, 0, first, job="bert", pid=20))
        if number >= 10 and number % 5 == 0:
            marks += [mark(m, number // 5 - 2, first + t, job="bert", pid=20) for m, t in ((Moment.STEP_START, 0),)]
        if number >= 10 and number % 5 == 4:
            marks.append(mark(Moment.STEP_END, number // 5 - 2, first + 99, job="bert", pid=20))
        made.append(
            replace(
                batch,
                buckets=np.concatenate([batch.buckets, rows(*extra)]),
                flows=(*flows(), *more_flows()) if number == 0 else (),
                marks=marks,
                ledger=(),
            )
        )
    return as_told(made)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared") / "data"
    views = []

    async def scenario():
        collector = Collector(directory)
        entry = await collector.feed(batches(30))
        views.append(collector.registry.snapshot(10))
        await collector.end(entry)

    asyncio.run(scenario())
    return directory, views[0]


def test_another_jobs_gradients_are_cross_traffic_by_its_name(stored):
    iterations = read(stored[0], "iterations")
    train = iterations[iterations["job"] == "train"].set_index("iteration").sort_index()
    assert train["cross_top"].tolist()[:4] == [""] * 4
    assert train.loc[5, "cross_top"] == "job bert"
    assert train.loc[5, ["cross_tx_bytes", "other_job_tx_bytes", "cross_top_tx_bytes"]].tolist() == [240 * 50_000] * 3
    assert train.loc[5, ["cross_rx_bytes", "other_job_rx_bytes"]].tolist() == [0, 0]
    assert train.loc[9, ["cross_tx_bytes", "cross_rx_bytes"]].tolist() == [240 * 50_000, 240 * 40_000]
    assert train.loc[9, ["other_job_tx_bytes", "other_job_rx_bytes"]].tolist() == [240 * 50_000, 0]
    assert train["node_shared"].tolist() == [False] * 4 + [True] * 8
    bert = iterations[iterations["job"] == "bert"].set_index("iteration").sort_index()
    assert bert["cross_top"].tolist() == ["job train", "job train", "rsync (backup.service)", "rsync (backup.service)"]
    assert bert.loc[3, "cross_top_rx_bytes"] == 499 * 40_000
    assert (bert["dl_tx_bytes"] == 499 * 50_000).all()


def test_rows_are_shared_as_their_own_job_sees_it(stored):
    buckets = read(stored[0], "buckets")
    sent = buckets[buckets["direction"] == "tx"].groupby(["flow_id", "class"], observed=True)["payload_bytes"].sum()
    assert sent.loc[1].to_dict() == {"DL-only": 1_000_000, "DL-shared": 2_000_000}
    # The other job's 1 kB per ms is under 1 % of the link: its gradients stay DL-only.
    assert sent.loc[OTHER_TX].to_dict() == {"DL-only": 100_000_000}


def test_control_traffic_is_told_from_gradients(stored):
    told = read(stored[0], "flows").set_index("flow_id")["traffic"].to_dict()
    assert {k: told[k] for k in (1, 2, 3, OTHER_TX, CONTROL_TX)} == {
        1: "gradient",
        2: "gradient",
        3: "",
        OTHER_TX: "gradient",
        CONTROL_TX: "control",
    }
    iterations = read(stored[0], "iterations")
    late = iterations[(iterations["job"] == "train") & (iterations["iteration"] > 4)]
    assert (late["dl_control_tx_bytes"] == 24 * 30).all()
    assert (late["dl_tx_bytes"] == 240_000 + 24 * 30).all()


def test_viewers_see_the_same(stored):
    snapshot = stored[1]
    assert [job.job for job in snapshot.jobs] == ["bert", "train"]
    seen = {view.flow.flow_id: (view.class_, view.traffic) for view in snapshot.flows}
    assert seen[OTHER_TX] == (Class.DL_ONLY, "gradient")
    assert seen[1] == (Class.DL_SHARED, "gradient")
    assert seen[BACKUP_RX] == (Class.CROSS, "")
    (rank,) = snapshot.jobs[1].ranks
    assert rank.node_shared
    assert rank.exposed_ns == -1


def test_exposed_communication_is_stored_where_it_is_known(tmp_path):
    made = batches(10)
    made[1] = replace(made[1], marks=[*made[1].marks, mark(Moment.FIRST_WAIT, 0, 180)])
    made = as_told(made)

    async def scenario():
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(made))

    asyncio.run(scenario())
    iterations = read(tmp_path, "iterations").sort_values("iteration")
    assert iterations["exposed_ns"].isna().tolist() == [False, True, True, True]
    assert iterations["exposed_ns"].iloc[0] == 50 * MS
    assert iterations["wait_start_ns"].iloc[0] - iterations["start_ns"].iloc[0] == 180 * MS


def test_a_dataset_of_another_schema_is_not_continued(tmp_path, monkeypatch):
    async def scenario():
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(batches(15)))

    with monkeypatch.context() as patched:
        patched.setitem(files._METADATA, b"netmon.schema_version", b"2")
        asyncio.run(scenario())
    with pytest.raises(DataError, match=r"its buckets have schema version 2, this netmon writes 1; choose"):
        Collector(tmp_path)


def test_a_second_process_with_the_jobs_name_is_kept_apart(tmp_path):
    """Its flows, rows and iterations are those of train#2."""
    made = batches(10)
    twin = Owner(40, "python", "", "train", 0, "socket")
    described = replace(made[0].flows[-1], flow_id=50, owner=twin, direction=Direction.TX)
    joined = mark(Moment.JOIN, 0, 0, pid=40)
    made[0] = replace(made[0], flows=[*made[0].flows, described], marks=[*made[0].marks, joined])
    for number in range(1, 10):
        first = 100 * number
        table = np.concatenate([made[number].buckets, rows(*((50, first + ms, 100) for ms in range(100)))])
        own = [mark(Moment.STEP_START, number, first, pid=40), mark(Moment.STEP_END, number, first + 90, pid=40)]
        made[number] = replace(made[number], buckets=table, marks=[*made[number].marks, *own])
    made = as_told(made)

    async def scenario():
        collector = Collector(tmp_path)
        entry = await collector.feed(made)
        assert any("it is taken for another job, 'train#2'" in line for line in collector.registry.snapshot(5).warnings)
        await collector.end(entry)

    asyncio.run(scenario())
    iterations = read(tmp_path, "iterations")
    assert iterations.groupby("job", observed=True).size().to_dict() == {"train": 4, "train#2": 9}
    assert set(iterations.loc[iterations["job"] == "train#2", "dl_tx_bytes"]) == {9000}
    assert set(iterations["source"].astype(str)) == {Source.HOOK.name.lower()}
    sent = read(tmp_path, "buckets").groupby(["flow_id", "job"], observed=True).size()
    assert sent.loc[50].to_dict() == {"train#2": 900}


def test_cross_traffic_meets_the_job_that_trains_then(tmp_path):
    """One job after another on the host; between them, and once both have left, it meets nobody."""
    host, made = Host(cross_from_ms=0, iteration_ms=200), []
    for number in range(40):
        batch = host.batch()
        job, pid = ("first", 10) if number < 20 else ("second", 11)
        renamed = [replace(m, job=job, pid=pid) for m in batch.marks if number % 20 < 10]
        if number % 20 == 0:
            renamed.insert(0, mark(Moment.JOIN, 0, 100 * number, job=job, pid=pid))
        if number % 20 == 10:
            renamed.append(mark(Moment.LEAVE, 0, 100 * number, job=job, pid=pid))
        made.append(replace(batch, marks=renamed))
    made = as_told(made)

    async def scenario():
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(made))

    asyncio.run(scenario())
    rows_ = read(tmp_path, "buckets")
    cross = rows_[rows_["class"] == "cross"]
    second = ((cross["bucket_start_ns"] - rows_["bucket_start_ns"].min()) // (1000 * MS)).astype(int)
    met = cross.groupby([second, "job"], observed=True).size()
    assert met.to_dict() == {(0, "first"): 1000, (1, ""): 1000, (2, "second"): 1000, (3, ""): 1000}
    assert set(cross.loc[cross["job"] == "", "iteration"]) == {-1}
    assert set(cross.loc[cross["job"] == "second", "iteration"]) == {-1, *range(10, 15)}
