# SPDX-License-Identifier: Apache-2.0
"""One agent that makes up links and jobs: it makes few series, and takes none from jobs that carry bytes."""

import urllib.request
from pathlib import Path

import grpc
import pytest
from collector_stream import Host, as_told, hello, mark
from collector_thread import collecting
from prometheus_client.parser import text_string_to_metric_families
from test_collector_server import message
from test_metrics import ended, iteration
from waiting import free_port

from collector.metrics.families import MOST_INTERFACES
from collector.view import job_views
from collector.view.job_views import MOST_JOBS, MOST_OF_HOST, OTHER, Counts
from netmon.records import Batch, Hello, Interface, Moment
from netmon.wire.netmon_pb2_grpc import CollectorStub


def hostile() -> list[Hello | Batch]:
    """It has 500 interfaces, and 200 jobs with two iterations each."""
    interfaces = tuple(Interface(number, f"eth{number}", 10**9, "tcx", "tcx") for number in range(1, 501))
    source = Host()
    batches = [source.batch() for _ in range(20)]
    moments = Moment.JOIN, Moment.STEP_START, Moment.STEP_END
    marks = [
        mark(moment, number, 100 + 200 * number + 100 * (moment is Moment.STEP_END), job=f"job-{job}", pid=100 + job)
        for job in range(200)
        for number in range(2)
        for moment in moments[number > 0 :]
    ]
    own = [batch.marks for batch in batches]
    own[4] = sorted(marks, key=lambda one: one.time_ns)
    batches = as_told(batches, own)
    return [hello(host="bad", session="bad", interfaces=interfaces), *batches]


def test_a_hostile_agent_makes_few_series_and_an_honest_job_has_its_own(tmp_path: Path) -> None:
    address, port, source = f"unix:{tmp_path}/socket", free_port(), Host()
    honest = [hello(), *(source.batch() for _ in range(30))]
    with collecting(address, tmp_path / "data", metrics=f"127.0.0.1:{port}"):
        with grpc.insecure_channel(address) as channel:
            for contents in (hostile(), honest):
                for _ in CollectorStub(channel).Stream(map(message, contents), wait_for_ready=True):
                    pass
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            samples = [one for f in text_string_to_metric_families(answer.read().decode()) for one in f.samples]
    links = {
        one.labels["interface"] for one in samples if one.labels.get("host") == "bad" and "interface" in one.labels
    }
    jobs = {one.labels["job"] for one in samples if "job" in one.labels}
    assert len(links) == MOST_INTERFACES
    assert "train" in jobs
    assert OTHER in jobs
    assert len(jobs) <= MOST_OF_HOST + 2
    left_out = {one.labels["host"]: one.value for one in samples if one.name == "netmon_agent_links_left_out"}
    assert left_out == {"bad": 2 * (500 - MOST_INTERFACES)}


def test_which_jobs_have_a_series_is_decided_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts()
    for number in range(2 * MOST_JOBS):
        counts.ended(*ended(iteration(f"small-{number}", 1.0)), lambda number=number: [f"h{number}"])
        counts.add_bytes(f"small-{number}", lambda number=number: [f"h{number}"], 10)
    counts.add_bytes("large", lambda: ["h0"], 1_000)
    counts.ended(*ended(iteration("large", 1.0)), lambda: ["h0"])
    jobs = counts.copy()
    assert len(jobs) == MOST_JOBS + 1
    assert jobs["large"].seconds == 1.0
    assert sum(job.seconds for job in jobs.values()) == 2 * MOST_JOBS + 1  # those that lost theirs count as others
    monkeypatch.setattr(job_views, "_QUIET_S", 0.0)  # what trains no more goes first
    counts.add_bytes("new", lambda: ["h1"], 1)
    assert "new" in counts.copy()


def test_one_host_has_so_many_jobs_of_its_own() -> None:
    counts = Counts()
    for number in range(2 * MOST_JOBS):
        counts.ended(*ended(iteration(f"made-up-{number}")), lambda: ["bad"])
        counts.add_bytes(f"made-up-{number}", lambda: ["bad"], 1 << 60)
    counts.ended(*ended(iteration()), lambda: ["h0", "bad"])  # the other one says that it trains it, too
    assert len(counts.copy()) == MOST_OF_HOST + 2
    assert "train" in counts.copy()
