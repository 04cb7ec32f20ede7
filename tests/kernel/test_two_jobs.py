# SPDX-License-Identifier: Apache-2.0
"""Two training jobs on one host's link: told apart, each the other's cross traffic; then one of them loses a rank.

```
job a: h0 ⇄ h1        both of h0's directions carry both jobs
job b: h0 ⇄ h2
```
"""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from dataset_rows import stored_rows
from waiting import wait_for

from netmon.lab.monitor import Monitor
from netmon.lab.network import network
from netmon.lab.record import Run, utc_minus_mono_ns
from netmon.lab.run import LiveScores
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training
from netmon.views import Selection
from netmon.wire.questions import get_advice
from netmon.wire.watch import watch_once

pytestmark = pytest.mark.kernel

PARAMETERS = 250_000  # 1 MB sent per rank and iteration: 17 ms
JOBS = {"a": (0, 1), "b": (0, 2)}
KILLED_AFTER = 30  # iterations of b
LEFT_ALONE = 20  # iterations of a


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Both jobs train until the traffic alone shows both, too; then rank 1 of b is killed, and a goes on alone until it
    is asked to end.
    """
    data = tmp_path_factory.mktemp("jobs")
    spec = RunSpec(data, hosts=3, cross=(), parameters=PARAMETERS, rate_bps=500_000_000, iterations=10_000)
    specs = {
        "a": replace(spec, ring=JOBS["a"], job="a", compute_ns=50_000_000),
        "b": replace(spec, ring=JOBS["b"], job="b", compute_ns=140_000_000),
    }
    for job in JOBS:
        (data / "lab" / job / "log").mkdir(parents=True)
    with (
        network(spec.hosts, spec.rate_bps) as testbed,
        Monitor(spec, testbed, data / "lab") as monitor,
        LiveScores(monitor.address) as scores,
        Training(specs["a"], testbed, data / "lab" / "a") as a,
        Training(specs["b"], testbed, data / "lab" / "b", port=29_700) as b,
    ):
        wait_for(lambda: b.iterations_done() >= KILLED_AFTER)
        wait_for(lambda: all(f1_of_traffic(scores, job) > 0.5 for job in JOBS))
        advice = get_advice(monitor.address)
        killed_ns = time.monotonic_ns()
        os.kill(b.ranks[1].pid, signal.SIGKILL)
        enough = a.iterations_done() + LEFT_ALONE + 2
        wait_for(lambda: a.iterations_done() >= enough)
        for rank in a.ranks:
            rank.end()
        time.sleep(1)
        warnings = watch_once(monitor.address, Selection()).warnings
        monitor.check()
        monitor.end_in_order()
    return data, killed_ns, warnings, advice


def f1_of_traffic(scores, job):
    """Of the iterations found in the traffic alone, against the marks; how good it is, recorded runs say."""
    scored = [one for one in scores.of(job) if one["source"] == "inferred" and one["reference"] == "hook"]
    return max((one["f1"] for one in scored), default=0)


def test_every_iteration_of_both_is_found_and_none_invented(watched):
    data, *_ = watched
    iterations = stored_rows(data, "iterations")
    assert set(iterations["job"]) == {"a", "b"}
    for job in JOBS:
        truth = Run(data / "lab" / job).rank(0)
        for rank in (0, 1):
            found = iterations[(iterations["job"] == job) & (iterations["rank"] == rank)].sort_values("iteration")
            assert set(found["source"]) == {"hook"}
            # The rank may have been ended after its step was told and before it was logged, or the other way round.
            assert found["iteration"].tolist() == list(range(len(found)))
            assert abs(len(found) - len(truth)) <= 1


def test_each_is_cross_traffic_to_the_other_and_named(watched):
    data, killed_ns, *_ = watched
    iterations = stored_rows(data, "iterations")
    to_utc = utc_minus_mono_ns()
    both = iterations[(iterations["end_ns"] < killed_ns + to_utc) & (iterations["iteration"] > 5)]
    for job, other in (("a", "b"), ("b", "a")):
        on_shared = both[(both["job"] == job) & (both["rank"] == 0)]
        met = on_shared[on_shared["other_job_tx_bytes"] > 0]
        assert len(met) >= 3
        assert set(met["cross_top"]) == {f"job {other}"}
        assert (met["other_job_tx_bytes"] <= met["cross_tx_bytes"]).all()
        assert on_shared["node_shared"].any()
        alone = both[(both["job"] == job) & (both["rank"] == 1)]
        assert alone["other_job_tx_bytes"].sum() + alone["other_job_rx_bytes"].sum() == 0
        assert not alone["node_shared"].any()
        assert np.isclose(on_shared["dl_tx_bytes"].median(), 4 * PARAMETERS, rtol=0.01)


def test_rows_carry_their_own_job(watched):
    data, *_ = watched
    flows = stored_rows(data, "flows", columns=["host", "flow_id", "src", "dst"]).drop_duplicates(["host", "flow_id"])
    buckets = stored_rows(data, "buckets", columns=["host", "flow_id", "job", "class", "payload_bytes"])
    rows = buckets.merge(flows, on=["host", "flow_id"])
    for job, member in (("a", "198.18.0.2"), ("b", "198.18.0.3")):
        of_job = rows[(rows["src"] == member) | (rows["dst"] == member)]
        payload = of_job.groupby("job", observed=True)["payload_bytes"].sum()
        assert payload[job] > 0.999 * payload.sum()
        shared = of_job[of_job["class"] == "DL-shared"]
        assert set(shared["host"]) == {"h0"}


def test_the_collector_advises_on_what_they_share(watched):
    told = watched[-1]
    assert {job["job"] for job in told["jobs"]} == {"a", "b"}
    [share] = told["shares"]
    assert {share["job"], *share["others"]} == {"a", "b"}
    assert {link.split()[0] for link in share["links"]} == {"h0"}
    assert {(pair["job"], pair["source"], pair["target"]) for pair in told["pairs"]} >= {
        ("a", "rank 0 (h0)", "rank 1 (h1)"),
        ("b", "rank 1 (h2)", "rank 0 (h0)"),
    }
    assert {link["capacity_bps"] for link in told["links"]} == {500_000_000}


def test_a_rank_that_dies_leaves_nothing_but_counted_marks(watched):
    data, killed_ns, warnings, _ = watched
    iterations = stored_rows(data, "iterations")
    to_utc = utc_minus_mono_ns()
    b = iterations[iterations["job"] == "b"]
    assert b["end_ns"].max() < killed_ns + to_utc + 1_000_000_000
    assert len(iterations[(iterations["job"] == "a") & (iterations["start_ns"] > killed_ns + to_utc)]) >= LEFT_ALONE
    assert all("marks that were not used" in line for line in warnings)
