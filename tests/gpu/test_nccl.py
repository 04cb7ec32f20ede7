# SPDX-License-Identifier: Apache-2.0
"""What real NCCL sends, as the probes tell it, against the meter: each rank is a host, all of them have one GPU."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median

import pandas as pd
import pytest
from conftest import Network
from dataset_rows import stored_rows
from job import PORT, Cluster, Job, lacking

from netmon.bench.transfers import Probed, counted_run_times
from netmon.kernel.machine import nccl_checks
from netmon.kernel.training import ras
from netmon.kernel.training.nccl import EACH, OPERATIONS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

KIB, MIB = 1 << 10, 1 << 20
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send_around")
SIZES = ((64 * KIB, 20), (1 * MIB, 20), (16 * MIB, 10), (100 * MIB, 3))
SEND, RECEIVE, ALL_REDUCE = 7, 8, 5  # as the table numbers them

LENGTH_BYTES, GREETING_BYTES = 4, 13
"""What NCCL's socket transport adds: before each transfer how long it is, and on each connection who it is for."""


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if reason := lacking():
        pytest.skip(reason)


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def say(text: object) -> None:
    """On the terminal, and kept where NETMON_TEST_REPORT says."""
    print(text, flush=True)
    if path := os.environ.get("NETMON_TEST_REPORT"):
        with Path(path).open("a") as file:
            print(text, file=file)


def sent_by_hosts(data: Path) -> pd.DataFrame:
    """A row per TCP connection and direction: `payload` is what was sent on it, once."""
    flows, buckets, transport = (stored_rows(data, name) for name in ("flows", "buckets", "transport"))
    of = ["host", "session", "flow_id"]
    sent = flows[(flows["direction"] == "tx") & (flows["protocol"] == 6)]
    for name, table, column in (("all", buckets, "payload_bytes"), ("again", transport, "retransmitted_bytes")):
        sums = table[table["direction"] == "tx"].groupby(of, observed=True)[column].sum()
        sent = sent.join(sums.rename(name), on=of)
    return sent.assign(payload=sent["all"].fillna(0) - sent["again"].fillna(0))


def of_transfers(payloads: list[int], sent: int, transfers: int) -> int:
    """How many of these connections, the largest first, have carried the transfers, to the byte; 0: none of them."""
    carried = 0
    for count, payload in enumerate(payloads, 1):
        carried += payload
        if carried == sent + LENGTH_BYTES * transfers + GREETING_BYTES * count:
            return count
    return 0


@pytest.mark.parametrize("size", [2, 4])
def test_transfers_are_what_the_meter_counts_between_ranks(
    tmp_path: Path, network: Network, cleanup: ExitStack, size: int
) -> None:
    cluster = Cluster(network, size, tmp_path, cleanup)
    cluster.watch()
    job = cluster.job()
    say(f"{size} ranks: {job.about[0]}")
    for agent in cluster.watchers[1:]:
        agent.wait_output(r"probing .* for what it sends", 30)
    for collective in COLLECTIVES:
        took = [f"{median(job.call(collective, bytes_, times)[0]) / 1e6:.2f} ms" for bytes_, times in SIZES]
        say(f"  {collective}: {', '.join(took)}")
    say(f"  a step of a small training: {median(job.call('train', 1024, 10)[0]) / 1e6:.1f} ms")
    time.sleep(1)
    cluster.unwatch()
    rows, connections = stored_rows(cluster.data, "transfers"), sent_by_hosts(cluster.data)
    kinds = rows.groupby(["collective", "algorithm", "protocol", "sends"])[["bytes", "transfers"]].sum()
    say(kinds.to_string())
    assert {SEND, RECEIVE, ALL_REDUCE} <= set(rows["collective"])
    numbers = {host.address: number for number, host in enumerate(cluster.hosts)}
    between = connections[connections["dst"].isin(list(numbers))]
    pairs = 0
    for (source, to), of_pair in between.groupby(["host", "dst"], observed=True):
        pair = int(source), numbers[to]
        ours, theirs = (
            rows[(rows["rank"] == rank) & (rows["peer"] == peer) & (rows["sends"] == sends)]
            for rank, peer, sends in ((*pair, 1), (*pair[::-1], 0))
        )
        sent, transfers = int(ours["bytes"].sum()), int(ours["transfers"].sum())
        assert theirs["bytes"].sum() == sent
        assert not ours["missed"].any()
        of_store = (of_pair["src_port"] == PORT) | (of_pair["dst_port"] == PORT)
        payloads = sorted(of_pair[~of_store]["payload"].astype(int), reverse=True)
        carriers = of_transfers(payloads, sent, transfers)
        others = sum(payloads[carriers:])
        say(
            f"  {pair[0]} → {pair[1]}: {sent} B in {transfers} transfers; the meter: on {carriers} connections "
            f"{sum(payloads[:carriers])} B, {LENGTH_BYTES} a transfer and {GREETING_BYTES} a connection more; on "
            f"{len(payloads) - carriers} others, of the set-up and of RAS, {others} B; sent again "
            f"{of_pair['again'].sum():.0f} B"
        )
        if sent > MIB:
            pairs += 1
            assert carriers
            assert others + LENGTH_BYTES * transfers < 1e-3 * sent
    assert pairs == (2 if size == 2 else size)  # a ring has one direction for sums, and so has sending around


def test_what_an_all_reduce_loses_to_the_probes(tmp_path: Path, network: Network, cleanup: ExitStack) -> None:
    """In turns: nothing attached, operations with the sum of their transfers, each transfer."""
    cleanup.enter_context(gpu_shared(tmp_path))
    job = Cluster(network, 2, tmp_path, cleanup).job()
    (library,) = {path for pid in job.pids for path in nccl_of(pid)}
    probed = {wanted: Probed(library, wanted) for wanted in (OPERATIONS, EACH)}
    for bytes_, times in ((MIB, 40), (16 * MIB, 20)):
        compare(job, probed, bytes_, times)


@contextmanager
def gpu_shared(folder: Path) -> Iterator[None]:
    """Ranks compute at the same time, by CUDA's multi-process service, where it is installed; else they take turns of
    milliseconds, beside which nothing else is to be seen.
    """
    if shutil.which("nvidia-cuda-mps-control") is None:
        yield
        return
    where = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    os.environ |= where
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        yield
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=True, timeout=30)
    finally:
        for name in where:
            del os.environ[name]


def test_doctor_says_where_the_ranks_are(tmp_path: Path, network: Network, cleanup: ExitStack) -> None:
    cluster = Cluster(network, 2, tmp_path, cleanup)
    job = cluster.job()
    details = [check.detail for check in nccl_checks(ras.query())]
    say(details)
    ranks = ", ".join(
        f"{rank} on {host.address} ({pid}, GPU 0)"
        for rank, (host, pid) in enumerate(zip(cluster.hosts, job.pids, strict=True))
    )
    for pid in job.pids:
        assert any(
            f"used by {pid}: {job.about[0]['nccl']}, says its RAS: of 2: rank {ranks}" in text for text in details
        )


def compare(job: Job, probed: dict[int, Probed], size: int, times: int) -> None:
    job.call("all_reduce", size, 2 * times)
    took: dict[int, list[float]] = {0: [], OPERATIONS: [], EACH: []}
    for turn in range(8):
        for wanted in (0, OPERATIONS, EACH) if turn % 2 else (EACH, OPERATIONS, 0):
            with probed[wanted].attached() if wanted else nullcontext():
                job.call("all_reduce", size, 2)
                took[wanted] += job.call("all_reduce", size, times)[0]
    alone = median(took[0])
    say(f"  an all-reduce of {size >> 10} KiB takes {alone / 1e6:.3f} ms")
    for wanted, name in ((OPERATIONS, "operations"), (EACH, "each transfer")):
        with probed[wanted].attached(), counted_run_times():
            job.call("all_reduce", size, times)
            ns, runs = probed[wanted].run_times()
        longer, events = median(took[wanted]) - alone, runs / times / 2
        say(
            f"    {name} told: {longer / 1e3:+.1f} µs, {longer / alone * 100:+.2f} %; "
            f"{events:.1f} events each on a rank, of {ns / runs:.0f} ns beside the trap"
        )
        assert longer < 5_000 * events + 0.03 * alone  # by which it varies


def nccl_of(pid: int) -> set[str]:
    """Paths of NCCL's library in a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/libnccl.so" in line}
