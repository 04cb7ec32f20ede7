# SPDX-License-Identifier: Apache-2.0
"""What travels of everything that is known: pages, selections, totals; one snapshot for all who look."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from test_jobs import accounted, ended, iteration, tally

from collector import answers
from collector.answers import Watching
from collector.settings import Settings
from collector.view.frozen import LONGEST_WARNING, MOST_WARNINGS, page
from collector.view.job_views import Jobs
from collector.view.sessions import ARRIVED, FINAL, FLOW, HOST, LINK, LinkName
from collector.view.view import View
from netmon.records import Class, Direction, Flow, Owner
from netmon.views import Selection, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.mapping import decode_snapshot, encode_selection, encode_snapshot
from netmon.wire.netmon_pb2_grpc import CollectorServicer, CollectorStub, add_CollectorServicer_to_server

MS = 1_000_000
UTC = 1_760_000_000_000_000_000
HOSTS = 40
NOW_MS = 5_000
GIGABIT = 1_000_000_000


class Arrays:
    """The state of 40 hosts with a link each way and a DL and a cross flow received: the host stage's side."""

    def __init__(self) -> None:
        self.names = tuple(f"h{number:02}" for number in range(HOSTS))
        self.of_links = [LinkName(name, "eth0", direction, "tcx") for name in self.names for direction in Direction]
        self.of_hosts, self.of_link = np.zeros(HOSTS, HOST), np.zeros(2 * HOSTS, LINK)
        self.of_hosts["connected"], self.of_hosts["window_ns"] = True, 10 * MS
        self.of_hosts["begin_ns"] = np.arange(HOSTS) * 1_000_000 * MS  # their clocks have nothing in common
        self.of_hosts["horizon_ns"] = self.of_hosts["begin_ns"] + NOW_MS * MS
        self.of_hosts["settled_ns"] = self.of_hosts["horizon_ns"] - 1_000 * MS
        self.of_hosts["horizon_utc_ns"] = UTC
        self.of_link["host"], self.of_link["capacity_bps"] = np.arange(2 * HOSTS) // 2, GIGABIT
        self.of_link["nic_bytes"] = self.of_link["attributed_bytes"] = 10**9
        self.states = np.zeros(2 * HOSTS, FLOW)
        self.states["class"][::2], self.states["class"][1::2] = Class.DL_ONLY, Class.CROSS
        self.states["job"][::2], self.states["gradient"][::2] = 1, True
        self.lines: list[str] = []

    @property
    def host_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def agent_versions(self) -> tuple[str, ...]:
        return ("0.1",) * len(self.names)

    def hosts(self) -> Any:
        return self.of_hosts

    @property
    def link_names(self) -> list[LinkName]:
        return self.of_links

    def links(self) -> Any:
        return self.of_link

    def flow_states(self) -> Any:
        return self.states

    def flow_facts(self, numbers: Any) -> list[dict[str, Any] | None]:
        owner = Owner(1, "x", source="socket")
        flows = [Flow(n, 1, Direction.RX, "10.0.0.1", "10.0.0.2", 1, 2, 6, 0, owner) for n in numbers.tolist()]
        return [{"flow": flow, "wire_bytes": 10**6} for flow in flows]

    def scores(self) -> list[Any]:
        return []

    def stepping_jobs(self) -> set[str]:
        return set()

    def warnings(self) -> list[str]:
        return self.lines


class Cluster:
    """A view of it, all of whose hosts received 1 MB/s for a job, and those in `crossed` as much cross traffic more."""

    def __init__(self, *crossed: int) -> None:
        self.state, self.jobs = Arrays(), Jobs(0)
        self.view = View(self.state, self.jobs, Settings())
        for number in range(HOSTS):
            begin = int(self.state.of_hosts["begin_ns"][number])
            for first, last, dtype, tell in (
                (0, NOW_MS - 1_000, FINAL, self.view.final),
                (NOW_MS - 1_000, NOW_MS, ARRIVED, self.view.arrived),
            ):
                flows = (0, 1) if number in crossed else (0,)
                rows = np.zeros((last - first) // 10 * len(flows), dtype)
                flow = np.tile(flows, (last - first) // 10)
                rows["link"], rows["wire_bytes"] = 2 * number, np.where(flow == 0, 10_000, 500_000)
                rows["start_ns"] = begin + (first + np.arange(len(rows)) // len(flows) * 10) * MS
                if dtype == FINAL:
                    dl = Class.DL_SHARED if number in crossed else Class.DL_ONLY
                    rows["class"], rows["job"] = np.where(flow == 0, dl, Class.CROSS), 1 - flow
                else:
                    rows["flow"], rows["payload_bytes"] = 2 * number + flow, rows["wire_bytes"]
                tell(rows)
        for job in range(HOSTS // 4):
            for rank in range(4):
                one = iteration(7, rank, name=f"job-{job}", size=4)
                ended(self.jobs, f"h{4 * job + rank:02}", one)
                accounted(self.jobs, one, tally(cross_rx=10**6 if 4 * job + rank in crossed else 0))

    def page(self, **asked: Any) -> Snapshot:
        return page(self.view.freeze(UTC), Selection(**asked), self.state, self.jobs)


def test_everything_is_there_unless_less_is_asked_for() -> None:
    snapshot = Cluster(7).page(flows=100)
    assert (len(snapshot.hosts), len(snapshot.links), len(snapshot.jobs), len(snapshot.flows)) == (40, 80, 10, 41)
    received = {link.host: link for link in snapshot.links if link.direction == Direction.RX}
    assert (received["h00"].wire_bps[-10:, Class.DL_ONLY] == 8e6).all()
    assert np.isnan(received["h00"].wire_bps[:50]).all()
    assert not np.isnan(received["h00"].wire_bps[50:]).any()
    assert (received["h07"].wire_bps[-45:, Class.DL_SHARED] == 8e6).all()  # what is final, and what is not yet
    assert (received["h07"].wire_bps[-45:, Class.CROSS] == 4e8).all()
    assert [(view.host, view.class_, view.wire_bps) for view in snapshot.flows[:1]] == [("h07", Class.CROSS, 4e8)]
    assert {view.class_ for view in snapshot.flows if view.host == "h07"} == {Class.CROSS, Class.DL_SHARED}


def test_the_worst_come_first_and_the_rest_is_counted() -> None:
    cluster = Cluster(7, 30)
    cluster.state.of_link["lost_kernel_bytes"][11] = 10**8
    cluster.state.of_link["attributed_bytes"][11] -= 10**8
    snapshot = cluster.page(most_links=4, most_jobs=3, most_ranks=2, most_hosts=1)
    names = [(link.host, link.direction) for link in snapshot.links]
    assert names == [("h07", Direction.RX), ("h30", Direction.RX), ("h05", Direction.TX), ("h00", Direction.RX)]
    assert [job.job for job in snapshot.jobs] == ["job-1", "job-7", "job-0"]
    assert [(len(job.ranks), job.known_ranks, job.shared_ranks) for job in snapshot.jobs] == [(2, 4, 1)] * 2 + [
        (2, 4, 0)
    ]
    assert {rank.rank for rank in snapshot.jobs[0].ranks} >= {3}  # the one that is shared
    assert [host.host for host in snapshot.hosts] == ["h00", "h05", "h07", "h30"]
    assert (snapshot.page.hosts, snapshot.page.links, snapshot.page.jobs) == (40, 80, 10)
    second = cluster.page(most_links=4, links_from=4, most_jobs=3, jobs_from=9)
    assert {(link.host, link.direction) for link in second.links}.isdisjoint(names)
    assert len(second.jobs) == 1
    totals = snapshot.totals
    assert (totals.hosts, totals.connected, totals.links, totals.low_links) == (40, 40, 80, 1)
    assert (totals.jobs, totals.ranks, totals.shared_ranks, totals.lost_kernel_bytes) == (10, 40, 2, 10**8)
    assert totals.class_bps == (0, 38 * 8e6, 2 * 8e6, 2 * 4e8)
    assert totals.flows == 42


def test_hosts_and_jobs_can_be_named() -> None:
    cluster = Cluster(7)
    of_hosts = cluster.page(hosts=("h07", "h39", "nobody"), flows=10)
    assert {link.host for link in of_hosts.links} == {host.host for host in of_hosts.hosts} == {"h07", "h39"}
    assert [job.job for job in of_hosts.jobs] == ["job-1", "job-9"]
    assert {view.host for view in of_hosts.flows} == {"h07", "h39"}
    assert of_hosts.page.unknown == ("nobody",)
    of_job = cluster.page(jobs=("job-2",), flows=10)
    assert [host.host for host in of_job.hosts] == ["h08", "h09", "h10", "h11"]
    assert [job.job for job in of_job.jobs] == ["job-2"]
    assert of_job.totals == of_hosts.totals
    assert cluster.page(jobs=("job-2",), hosts=("h07",)).jobs == ()


def test_a_host_that_is_gone_counts_as_known_and_not_as_present() -> None:
    cluster = Cluster(7)
    cluster.state.of_hosts["connected"][7] = False
    cluster.state.of_hosts["horizon_utc_ns"][8] -= 3_000 * MS
    totals = cluster.page(most_links=1).totals
    assert (totals.hosts, totals.connected, totals.lagging, totals.oldest_ns) == (40, 39, 1, 3_000 * MS)
    assert totals.class_bps == (0, 38 * 8e6, 0, 0)
    assert [host.host for host in cluster.page(most_links=1, most_hosts=5).hosts] == ["h00", "h07", "h08"]


def test_warnings_of_any_number_and_length_travel() -> None:
    cluster = Cluster()
    cluster.state.lines = ["x" * 100_000, "two\nlines", *("again" for _ in range(1_000))]
    snapshot = decode_snapshot(encode_snapshot(cluster.page()))
    assert len(snapshot.warnings) == MOST_WARNINGS
    assert max(map(len, snapshot.warnings)) <= LONGEST_WARNING
    assert "\n" not in "".join(snapshot.warnings)
    assert snapshot.totals.warnings == 1_002


def test_a_link_that_has_gone_takes_its_bytes_with_it() -> None:
    cluster = Cluster()
    cluster.view.forget_links(np.array([14, 15]))
    received = {link.host: link for link in cluster.page().links if link.direction == Direction.RX}
    assert np.nansum(received["h07"].wire_bps) == 0
    assert np.nansum(received["h08"].wire_bps) > 0


def test_no_host_is_no_error() -> None:
    state = Arrays()
    state.names, state.of_links = (), []
    state.of_hosts, state.of_link, state.states = np.zeros(0, HOST), np.zeros(0, LINK), np.zeros(0, FLOW)
    jobs = Jobs(0)
    snapshot = page(View(state, jobs, Settings()).freeze(UTC), Selection(flows=5, most_links=5), state, jobs)
    assert snapshot.totals.hosts == snapshot.page.links == len(snapshot.links) == 0


class Counted:
    """What Watching asks for, and how often."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.frozen, self.pages = 0, 0
        self.ticks = 0
        self.watching = Watching(self.freeze, self.page, lambda: self.ticks, [])

    def freeze(self) -> Any:
        self.frozen += 1
        return self.cluster.view.freeze(UTC)

    def page(self, frozen: Any, asked: Selection) -> Snapshot:
        self.pages += 1
        return page(frozen, asked, self.cluster.state, self.cluster.jobs)


class Service(CollectorServicer):
    """Watch and nothing else."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        await self.counted.watching.watch(request, context)


async def serving(counted: Counted, address: str) -> grpc.aio.Server:
    server = grpc.aio.server()
    add_CollectorServicer_to_server(Service(counted), server)
    server.add_insecure_port(address)
    await server.start()
    return server


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def test_who_asks_for_the_same_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(answers.time, "monotonic", lambda: clock[0])
    counted = Counted()
    first = [counted.watching.latest(Selection(most_links=4)) for _ in range(100)]
    assert all(message is first[0] for message in first)
    counted.watching.latest(Selection(most_links=5))
    assert (counted.frozen, counted.pages) == (1, 2)
    counted.ticks += 1
    clock[0] += 0.4
    assert counted.watching.latest(Selection(most_links=4)) is not first[0]
    assert (counted.frozen, counted.pages) == (2, 3)
    clock[0] += 1.0  # a host that says nothing gets older
    counted.watching.latest(Selection(most_links=4))
    assert (counted.frozen, counted.pages) == (3, 4)


def test_viewers_take_a_fifth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used = [100.0], [0.0]
    monkeypatch.setattr(answers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(answers.time, "thread_time", lambda: used[0])
    counted = Counted()

    def slow(frozen: Any, asked: Selection) -> Snapshot:
        used[0] += 0.05
        return counted.page(frozen, asked)

    watch = Watching(counted.freeze, slow, lambda: counted.ticks, [])
    first = watch.latest(Selection())
    for step, fresh in ((0.1, False), (0.05, False), (0.1, True), (0.1, False)):
        clock[0] += step
        counted.ticks += 1
        latest = watch.latest(Selection())
        assert (latest is not first) == fresh, clock
        first = latest


def test_a_viewer_that_does_not_read_is_let_go_and_others_are_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the next snapshot only when it has taken the one before; what it does not take is never made."""
    monkeypatch.setattr(answers, "_SNAPSHOT_WITHIN_S", 1.0)
    monkeypatch.setattr(answers, "_OLDEST_S", 0.0)
    address = f"unix:{tmp_path}/socket"

    async def scenario() -> tuple[int, grpc.StatusCode, str]:
        counted = Counted()
        server = await serving(counted, address)
        request = encode_selection(Selection(flows=10), 1)  # 260 kB each
        async with grpc.aio.insecure_channel(address) as channel:
            stub = CollectorStub(channel)
            sleepy = stub.Watch(request)
            await sleepy.read()
            while not counted.watching.let_go:  # gRPC reads no further than its window
                assert await stub.Watch(encode_selection(Selection(most_links=1), 0)).read()
                await asyncio.sleep(0.05)
            made = counted.pages
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await read_all(sleepy)
        await server.stop(0)
        return made, error.value.code(), error.value.details()

    made, code, details = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "no snapshot was read" in details
    assert made < 200


def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"

    async def scenario() -> grpc.StatusCode:
        server = await serving(Counted(), address)
        async with grpc.aio.insecure_channel(address) as channel:
            call = CollectorStub(channel).Watch(netmon_pb2.WatchRequest(hosts=["x" * 5_000]))
            code = await call.code()
        await server.stop(0)
        return code

    assert asyncio.run(scenario()) == grpc.StatusCode.INVALID_ARGUMENT
