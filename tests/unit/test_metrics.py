# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told: read by its own parsers, by a real server, and by the rules and the dashboard that ship."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from collector_stream import Host, hello
from collector_thread import collecting
from in_process import JobsHere
from iteration_tables import iteration_rows
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from waiting import DIES_WITH_US, free_port, wait_for

from collector.dataset.sink import ParquetSink
from collector.host.iteration_rows import IterationRows
from collector.metrics.families import Seen, families
from collector.registry import Registry
from collector.server import serve
from collector.settings import Settings
from collector.view.job_views import BOUNDS_S, MOST_CULPRITS, MOST_JOBS, OTHER, Counts, JobCounts
from netmon.agent.metrics import AgentMetrics, AgentNews
from netmon.agent.recorder import Recorder, in_memory
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.dl.iterations import Iteration
from netmon.errors import UnsupportedError, UsageError
from netmon.records import CLASS_NAMES, Moment, Source
from netmon.service import LoopWatchdog
from netmon.telemetry.endpoint import used
from netmon.views import Cause, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.netmon_pb2_grpc import CollectorStub

PACKAGING = Path(__file__).parents[2] / "packaging"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
SLOW = Verdict("train", 7, 0, 1_600_000_000_000_000_000, 500_000_000, 1, 1, Cause.CROSS, "iperf3")


def iteration(job: str = "train", seconds: float = 0.3) -> Iteration:
    ends = 0, int(seconds * 1e9), Moment.STEP_START, Moment.STEP_END
    return Iteration(job, 0, 2, 7, *ends, Source.HOOK, 1, False, 0)


def ended(one: Iteration) -> tuple[str, IterationRows]:
    return one.job, iteration_rows([(0, one)])


def test_iterations_are_counted_by_how_long_they_took() -> None:
    counts = Counts()
    for seconds in (0.001, 0.3, 0.5, 100.0):
        counts.ended(*ended(iteration(seconds=seconds)))
    counts.judged(SLOW)
    job = counts.copy()["train"]
    assert job.iterations == [1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1]
    assert job.seconds == pytest.approx(100.801)
    assert job.verdicts == {"cross": 1}
    assert job.slow[BOUNDS_S.index(0.5)].iteration == "7"


def test_time_that_was_lost_is_counted_by_whom() -> None:
    counts = Counts()
    counts.ended(*ended(iteration()))
    for number in range(3 * MOST_CULPRITS):
        more = {"excess_ns": 10**9, "culprit": f"p{number}", "culprit_user": "ann", "sender": "h2", "receiver": "h0"}
        counts.judged(replace(SLOW, **more))
    counts.judged(replace(SLOW, cause=Cause.LOSS, culprit="", excess_ns=5 * 10**8))
    counts.judged(replace(SLOW, cause=Cause.CHANGE, excess_ns=10**9))
    counts.judged(replace(SLOW, excess_ns=-(10**9)))
    lost = counts.copy()["train"].lost_s
    assert lost["cross", "p0", "ann", "h2", "h0"] == 1
    assert lost["cross", OTHER, "", "", ""] == 2 * MOST_CULPRITS
    assert lost["loss", "", "", "", ""] == 0.5
    assert len(lost) == MOST_CULPRITS + 2
    merged = JobCounts()
    merged.add(counts.copy()["train"])
    assert merged.lost_s == lost


def test_jobs_without_number_make_no_series_without_number() -> None:
    counts = Counts()
    for number in range(10 * MOST_JOBS):
        counts.ended(*ended(iteration(f"job-{number}")))
        counts.ended(*ended(iteration(OTHER)))
    jobs = counts.copy()
    assert len(jobs) <= MOST_JOBS + 1
    assert sum(sum(job.iterations) for job in jobs.values()) == 20 * MOST_JOBS
    assert sum(jobs[OTHER].iterations) >= 10 * MOST_JOBS


class VerdictRow:
    """What a registry of ours gives, as the client's library wants it."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def test_a_slow_iteration_is_named_beside_the_histogram(tmp_path: Path) -> None:
    async def look() -> Seen:
        sink = ParquetSink(tmp_path, "")
        registry = Registry(sink, Settings(), JobsHere())
        registry.live.jobs.counts.ended(*ended(iteration('job "x"\n', seconds=0.5)))
        registry.live.jobs.counts.ended(*ended(iteration(seconds=0.5)))
        registry.live.jobs.counts.judged(SLOW)
        sink.close()
        return Seen(registry.freeze(), registry.live.jobs.counts.copy(), 3, 0.25, 7, used())

    registry = CollectorRegistry()
    registry.register(VerdictRow(list(families(asyncio.run(look())))))
    read = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    (slow,) = (sample for sample in read["netmon_iteration_seconds"].samples if sample.exemplar)
    assert slow.labels == {"job": "train", "le": "0.5"}
    assert slow.exemplar.labels == {"iteration": "7", "cause": "cross"}
    assert (slow.exemplar.value, float(slow.exemplar.timestamp)) == (0.5, 1.6e9)
    assert {sample.labels["job"] for sample in read["netmon_verdicts"].samples} == {"train", 'job "x"\n'}
    (lost,) = read["netmon_lost_seconds"].samples
    whose = {"cause": "cross", "culprit": "iperf3", "culprit_user": "", "sender": "", "receiver": ""}
    assert (lost.name, lost.labels, lost.value) == ("netmon_lost_seconds_total", {"job": "train", **whose}, 1e-9)
    assert read["netmon_collector_waiting_rows"].samples[0].value == 3


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a collector's /metrics that one agent has told of some iterations."""
    folder, port = tmp_path_factory.mktemp("metrics"), free_port()
    address, host, told = f"unix:{folder}/socket", Host(cross_from_ms=1_500), netmon_pb2.AgentMessage
    messages = [told(hello=encode_hello(hello())), *(told(batch=encode_batch(host.batch())) for _ in range(30))]
    with collecting(address, folder / "data", metrics=f"127.0.0.1:{port}"):
        with grpc.insecure_channel(address) as channel:
            for _ in CollectorStub(channel).Stream(iter(messages), wait_for_ready=True):
                pass
        yield port


def get(port: int, path: str, **query: str) -> str:
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=OPENMETRICS), timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_a_scrape_tells_of_links_jobs_and_agents(scraped: int) -> None:
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(get(scraped, "/metrics"))
        for sample in family.samples
    }
    link = ("direction", "rx"), ("host", "h0"), ("interface", "eth0")
    assert samples[("netmon_link_coverage_ratio", *link)] == 1
    assert samples[("netmon_link_attributed_bytes_total", *link)] == samples[("netmon_link_nic_bytes_total", *link)] > 0
    for place in ("overflow", "lost_kernel", "lost_agent"):
        assert samples[("netmon_link_unattributed_bytes_total", *link, ("place", place))] == 0
    for class_ in CLASS_NAMES:
        assert ("netmon_link_bits_per_second", ("class", class_), *link) in samples
    assert samples["netmon_iteration_seconds_count", ("job", "train")] >= 10
    assert samples["netmon_job_info", ("job", "train"), ("name", "train")] == 1
    assert samples["netmon_agent_resident_bytes", ("host", "h0")] == 50_000_000
    assert not any("flow" in label for name, *labels in samples for label, _ in labels)


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\bnetmon_[a-z_]+", re.sub(r"(job|link|agent|collector):\w+:\w+", "", text)))


def agents_own(tmp_path: Path) -> str:
    """What an agent tells of itself, after a batch on an interface."""
    spool = Spool(SpoolFolder(tmp_path / "spool"), "s1", 1 << 20, print)
    spool.append(1, b"a batch", b"", b"")
    wait_for(lambda: spool.spooled == 1)
    news = AgentNews({7: "eth0"})
    host = Host()
    *_, batch = (host.batch() for _ in range(5))
    news.sent(5, 100, 1_000_000, batch.clock, batch.cost, batch.ledger)
    stream = SimpleNamespace(connected=False, where="the collector at c")
    recorder = Recorder(in_memory(1 << 20), 1, 10**9, 1 << 20, 0)
    metrics = AgentMetrics("h0", news, spool, stream, recorder, os.getpid(), LoopWatchdog())
    assert metrics.condition().unready == "no connection to the collector at c; batches wait"
    news.sent_s -= 60
    assert metrics.condition().unwell.startswith("no batch was made for 60 s")
    told = generate_latest(SimpleNamespace(collect=metrics.families)).decode()
    spool.close()
    return told


def test_an_agent_tells_of_itself_without_a_collector(tmp_path: Path) -> None:
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(agents_own(tmp_path))
        for sample in family.samples
    }
    link = ("direction", "rx"), ("interface", "eth0")
    assert samples[("netmon_agent_link_wire_bytes_total", *link)] > 0
    assert samples[("netmon_agent_link_packets_total", *link)] > 0
    assert samples[("netmon_agent_link_lost_bytes_total", *link, ("place", "overflow"))] == 0
    assert samples[("netmon_agent_spool_depth_bytes",)] == 7
    assert samples[("netmon_agent_spool_memory_bytes",)] == 0
    assert samples[("netmon_agent_batches_spooled_total",)] == 1
    assert samples[("netmon_agent_helper_resident_bytes",)] > 1_000_000
    assert samples[("netmon_agent_stream_connected",)] == 0


def test_grafana_would_take_the_dashboard() -> None:
    """As its own schema has it: what is not known there would be dropped."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    written = json.loads((PACKAGING / "grafana/netmon.json").read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(written)))

    def kept(ours: object, theirs: object, where: str) -> list[str]:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return [line for name in ours for line in kept(ours[name], theirs.get(name), f"{where}.{name}")]
        if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            pairs = enumerate(zip(ours, theirs, strict=True))
            return [line for number, pair in pairs for line in kept(*pair, f"{where}[{number}]")]
        return [] if ours == theirs or not (ours or theirs) else [f"{where}: {ours} is read as {theirs}"]

    of_plugins = re.compile(r"\.(definition|titleFormat|textFormat|step): ")  # of Prometheus' own part of Grafana
    assert [line for line in kept(written, read, "") if not of_plugins.search(line)] == []


def test_rules_and_dashboard_ask_for_what_is_there(scraped: int, tmp_path: Path) -> None:
    there = {
        sample.name for family in text_string_to_metric_families(get(scraped, "/metrics")) for sample in family.samples
    } | {"netmon_exposed_communication_seconds_total", "netmon_exposed_communication_iterations_total"}
    there |= {"netmon_bus_batches", "netmon_lost_seconds_total", "netmon_job_hung_seconds"} | {
        sample.name for family in text_string_to_metric_families(agents_own(tmp_path)) for sample in family.samples
    }
    rules = (PACKAGING / "prometheus/netmon.rules.yml").read_text()
    expressions = "\n".join(re.findall(r"expr:(?: >)?((?:.*)(?:\n {10,}.*)*)", rules))
    dashboard = json.loads((PACKAGING / "grafana/netmon.json").read_text())
    assert metric_names(expressions) - there == set()
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    asked += [one["expr"] for one in dashboard["annotations"]["list"]]
    assert metric_names("\n".join(asked)) - there == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 0


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: install the package prometheus")
def test_the_rules_do_what_they_say() -> None:
    for words in (["check", "rules", "netmon.rules.yml"], ["test", "rules", "netmon.rules.test.yml"]):
        done = subprocess.run(["promtool", *words], cwd=PACKAGING / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus: install the package")
def test_a_real_prometheus_scrapes_it(scraped: int, tmp_path: Path) -> None:
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [str(PACKAGING / "prometheus/netmon.rules.yml")],
        "scrape_configs": [
            {"job_name": "netmon", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    command = [
        *DIES_WITH_US,
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}",
    ]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:

        def stored() -> bool:
            with contextlib.suppress(OSError):
                found = json.loads(get(port, "/api/v1/query", query='netmon_iteration_seconds_count{job="train"}'))
                return bool(found["data"]["result"])
            return False

        wait_for(stored)
        up = json.loads(get(port, "/api/v1/query", query="up"))["data"]["result"]
        assert [one["value"][1] for one in up] == ["1"]
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("address", ["9464", "localhost:", "localhost:http", "localhost:70000", "10.0.0.1:9464"])
def test_metrics_are_refused_where_they_cannot_be_or_should_not(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match="serve metrics on"):
        asyncio.run(serve(Settings(listen=f"unix:{tmp_path}/socket", data=tmp_path / "data", metrics=address)))


def test_a_port_in_use_is_one_line(scraped: int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot serve metrics on 127.0.0.1:{scraped}"):
        asyncio.run(
            serve(Settings(listen=f"unix:{tmp_path}/socket", data=tmp_path / "data", metrics=f"127.0.0.1:{scraped}"))
        )
