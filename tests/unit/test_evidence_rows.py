# SPDX-License-Identifier: Apache-2.0
"""What agents tell of connections and of their hosts' part, from the batch to the dataset."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from collector_stream import CROSS_RX, DL_RX, DL_TX, MS, UTC, Host, evidence, hello
from decoded import gather
from test_store import Collector, batches, read

from collector.dataset.manifest import Resume
from collector.host.stage import HostStage
from collector.host.tables import Lately
from collector.jobs.rank_registry import RankRegistry
from collector.settings import Settings
from netmon.agent.evidence import SoundRows
from netmon.evidence import EVIDENCE, TRANSPORT
from netmon.records import Columns, Direction


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    async def scenario() -> None:
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(batches(20)))

    asyncio.run(scenario())
    return tmp_path


def test_a_connection_is_told_with_its_link_in_utc_and_what_is_unknown_is_null(stored: Path) -> None:
    rows = read(stored, "transport").sort_values("start_ns")
    assert (rows["start_ns"] - UTC).tolist() == [0, 500 * MS, 1000 * MS, 1500 * MS]
    assert (rows["end_ns"] - rows["start_ns"] == 500 * MS).all()
    for name, value in (("host", "h0"), ("session", "s1"), ("interface", "eth0"), ("direction", "tx")):
        assert (rows[name] == value).all()
    numbers = {"flow_id": DL_TX, "reverse_flow_id": DL_RX, "sent_bytes": 500_000, "retransmitted_bytes": 5_000}
    for name, value in (numbers | {"rtt_ns": 90_000, "rtt_min_ns": 40_000, "application_limited": True}).items():
        assert (rows[name] == value).all()
    for name in ("ecn_marked_packets", "busy_ns", "congestion_window_bytes", "delivery_bps", "out_of_order_packets"):
        assert rows[name].isna().all()


def test_the_host_has_a_row_and_each_rank_has_one(stored: Path) -> None:
    rows = read(stored, "host").sort_values(["start_ns", "rank"])
    host, rank = rows[rows["rank"] < 0], rows[rows["rank"] >= 0]
    assert len(host) == len(rank) == 4
    assert (host["job"] == "").all()
    assert (host["pid"] == 0).all()
    assert (host["softnet_dropped"] == 3).all()
    assert (host["cpu_pressure_ns"] == 2 * MS).all()
    assert host["run_delay_ns"].isna().all()
    assert (rank["job"] == "train").all()
    assert (rank["pid"] == 10).all()
    assert (rank["run_delay_ns"] == 7 * MS).all()
    assert (rank["throttled_ns"] == 0).all()
    assert rank["missed_packets"].isna().all()


def test_rows_join_the_flows_and_the_iterations(stored: Path) -> None:
    flows, rows = read(stored, "flows"), read(stored, "transport")
    joined = rows.merge(flows, on=["host", "session", "flow_id"], suffixes=("", "_of_flow"))
    assert len(joined) == len(rows)
    assert (joined["job"] == "train").all()
    assert (joined["direction"] == joined["direction_of_flow"]).all()
    iterations = read(stored, "iterations")
    one = iterations.iloc[1]
    beside = rows[(rows["start_ns"] < one["end_ns"]) & (rows["end_ns"] > one["start_ns"])]
    assert len(beside) >= 1


class Stage:
    """A host stage with one session that has described its flows."""

    def __init__(self) -> None:
        self.stage = HostStage(Settings(), RankRegistry().answer)
        self.place = self.stage.open(hello(), Resume())
        self.source = Host()
        self.take(self.source.batch())

    def take(self, batch) -> object:
        return self.stage.take([self.place], gather([batch]))

    @property
    def rows(self) -> list:
        taken = self.stage.tables.evidence.unstored["transport"].take()
        return [*np.concatenate([np.zeros(0, np.int64), *(piece["flow_id"] for piece in taken)])]


def a_row(flow_id: int, **known: int) -> np.ndarray:
    return evidence(TRANSPORT, {"flow_id": flow_id, "start_ns": MS, "end_ns": 2 * MS, **known})


def test_a_flow_that_nobody_knows_is_refused_by_its_number_and_nothing_of_its_batch_is_kept() -> None:
    stage = Stage()
    batch = stage.source.batch()
    object.__setattr__(batch, "evidence", {"transport": np.concatenate([a_row(DL_TX), a_row(99)])})
    settled = stage.take(batch)
    sequence, reason = settled.refused[stage.place]
    assert sequence == 2
    assert "99" in reason
    assert stage.rows == []


def test_the_latest_is_known_of_both_ways_and_not_of_who_has_the_index_next() -> None:
    stage = Stage()
    batch = stage.source.batch()
    told = a_row(DL_TX, reverse_flow_id=DL_RX, rtt_ns=5, rtt_min_ns=3, sent_bytes=100, retransmitted_bytes=7)
    object.__setattr__(batch, "evidence", {"transport": told})
    stage.take(batch)
    tables = stage.stage.tables
    places = np.array([stage.place] * 3)
    tx, rx, cross = tables.flows.keys.find(places, np.array([DL_TX, DL_RX, CROSS_RX])).tolist()
    assert tables.evidence.latest_tcp(tx, Direction.TX) == (5, 3, 0.07)
    rtt_ns, _, loss = tables.evidence.latest_tcp(rx, Direction.RX)  # what comes in is sent again elsewhere
    assert (rtt_ns, math.isnan(loss)) == (5, True)
    assert all(map(math.isnan, tables.evidence.latest_tcp(cross, Direction.RX)))
    assert all(map(math.isnan, tables.evidence.latest_tcp(10**6, Direction.TX)))
    tables.sessions.table["horizon_ns"][stage.place] += 4_000 * MS
    assert all(map(math.isnan, tables.evidence.latest_tcp(tx, Direction.TX)))  # too long ago
    tables.sessions.table["horizon_ns"][stage.place] -= 4_000 * MS
    tables.flows.state["flow_id"][tx] = 1234
    assert all(map(math.isnan, tables.evidence.latest_tcp(tx, Direction.TX)))


def test_the_tables_that_came_last_are_kept_and_older_ones_go() -> None:
    lately = Lately()
    assert lately.all(["n"]) is None
    for number in range(1_000):
        lately.append(Columns({"n": np.array([number]), "other": np.array([0])}))
    kept = lately.all(["n"])
    assert kept is not None
    assert kept.names == ["n"]
    assert kept["n"].tolist() == list(range(1_000 - len(kept), 1_000))
    assert 200 <= len(kept) <= 300


def test_what_could_not_be_stored_comes_back_and_a_session_that_is_gone_takes_its_rows_along() -> None:
    stage = Stage()
    tables, place = stage.stage.tables, stage.place
    unstored = tuple(tables.evidence.unstored.values())
    for flow_id in (DL_TX, DL_RX):
        batch = stage.source.batch()
        object.__setattr__(batch, "evidence", {"transport": a_row(flow_id)})
        stage.take(batch)
    assert tables.unstored_bytes > 0
    assert tables.has_unstored(place)
    taken = [rows.take() for rows in unstored]
    assert [(rows.nbytes, rows.sessions) for rows in unstored] == len(EVIDENCE) * [(0, set())]
    for rows, pieces in zip(unstored, taken, strict=True):
        rows.put_back(pieces, {place})
    assert tables.has_unstored(place)
    assert sorted(stage.rows) == [DL_TX, DL_RX]
    for rows, pieces in zip(unstored, taken, strict=True):
        rows.put_back(pieces, {place})
    stage.stage.close(place)
    assert ([(rows.nbytes, rows.sessions) for rows in unstored], stage.rows) == (len(EVIDENCE) * [(0, set())], [])


def test_the_tables_are_read_as_they_lie(stored: Path) -> None:
    rows = pd.read_parquet(stored / "transport", columns=["rtt_ns", "reverse_flow_id", "application_limited"])
    assert rows.dtypes["rtt_ns"] == "int64"
    assert len(rows) == 4


def test_a_row_that_a_collector_would_refuse_does_not_cost_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    rows = np.zeros(4, TRANSPORT)
    rows["start_ns"], rows["end_ns"] = 1 * MS, 2 * MS
    rows["rtt_ns"][0], rows["end_ns"][1], rows["end_ns"][2] = 1 << 61, MS // 2, 60_000 * MS
    rows["sent_bytes"][3] = 7
    sound = SoundRows()
    for _ in range(2):
        assert sound.of("transport", rows, 2 * MS)["sent_bytes"].tolist() == [7]
    assert [line.partition(",")[0].partition(":")[0] for line in caplog.messages] == [
        "transport has a time that ends before it begins",
        "transport.end_ns is long after the batch's horizon",
        "transport.rtt_ns is out of its range",
    ]
