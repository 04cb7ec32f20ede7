# SPDX-License-Identifier: Apache-2.0
"""A real elastic job, started by horovodrun: a worker dies, the others get new ranks, and another one joins.

The script is an ordinary one, and each worker writes its iterations down. A worker on another host is started by `ssh`:
here that is a command which goes into the host's namespace.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from netmon.lab.monitor import Monitor
from netmon.lab.network import INTERFACE, Network, network
from netmon.lab.process import Process
from netmon.lab.record import utc_minus_mono_ns
from netmon.lab.spec import RunSpec
from netmon.lab.training import horovod_python
from netmon.views import Selection
from netmon.wire.watch import watch_once

pytestmark = pytest.mark.kernel

SCRIPT = """
import os, sys, time, torch, horovod.torch as hvd
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
log = open(f"{sys.argv[1]}/{os.environ['HOROVOD_HOSTNAME']}-{os.getpid()}.csv", "w", buffering=1)

def enough():
    path = f"{sys.argv[1]}/enough"
    return int(open(path).read()) if os.path.exists(path) else sys.maxsize

@hvd.elastic.run
def train(state):
    while state.batch < enough():
        optimizer.zero_grad()
        loss = model(torch.randn(2, 100)).sum()
        time.sleep(0.05)
        enqueue = time.monotonic_ns()
        loss.backward()
        optimizer.synchronize()
        wait = time.monotonic_ns()
        with optimizer.skip_synchronize():
            optimizer.step()
        log.write(f"{hvd.rank()},{hvd.size()},{state.batch},{enqueue},{wait}\\n")
        state.batch += 1
        state.commit()

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))
"""
SSH = """#!/bin/bash
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
exec ip netns exec "{namespaces}$host" bash -c "$*"
"""
COLUMNS = ["rank", "size", "iteration", "enqueue_ns", "wait_ns"]
WHOSE = ["host", "rank", "iteration"]
PATIENCE_S = 90
MILLISECOND = 1_000_000


def logged(folder: Path) -> pd.DataFrame:
    """What all workers have written down so far."""
    tables = []
    for path in folder.glob("*.csv"):
        host, pid = path.stem.split("-")
        tables.append(pd.read_csv(path, names=COLUMNS).assign(host=host, pid=int(pid)))
    return pd.concat(tables) if tables else pd.DataFrame(columns=[*COLUMNS, "host", "pid"])


class Job:
    """horovodrun and the job that it keeps alive, on the hosts named in a file."""

    def __init__(self, testbed: Network, folder: Path) -> None:
        python, script, bin_ = Path(horovod_python()), folder / "train.py", folder / "bin"
        script.write_text(SCRIPT)
        bin_.mkdir()
        self._folder, self._hosts = folder, folder / "hosts"
        namespaces = testbed.hosts[0].namespace.removesuffix("h0")
        for name, text in (("ssh", SSH.format(namespaces=namespaces)), ("hosts", f"#!/bin/sh\ncat {self._hosts}\n")):
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        self.run_on("h0", "h1", "h2")
        command = [str(python.parent / "horovodrun"), "--gloo", "-np", "3", "--min-np", "2", "--max-np", "3"]
        command += ["--network-interfaces", INTERFACE, "--host-discovery-script", str(bin_ / "hosts")]
        environment = {"PATH": f"{bin_}:{python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        environment["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "10"  # so long workers look for each other
        command += [str(python), str(script), str(folder)]
        self.launcher = Process("horovodrun", command, folder / "log", host=testbed.hosts[0], environment=environment)

    def run_on(self, *hosts: str) -> None:
        self._hosts.write_text("".join(f"{host}:1\n" for host in hosts))

    def wait(self, reached: Callable[[pd.DataFrame], bool]) -> pd.DataFrame:
        deadline = time.monotonic() + PATIENCE_S
        while not reached(log := logged(self._folder)):
            waiting = self.launcher.status() is None and time.monotonic() < deadline
            assert waiting, self.launcher.output()[-2000:]
            time.sleep(0.1)
        return log

    def kill(self, rank: int) -> None:
        """Between two iterations, so that the others have written down the same ones."""
        log = self.wait(lambda log: rank in set(log["rank"]))
        host, pid = log[log["rank"] == rank][["host", "pid"]].iloc[-1]
        lines = self._folder / f"{host}-{pid}.csv"
        size = lines.stat().st_size
        while lines.stat().st_size == size:
            time.sleep(0.001)
        time.sleep(0.02)
        os.kill(int(pid), signal.SIGKILL)

    def end(self) -> None:
        """All after the same iteration, which none has come to yet."""
        last = logged(self._folder)["iteration"].max() + 10
        (self._folder / "soon").write_text(str(last))
        (self._folder / "soon").rename(self._folder / "enough")
        deadline = time.monotonic() + PATIENCE_S
        while self.launcher.status() is None and time.monotonic() < deadline:
            time.sleep(0.1)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    data = tmp_path_factory.mktemp("elastic")
    spec, folder = RunSpec(data, trainer="horovod", hosts=4, cross=()), data / "lab"
    (folder / "log").mkdir(parents=True)
    with network(spec.hosts, spec.rate_bps) as testbed, Monitor(spec, testbed, folder / "log") as monitor:
        job = Job(testbed, folder)
        with job.launcher:
            job.wait(lambda log: (log["size"] == 3).sum() >= 24)
            job.kill(rank=0)
            job.wait(lambda log: (log["size"] == 2).sum() >= 16)
            job.run_on("h0", "h1", "h2", "h3")  # a host on which a worker died is not asked again so soon
            job.wait(lambda log: (log["host"] == "h3").sum() >= 8)
            job.end()
            assert job.launcher.status() == 0, job.launcher.output()[-2000:]
        warnings = watch_once(monitor.address, Selection()).warnings
        monitor.check()
        monitor.end_in_order()
    log = logged(folder).sort_values(["host", "enqueue_ns"], ignore_index=True)
    found = pd.read_parquet(data / "iterations").astype({"host": str})  # a category is sorted by its codes
    return log, found.sort_values(["host", "start_ns"], ignore_index=True), warnings


def test_every_iteration_of_every_worker_is_found_as_the_rank_that_it_had(watched):
    log, found, _ = watched
    assert log.groupby("host")["rank"].nunique().max() == 2  # somebody was given another one
    assert found["job"].nunique() == 1
    assert set(found["source"]) == {"uprobe"}
    assert found[WHOSE].to_dict("list") == log[WHOSE].to_dict("list")
    assert found["size"].tolist() == log["size"].tolist()


def test_an_iteration_ends_before_the_job_is_set_up_anew(watched):
    log, found, _ = watched
    to_utc = utc_minus_mono_ns()
    following = found.shift(-1)
    anew = (found["host"] == following["host"]) & (found["size"] != following["size"])
    assert anew.sum() == 4  # two workers, twice
    assert (found["end_ns"] < following["start_ns"])[anew].all()
    assert (found["comm_end_ns"] - to_utc - log["wait_ns"]).abs().median() < MILLISECOND


def test_nothing_is_left_of_the_ranks_that_were(watched):
    _, _, warnings = watched
    assert [line for line in warnings if "numbered anew" not in line] == []
