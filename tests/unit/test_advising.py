# SPDX-License-Identifier: Apache-2.0
"""Advice from what a collector keeps: the same as from a dataset, and what it says where little is known."""

import asyncio
import functools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from collector_thread import collecting
from waiting import wait_for

from collector.host.flows import STATE
from collector.host.rows import ARRIVED
from collector.judging.advising import Kept, sharing
from collector.judging.job_steps import STEP
from netmon.cli import main
from netmon.columnar import Columns
from netmon.dl.sharing.advice_text import called, document, sentences
from netmon.dl.timemap import TimeMap
from netmon.dl.traffic import Traffic
from netmon.errors import DataError, WireError
from netmon.wire import advice as wire
from netmon.wire.watch import UnreachableError, watch_once

MS = 1_000_000
FULL = 125_000  # bytes a millisecond of 1 Gbit/s
UTC_NS = 1_795_219_200_000_000_000
OFFSETS = (UTC_NS, UTC_NS - 7_000 * MS, UTC_NS + 3_000 * MS)  # of each host's clock
HOSTS = ("h0", "h1", "h2")
PLACES = {"a": (0, 1), "b": (0, 2)}  # of ranks 0 and 1
ALONE, TOGETHER = 8, 20


def flow_of(place: int, job: str, sends: bool) -> int:
    return 4 * place + 2 * "ab".index(job) + sends


@functools.cache
def kept(capacity: float = 1e9, error_ns: int = 1_000, jobs: str = "ab", first: int = ALONE) -> Kept:
    """a alone, then b alone (100 ms, 40 of them sending), then both at once (140 ms, 80 sending)."""
    steps, rows = {}, []
    for at, job in enumerate(jobs):
        starts = [*(1000 * at + 100 * np.arange(first)), *(2000 + 140 * np.arange(TOGETHER))]
        lasts = [100] * first + [140] * TOGETHER
        of = np.zeros(2 * len(starts), STEP)
        for number, (start, last) in enumerate(zip(starts, lasts, strict=True)):
            for rank, place in enumerate(PLACES[job]):
                base = UTC_NS - OFFSETS[place]
                row = of[2 * number + rank]
                row["number"], row["rank"], row["session"] = number, rank, place
                row["start_ns"], row["end_ns"] = base + start * MS, base + (start + last) * MS
                row["error_ns"] = 1_000
            sending = 40 if last == 100 else 80
            for moment in range(start + last - sending, start + last):
                for place, sends in ((PLACES[job][0], True), (PLACES[job][1], False)):
                    rows.append(
                        (place, flow_of(place, job, sends), UTC_NS - OFFSETS[place] + moment * MS, 40 * FULL // sending)
                    )
        steps[job] = of
    columns = Columns.zeros(len(rows), ARRIVED)
    columns["session"], columns["flow"], columns["start_ns"], columns["wire_bytes"] = np.array(rows).T
    columns["bucket_ns"] = MS
    flows = {
        name: np.full(12, -1, np.int64) for name in ("session", "link", "job", "rank", "rank_id", "traffic", "peer")
    }
    for job, places in PLACES.items():
        for rank, place in enumerate(places):
            for sends in (False, True):
                told = (
                    place,
                    2 * place + sends,
                    1 + "ab".index(job),
                    rank,
                    2 * place + "ab".index(job),
                    int(Traffic.GRADIENT),
                    1 - rank,
                )
                for name, value in zip(flows, told, strict=True):
                    flows[name][flow_of(place, job, sends)] = value
    return Kept(
        span_ns=(UTC_NS, UTC_NS + 6_000 * MS),
        parts=[columns[:500], columns[500:]],
        clocks={place: TimeMap.constant(offset) for place, offset in enumerate(OFFSETS)},
        error_ns=dict.fromkeys(range(3), error_ns),
        hosts=dict(enumerate(HOSTS)),
        steps=steps,
        links={
            2 * n + sends: (f"{host} eth0 {way}", capacity)
            for n, host in enumerate(HOSTS)
            for sends, way in enumerate(("rx", "tx"))
        },
        jobs=["", "a", "b"],
        of_flow=flows,
    )


def test_two_jobs_in_phase_are_told_the_shift() -> None:
    told = json.loads(json.dumps(document(kept().advice())))
    [share] = told["shares"]
    assert (share["job"], share["others"], share["links"]) == ("b", ["a"], ["h0 eth0 tx"])
    assert share["advised"]
    assert 40 * MS <= share["shift_ns"] <= 60 * MS
    assert share["offset_ns"] == pytest.approx(share["shift_ns"], abs=MS)
    assert share["hold_ns"] == pytest.approx(102 * MS, abs=MS)
    assert share["shared_ns"] == pytest.approx(140 * MS, rel=0.05)
    assert share["shifted_ns"] == pytest.approx(100 * MS, rel=0.05)
    assert {(pair["source"], pair["target"]) for pair in told["pairs"]} == {
        ("rank 0 (h0)", "rank 1 (h1)"),
        ("rank 0 (h0)", "rank 1 (h2)"),
    }
    assert all(pair["bytes"] == 40 * FULL for pair in told["pairs"])
    links = {one["link"]: one for one in told["links"]}
    assert set(links) == {"h0 eth0 tx", "h1 eth0 rx", "h2 eth0 rx"}
    assert links["h0 eth0 tx"]["pace_bps"] == pytest.approx(1e9, rel=0.01)  # both jobs' halves


def test_people_read_their_own_names_and_programs_what_jobs_are() -> None:
    told = json.loads(json.dumps(document(kept().advice(), {"a": "train.py@h0", "b": "b"})))
    assert told["names"] == {"a": "train.py@h0"}
    assert "beside train.py@h0 " in told["advice"][0]
    assert told["shares"][0]["others"] == ["a"]
    shown = called(told)
    assert shown["shares"][0]["others"] == ["train.py@h0"]
    assert {job["job"] for job in shown["jobs"]} == {pair["job"] for pair in shown["pairs"]} == {"train.py@h0", "b"}
    assert {key: shown[key] for key in ("advice", "links")} == {key: told[key] for key in ("advice", "links")}


def test_only_one_job_and_its_neighbours_are_told_of() -> None:
    assert {job.job for job in kept().advice(frozenset("a")).jobs} == {"a", "b"}
    assert [job.job for job in kept(jobs="a").advice().jobs] == ["a"]


def test_links_of_unknown_capacity_are_said() -> None:
    advice = kept(capacity=0.0).advice()
    assert advice.shares == ()
    assert "h0 eth0 tx, whose capacity is not known" in sentences(advice)[0]
    assert document(advice)["links"][0]["capacity_bps"] is None


def test_clocks_that_nobody_knows_are_said() -> None:
    advice = kept(error_ns=30 * MS).advice()
    assert not advice.shares[0].advised
    assert "is known only to 30.0 ms" in sentences(advice)[0]


def test_a_job_of_one_iteration_is_said() -> None:
    one = kept()
    few = {**one.steps, "b": one.steps["b"][:2]}
    advice = Kept(**{**vars(one), "steps": few}).advice()
    assert advice.unjudged == ("b",)
    assert any(line.startswith("job b: too few iterations") for line in sentences(advice))


def test_nothing_kept_is_said() -> None:
    with pytest.raises(DataError, match="no job has ended an iteration"):
        Kept(**{**vars(kept()), "parts": [], "steps": {}}).advice()


def test_what_is_said_of_shares_needs_the_jobs_that_share_only() -> None:
    assert kept().advice(frozenset("ab")).shares == kept().advice().shares
    state = np.zeros(5, STATE)
    state["session"], state["link"], state["job"] = [0, 0, 0, 1, 1], [0, 1, 1, 0, 1], [1, 1, 2, 3, 0]
    links = np.array([(0,), (2,)], [("first_link", "<i8")])
    flows = SimpleNamespace(state=state, jobs=["", "a", "b", "c"])
    tables = SimpleNamespace(flows=flows, sessions=SimpleNamespace(table=links))
    assert sharing(tables) == {"a", "b"}
    state["job"][1] = 2
    assert sharing(tables) == frozenset()


def test_a_collector_without_jobs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"unix:{tmp_path}/collector.sock"
    with collecting(address, tmp_path / "data"):

        def answers() -> bool:
            try:
                return watch_once(address, _all()).time_ns > 0
            except UnreachableError:
                return False

        wait_for(answers)
        assert main(["advise", "--collector", address]) == 1
        assert "no job has ended an iteration" in capsys.readouterr().err
        assert main(["advise", "ghost", "--collector", address]) == 1
        assert "no such job" in capsys.readouterr().err
    assert main(["advise", "--collector", address]) == 1
    assert main(["advise", "--collector", address, "--seconds", "5"]) == 2
    assert main(["advise", "--collector", address, "--data", str(tmp_path)]) == 2


def _all():
    from netmon.views import Selection

    return Selection()


def test_what_several_workers_say_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    told = document(kept().advice())
    other = document(kept(jobs="a").advice())
    monkeypatch.setattr(wire, "_one", lambda address, job, security: told if address == "one" else other)
    both = wire.get_advice("one,two")
    assert len(both["jobs"]) == 3
    assert both["shares"] == told["shares"]


def test_an_answer_that_is_no_advice_is_refused(tmp_path: Path) -> None:
    import grpc

    from netmon.wire import netmon_pb2
    from netmon.wire.netmon_pb2_grpc import CollectorServicer, add_CollectorServicer_to_server

    class Wrong(CollectorServicer):
        async def Advise(self, request, context):  # noqa: N802
            return netmon_pb2.AdviceAnswer(document=b'{"advice": 3}' if request.job else b"{")

    async def asked() -> None:
        server = grpc.aio.server()
        add_CollectorServicer_to_server(Wrong(), server)
        server.add_insecure_port(f"unix:{tmp_path}/wrong.sock")
        await server.start()
        for job in ("", "x"):
            with pytest.raises(WireError):
                await asyncio.to_thread(wire.get_advice, f"unix:{tmp_path}/wrong.sock", job)
        await server.stop(0)

    asyncio.run(asked())
