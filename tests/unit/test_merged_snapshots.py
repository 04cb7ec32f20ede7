# SPDX-License-Identifier: Apache-2.0
"""Several workers shown as one collector."""

import threading
from dataclasses import replace

import pytest
from snapshot_example import example
from test_wire_watch import TEN, Snapshots, serve

from netmon.errors import UsageError
from netmon.views import Hang, Hung, Page, Selection, Snapshot, Totals
from netmon.wire.watch import Outage, UnreachableError, follow, from_each, merge, split, watch_once


def worker(*hosts: str, job: str = "", **changes: object) -> Snapshot:
    """What a worker with these of the example's hosts shows."""
    whole = example()
    return replace(
        whole,
        hosts=tuple(host for host in whole.hosts if host.host in hosts),
        links=tuple(link for link in whole.links if link.host in hosts),
        flows=tuple(flow for flow in whole.flows if flow.host in hosts),
        jobs=(replace(whole.jobs[0], job=job),) if job else (),
        totals=Totals(hosts=len(hosts), jobs=int(bool(job)), rss_bytes=len(hosts), class_bps=(1.0, 2.0), hooks=hosts),
        page=Page(hosts=len(hosts), links=2 * len(hosts), jobs=int(bool(job)), unknown=("h9", *hosts)),
        **changes,
    )


def test_hosts_jobs_and_flows_of_all_workers_are_there_once():
    merged = merge([worker("h0", "h3", job="b"), worker("h1", "h2", job="a")], Selection(flows=100))
    whole = example()
    assert [host.host for host in merged.hosts] == ["h0", "h1", "h2", "h3"]
    assert len(merged.links) == len(whole.links)
    assert {flow.host for flow in merged.flows} == {flow.host for flow in whole.flows}
    assert [job.job for job in merged.jobs] == ["a", "b"]
    assert merged.totals == Totals(hosts=4, jobs=2, rss_bytes=2, class_bps=(2.0, 4.0), hooks=("h0", "h1", "h2", "h3"))
    assert merged.page == Page(hosts=4, links=8, jobs=2, unknown=("h9",))
    assert merged.warnings == whole.warnings


def test_a_host_and_a_job_on_their_way_are_shown_once():
    gone, here = worker("h0", "h1", job="a"), worker("h0", job="a")
    gone = replace(gone, hosts=(replace(gone.hosts[0], connected=False), gone.hosts[1]))
    here = replace(here, jobs=(replace(here.jobs[0], iteration=gone.jobs[0].iteration + 3),))
    merged = merge([gone, here], Selection(flows=100))
    assert [(host.host, host.connected) for host in merged.hosts] == [("h0", True), ("h1", True)]
    assert len(merged.links) == 4
    assert [job.iteration for job in merged.jobs] == [here.jobs[0].iteration]
    assert [flow.host for flow in merged.flows].count("h0") == [flow.host for flow in here.flows].count("h0")


def test_of_more_than_fits_the_worst_of_each_come_first():
    asked = Selection(most_links=3, links_from=1)
    assert from_each(asked) == Selection(most_links=4)
    one, other = worker("h0", "h1"), worker("h2", "h3")
    merged = merge([one, other], asked)
    shown = [(link.host, link.direction.name) for link in merged.links]
    assert shown == [("h2", "RX"), ("h0", "TX"), ("h2", "TX")]
    assert merged.page.links_from == 1


def test_addresses_are_a_list():
    assert split("a:1, b:2,,a:1") == ["a:1", "b:2"]
    with pytest.raises(UsageError):
        split(" ,")


class Some(Snapshots):
    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self.hosts = hosts

    def Watch(self, request, context):  # noqa: N802
        from netmon.wire.mapping import encode_snapshot

        for _ in super().Watch(request, context):
            yield encode_snapshot(worker(*self.hosts))


@pytest.fixture
def two(tmp_path):
    paths = [tmp_path / f"w{number}.sock" for number in (1, 2)]
    servers = [serve(path, Some(*hosts)) for path, hosts in zip(paths, (("h0", "h1"), ("h2", "h3")), strict=True)]
    yield paths, servers
    for server in servers:
        server.stop(0).wait()


def test_one_snapshot_of_two_workers(two):
    paths, _ = two
    snapshot = watch_once(",".join(f"unix:{path}" for path in paths), TEN)
    assert len(snapshot.hosts) == 4


def test_a_worker_that_goes_and_comes_back_is_told_of(two):
    paths, servers = two
    updates = follow(",".join(f"unix:{path}" for path in paths), 20, lambda: TEN, retry_s=0.05)
    assert len(next(updates).hosts) == 4
    servers[0].stop(0).wait()

    def until(condition) -> Snapshot | Outage:
        return next(update for update in updates if condition(update))

    alone = until(lambda update: len(update.hosts) == 2)
    assert alone.warnings[0].startswith(f"cannot reach the collector at unix:{paths[0]}")
    paths[0].unlink(missing_ok=True)
    servers[0] = serve(paths[0], Some("h0", "h1"))
    assert until(lambda update: len(update.hosts) == 4).warnings == example().warnings
    for server in servers:
        server.stop(0).wait()
    assert until(lambda update: isinstance(update, Outage))
    updates.close()
    assert threading.active_count() < 50


def test_a_worker_that_was_never_there_is_an_error(two, tmp_path):
    paths, _ = two
    with pytest.raises(UnreachableError):
        next(follow(f"unix:{paths[0]},unix:{tmp_path}/nobody.sock", 20, lambda: TEN))


def test_a_hang_that_one_worker_tells_of_is_shown():
    hang = Hang("a", 5, 0, 9, Hung.NOT_ENTERED, "all-reduce", 3, "", 1, "h0", "", (1,), (0,))
    one, other = worker("h0", job="a"), worker("h2", job="a")
    one = replace(one, jobs=(replace(one.jobs[0], hangs=(hang,)),))
    ahead = replace(other, jobs=(replace(other.jobs[0], iteration=one.jobs[0].iteration + 3),))
    [job] = merge([one, ahead], Selection()).jobs
    assert (job.iteration, job.hangs) == (ahead.jobs[0].iteration, (hang,))
