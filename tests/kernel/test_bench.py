# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs, says what its documentation promises, and leaves nothing behind. No time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netmon.kernel.bpf_calls import has_uprobe_links
from netmon.lab.network import PREFIX, namespaces

pytestmark = pytest.mark.kernel

BENCH = [sys.executable, "-m", "netmon", "bench"]
MEMORY = Path("/dev/shm")
CASES = {"hot_flow", "flows_64", "flows_4096", "ipv6", "vlan", "bucket_per_packet", "table_full", "ring_full"}
PROGRAMS = {"xdp", "tc_ingress", "tc_egress"}


def bench(*options: str) -> dict[str, Any]:
    done = subprocess.run([*BENCH, *options, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def belongings() -> set[str]:
    """What benchmarks have on this machine: namespaces and folders."""
    hosts = [name for name in namespaces(PREFIX) if name.endswith(("-sender", "-receiver"))]
    return {*hosts, *map(str, MEMORY.glob("netmon-bench-*"))}


@pytest.mark.long
def test_kernel() -> None:
    document = bench("kernel", "--rounds", "1")
    assert document["rounds"] == 1
    assert document["empty_ns"].keys() == document["floor_net_ns"].keys() == PROGRAMS
    cases = document["cases"]
    assert {(case["case"], case["program"]) for case in cases} == {(case, p) for case in CASES for p in PROGRAMS}
    assert all(case.keys() == {"case", "program", "ns", "net_ns", "floor_ratio", "spread"} for case in cases)


def test_what_a_post_costs_is_told_of_each_kind_and_all_of_them_are_counted() -> None:
    document = bench("posts", "--rounds", "1")
    kinds = [(cost["way"], cost["requests"], cost["parts"]) for cost in document["costs"]]
    assert kinds == [(way, *each) for way in (0, 1) for each in ((1, 1), (8, 1), (8, 8))]
    assert all(cost["program_ns"] > 0 for cost in document["costs"])
    assert document["exact"] is True


def test_what_a_transfer_of_nccl_costs_is_told_of_each_way_of_telling_it() -> None:
    if not has_uprobe_links():
        pytest.skip("this kernel cannot distinguish probes")
    document = bench("collectives", "--rounds", "1")
    assert [cost["level"] for cost in document["costs"]] == ["operations", "each transfer"]
    assert [cost["events"] for cost in document["costs"]] == [1.25, 2.25]
    assert all(cost["program_ns"] > 0 and cost["transfer_ns"] > 0 for cost in document["costs"])


def test_drain() -> None:
    document = bench("drain", "--rounds", "1")
    assert document["rounds"] == 1
    assert document["records_per_round"] > 0
    assert document.keys() == {
        *("records_per_second", "spread", "records_per_round", "sweep_us", "sweep_flows", "rounds", "many_cpus"),
    }


@pytest.mark.long
def test_overhead() -> None:
    before = belongings()
    document = bench("overhead", "--rounds", "1", "--seconds", "0.3")
    assert belongings() <= before
    assert (document["rounds"], document["seconds"]) == (1, 0.3)
    kinds = {kind["kind"]: kind for kind in document["kinds"]}
    assert list(kinds) == ["nothing", "programs", "tc", "tc_receiver", "agent", "xdp", "tcpdump"]
    assert kinds["nothing"]["ratio"] == 1
    of_all = ("kind", "gbit_per_s", "ratio", "ratio_quartiles", "machine_cpu_s_per_gb")
    of_observers = ("observer_cpu_s_per_gb", "observer_cpu_fraction", "records", "coverage")
    for name, kind in kinds.items():
        assert kind.keys() == {*of_all, *of_observers, "sent_bytes_per_s", "lost_bytes", "lost_packets"}
        assert all(kind[key] is not None for key in of_all)
        assert all((kind[key] is None) == (name in ("nothing", "programs")) for key in of_observers)
    assert kinds["agent"]["sent_bytes_per_s"] > 0
    idle = document["idle"]
    assert idle["resident_bytes"] > idle["proportional_bytes"] > 0
    assert idle["sent_bytes_per_s"] > 0
    for name in ("tc", "tc_receiver", "agent", "xdp"):
        assert kinds[name]["records"] > 0
        assert (kinds[name]["lost_bytes"], kinds[name]["lost_packets"], kinds[name]["coverage"]) == (0, None, 1)
    assert kinds["tcpdump"]["records"] > 0
    assert kinds["tcpdump"]["lost_bytes"] is None


def test_a_missing_program_is_named() -> None:
    command = [*BENCH, "overhead", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": "/nowhere"})
    assert done.returncode == 1
    assert done.stderr == "netmon: cannot measure the overhead: iperf3 is not installed; install iperf3\n"


@pytest.mark.parametrize("option", [("--rounds", "0"), ("--seconds", "0")])
def test_nothing_to_measure_is_refused(option: tuple[str, str]) -> None:
    done = subprocess.run([*BENCH, "overhead", *option], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("netmon: cannot measure")


def test_flows() -> None:
    before = belongings()
    document = bench("flows", "--rate", "8000", "--seconds", "1.5")
    assert belongings() <= before
    assert document["flows"] == 12_000
    assert document["described"] + document["members"] >= 12_000
    assert document["aggregates"] > 0
    # On a machine that stands still the ring of new flows may be full for a moment; then the ledger says so.
    assert (document["missing_packets"], document["lost_packets"]) == (0, 0)
    assert document["refused_batches"] == 0
    assert (document["coverage"] == 1) == (document["overflow_packets"] == 0)
    assert document["agent_resident_bytes"] > document["agent_bytes"] > 0
