# SPDX-License-Identifier: Apache-2.0
"""`netmon advise` on a dataset of two jobs that share a link, in phase, on a collector, and on several."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collector_thread import collecting
from waiting import wait_for

from collector.host.flows import STATE
from collector.judging.advising import sharing
from netmon.cli import main
from netmon.commands.collector import StoredDataset
from netmon.dl.sharing.advice_text import called, document, sentences
from netmon.dl.verdict.verdict_text import columns
from netmon.errors import WireError
from netmon.history.advice import advice
from netmon.records import Direction
from netmon.views import Cause, Selection, Verdict
from netmon.wire import questions
from netmon.wire.watch import UnreachableError, watch_once

MS = 1_000_000
BEGIN_NS = 1_795_219_200_000_000_000
ALONE, TOGETHER = 10, 60  # iterations
FULL = 125_000  # bytes a millisecond of 1 Gbit/s
HOSTS = ("h0", "h1", "h2")
SESSIONS = {"h0": "s", "h1": "s1", "h2": "s2"}


def job_rows(first_ms: int, iterations: int, busy_ms: int, period_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Beginning of each iteration, and number and bytes of each millisecond in which it sends."""
    starts = first_ms + period_ms * np.arange(iterations)
    places = (starts[:, None] + period_ms - busy_ms + np.arange(busy_ms)).ravel()
    return starts, np.repeat(np.arange(iterations), busy_ms), places


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Job a alone for 1 s, b alone for 1 s, then both: 40 ms of transfer take 80 ms."""
    buckets, iterations, flows = [], [], []

    def sends(job: str, host: str, peer: str, first: int, count: int, together: bool, number: int) -> None:
        busy, period = (80, 140) if together else (40, 100)
        starts, of, places = job_rows(first, count, busy, period)
        flow = {"a": 1, "b": 2}[job]
        for place, iteration in zip(places, of, strict=True):
            buckets.append((host, flow, place, FULL // (2 if together else 1), job, number + iteration))
        for rank, where in enumerate((host, peer)):
            for at, start in enumerate(starts):
                iterations.append((where, job, rank, number + at, start, start + period))
        flows.append((host, flow, job, 0, 1))
        flows.append((peer, flow + 10, job, 1, 0))

    sends("a", "h0", "h1", 0, ALONE, False, 0)
    sends("b", "h0", "h2", 1000, ALONE, False, 0)
    sends("a", "h0", "h1", 2000, TOGETHER, True, ALONE)
    sends("b", "h0", "h2", 2000, TOGETHER, True, ALONE)
    rows = pd.DataFrame(buckets, columns=["host", "flow_id", "at", "wire_bytes", "job", "iteration"])
    rows["bucket_start_ns"] = BEGIN_NS + rows.pop("at") * MS
    rows = rows.assign(session="s", interface="eth0", direction="tx", bucket_ns=MS)
    write(tmp_path, "buckets", rows)
    steps = pd.DataFrame(iterations, columns=["host", "job", "rank", "iteration", "start_ns", "end_ns"])
    steps[["start_ns", "end_ns"]] = BEGIN_NS + steps[["start_ns", "end_ns"]] * MS
    write(tmp_path, "iterations", steps.assign(session=steps["host"].map(SESSIONS.get), error_ns=1_000))
    told = pd.DataFrame(flows, columns=["host", "flow_id", "job", "rank", "peer_rank"]).drop_duplicates()
    write(tmp_path, "flows", told.assign(session="s", direction="tx"))
    hosts = pd.DataFrame({"host": HOSTS, "session": SESSIONS.values(), "interface": "eth0"})
    write(tmp_path, "sessions", hosts.assign(capacity_bps=1_000_000_000, clock_error_ns=1_000))
    return tmp_path


def write(data: Path, table: str, rows: pd.DataFrame) -> None:
    folder = data / table / "date=2026-11-21" / "hour=00"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), folder / "part-0.parquet")


def test_two_jobs_in_phase_are_advised_to_stand_apart(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", str(dataset), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [share] = told["shares"]
    assert (share["job"], share["others"], share["links"]) == ("b", ["a"], ["h0 eth0 tx"])
    assert share["advised"]
    assert 40 * MS <= share["shift_ns"] <= 100 * MS
    assert share["shared_ns"] == pytest.approx(140 * MS, rel=0.05)
    assert share["shifted_ns"] == pytest.approx(100 * MS, rel=0.05)
    assert told["advice"][0].startswith("start job b ")
    assert {job["job"]: job["alone_ns"] for job in told["jobs"]} == {"a": 100 * MS, "b": 100 * MS}
    pairs = {(pair["job"], pair["source"], pair["target"]): pair for pair in told["pairs"]}
    own = pairs["a", "rank 0 (h0)", "rank 1 (h1)"]
    assert own["bytes"] == pytest.approx(40 * FULL)
    assert own["pace_bps"] == pytest.approx(0.5e9, rel=0.01)


def test_what_people_read_names_jobs_links_and_pairs(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "a", "--data", str(dataset)]) == 0
    text = capsys.readouterr().out
    assert "h0 eth0 tx" in text
    assert "pairs of ranks" in text


def test_a_time_without_iterations_and_a_missing_directory_are_said(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", "--data", str(dataset), "--until", "2026-11-20T00:00:00"]) == 1
    assert "no iteration has ended" in capsys.readouterr().err
    assert main(["advise", "--data", str(dataset / "none")]) == 1
    assert main(["advise"]) == 2
    assert main(["advise", "--data", str(dataset), "--seconds", "0"]) == 2


def test_a_job_with_few_iterations_is_not_judged(dataset: Path) -> None:
    found = advice(dataset, 0.3)
    assert found.unjudged == ("a", "b")
    assert found.shares == ()


def test_people_read_their_own_names_and_programs_what_jobs_are(dataset: Path) -> None:
    told = json.loads(json.dumps(document(advice(dataset, 30), {"a": "train.py@h0", "b": "b"})))
    assert told["names"] == {"a": "train.py@h0"}
    assert "next to train.py@h0 " in told["advice"][0]
    assert told["shares"][0]["others"] == ["a"]
    shown = called(told)
    assert shown["shares"][0]["others"] == ["train.py@h0"]
    assert {job["job"] for job in shown["jobs"]} == {pair["job"] for pair in shown["pairs"]} == {"train.py@h0", "b"}
    assert {key: shown[key] for key in ("advice", "links")} == {key: told[key] for key in ("advice", "links")}


def test_only_one_job_and_its_neighbours_are_told_of(dataset: Path) -> None:
    assert {job.job for job in advice(dataset, 30, jobs=["a"]).jobs} == {"a", "b"}
    assert advice(dataset, 30, jobs=["a", "b"]).shares == advice(dataset, 30).shares
    assert {job.job for job in advice(dataset, 0.9, BEGIN_NS + 1000 * MS).jobs} == {"a"}


def sessions(dataset: Path, **changed: int) -> None:
    path = next((dataset / "sessions").rglob("*.parquet"))
    pd.read_parquet(path, partitioning=None).assign(**changed).to_parquet(path)


def test_links_of_unknown_capacity_are_said(dataset: Path) -> None:
    sessions(dataset, capacity_bps=0)
    found = advice(dataset, 30)
    assert found.shares == ()
    assert "h0 eth0 tx, whose capacity is not known" in sentences(found)[0]
    assert document(found)["links"][0]["capacity_bps"] is None


def test_clocks_that_nobody_knows_are_said(dataset: Path) -> None:
    sessions(dataset, clock_error_ns=30 * MS)
    found = advice(dataset, 30)
    assert not found.shares[0].advised
    assert "is known only to 30.0 ms" in sentences(found)[0]


def test_only_jobs_on_a_link_of_another_one_share() -> None:
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
    data = tmp_path / "data"
    with collecting(address, data, stored=StoredDataset(data)):

        def answers() -> bool:
            try:
                return watch_once(address, Selection()).time_ns > 0
            except UnreachableError:
                return False

        wait_for(answers)
        assert main(["advise", "--collector", address]) == 1
        assert "no iteration has ended yet" in capsys.readouterr().err
        assert main(["advise", "ghost", "--collector", address]) == 1
        assert "no such job" in capsys.readouterr().err
    assert main(["advise", "--collector", address]) == 1
    assert main(["advise", "--collector", address, "--seconds", "5"]) == 2
    assert main(["advise", "--collector", address, "--data", str(tmp_path)]) == 2


def test_what_several_workers_say_is_put_together(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = document(advice(dataset, 30))
    other = document(advice(dataset, 0.9, BEGIN_NS + 1000 * MS))
    monkeypatch.setattr(questions, "_advice_of", lambda address, job, security: told if address == "one" else other)
    both = questions.get_advice("one,two")
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
                await asyncio.to_thread(questions.get_advice, f"unix:{tmp_path}/wrong.sock", job)
        await server.stop(0)

    asyncio.run(asked())


@pytest.fixture
def hurt(tmp_path: Path) -> Path:
    """Job a: ten steps of 100 ms alone, then ten of 140 ms with iperf3 on the link that its gradients enter."""
    starts, of, places = job_rows(0, 10, 40, 100)
    later, of_later, places_later = job_rows(1000, 10, 80, 140)
    sent = [(place, FULL // 2, "DL-only", number) for place, number in zip(places, of, strict=True)]
    sent += [(place, FULL // 4, "DL-shared", 10 + number) for place, number in zip(places_later, of_later, strict=True)]
    sent += [(place, FULL // 2, "cross", 10 + number) for place, number in zip(places_later, of_later, strict=True)]
    rows = pd.DataFrame(sent, columns=["at", "wire_bytes", "class", "iteration"])
    rows["bucket_start_ns"] = BEGIN_NS + rows.pop("at") * MS
    rows["flow_id"] = np.where(rows["class"] == "cross", 9, 1)
    write(
        tmp_path,
        "buckets",
        rows.assign(session="s", host="h0", interface="eth0", direction="rx", bucket_ns=MS, job="a"),
    )
    begins, lasts = np.append(starts, later), np.append(np.full(10, 100), np.full(10, 140))
    steps = pd.DataFrame({"iteration": np.arange(20), "start_ns": BEGIN_NS + begins * MS})
    steps["end_ns"] = steps["start_ns"] + lasts * MS
    write(tmp_path, "iterations", steps.assign(session="s", host="h0", job="a", rank=0, error_ns=1_000))
    ends = {"src": "10.0.0.2", "dst": "10.0.0.1", "src_port": [40_000, 40_002], "dst_port": 5201, "protocol": 6}
    of_iperf = pd.DataFrame({**ends, "first_ns": BEGIN_NS, "last_ns": BEGIN_NS + 60_000 * MS, "interface": "eth0"})
    of_iperf = of_iperf.assign(process="iperf3", container="burst.service", class_source="socket", members=0, job="")
    of_iperf = of_iperf.assign(rank=-1, peer_rank=-1, user="root")
    flows = [of_iperf.assign(session="s", host="h0", direction="rx", flow_id=[9, 10])]
    flows.append(of_iperf.assign(session="s2", host="h2", direction="tx", flow_id=[1, 2]))
    write(tmp_path, "flows", pd.concat(flows))
    write(tmp_path, "sessions", pd.DataFrame([("h0", "s", "eth0", 1_000_000_000, 1_000)], columns=SESSION))
    where = ("h0", "eth0", Direction.RX, 0)
    slow = [
        Verdict("a", n, ns, ns + 140 * MS, 140 * MS, 100 * MS, 40 * MS, Cause.CROSS, "iperf3 (burst.service)", *where)
        for n, ns in zip(range(10, 20), (BEGIN_NS + later * MS).tolist(), strict=True)
    ]
    more = {"cross_ns": 40 * MS, "counterfactual_ns": 100 * MS, "confidence": 1.0, "sender": "h2", "receiver": "h0"}
    write(tmp_path, "verdicts", pd.DataFrame([columns(replace(one, **more)) for one in slow]))
    return tmp_path


SESSION = ["host", "session", "interface", "capacity_bps", "clock_error_ns"]


def test_whose_traffic_to_cap_comes_first(hurt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", str(hurt)]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("limit iperf3 (burst.service) (h2) to 500 Mbit/s, or move it from ")
    assert first.endswith(": saves up to 29% of a step of a, 140 ms → 100 ms")
    assert others[0] == (
        "  limit, on h2: tc qdisc add dev eth0 clsact 2>/dev/null; tc filter add dev eth0 egress pref 7000 protocol ip "
        "flower ip_proto tcp src_ip 10.0.0.2 dst_ip 10.0.0.1 dst_port 5201 action police rate 500000kbit burst 256k "
        "mtu 65535 conform-exceed drop"
    )
    assert others[1] == "   undo: tc filter del dev eth0 egress pref 7000"
    assert others[2] == "  pause, on h2: systemctl freeze burst.service"
    assert main(["advise", "--data", str(hurt), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["culprits"][0]["cap_bps"], told["culprits"][0]["culprit_user"]) == (500_000_000, "")
    assert told["advice"][0].startswith("limit iperf3")


def test_an_iteration_that_met_others_where_gradients_enter_is_not_alone(hurt: Path) -> None:
    [one] = advice(hurt, 30).jobs
    assert one.alone
    assert one.period_ns == 100 * MS
    [slow] = advice(hurt, 1.3).jobs
    assert not slow.alone


def test_nothing_that_a_dataset_says_gets_into_a_shell(hurt: Path) -> None:
    path = next((hurt / "flows").rglob("*.parquet"))
    flows = pd.read_parquet(path, partitioning=None)
    for column, word in (
        ("src", "10.0.0.2; reboot"),
        ("interface", "eth0; reboot"),
        ("container", "a b;reboot.service"),
    ):
        flows.assign(**{column: word}).to_parquet(path)
        commands = [one["run"] for culprit in document(advice(hurt, 30))["culprits"] for one in culprit["commands"]]
        assert not any("reboot" in command for command in commands)


def test_packets_that_only_the_culprits_fit_have_an_end_in_common(hurt: Path) -> None:
    path = next((hurt / "flows").rglob("*.parquet"))
    flows = pd.read_parquet(path, partitioning=None)
    flows.assign(dst_port=[1, 2, 1, 2], container="").to_parquet(path)
    [culprit] = document(advice(hurt, 30))["culprits"]
    assert culprit["commands"] == []
