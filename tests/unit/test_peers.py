# SPDX-License-Identifier: Apache-2.0
"""Processes that are no ranks and serve some: whose their traffic is."""

import asyncio
from dataclasses import replace

from collector_stream import MS, TrainingAgent, clock, hello, rows
from in_process import take
from test_store import Collector, read

from netmon.records import Batch, Direction, Flow, Mark, Moment, Owner, Source

RANK0, RANK1, NEIGHBOUR, STORAGE = "198.18.0.1", "198.18.0.2", "198.18.0.3", "198.18.0.4"
LAUNCHER = Owner(20, "horovodrun", source="listener")
S = 1000 * MS


def rank(number):
    return Owner(10, "python", "", "bert", number, "connect")


def flow(number, direction, owner, src, dst, dst_port):
    return Flow(number, 7, direction, src, dst, 40000 + number, dst_port, 6, 0, owner)


def batch(sequence, flows=(), rows_of=()):
    table = rows(*((number, 100 * sequence - 50, 700) for number in rows_of))
    return Batch(sequence, clock(100 * sequence * MS), 100 * sequence * MS, table, flows)


HOSTS = {  # what each agent describes, in the order in which the collector hears it; the rank's end comes last
    "h0": [
        flow(1, Direction.RX, LAUNCHER, RANK1, RANK0, 8572),
        flow(2, Direction.RX, LAUNCHER, NEIGHBOUR, RANK0, 8573),
        flow(3, Direction.TX, rank(0), RANK0, RANK1, 29500),
    ],
    "h3": [flow(4, Direction.RX, Owner(30, "nfsd", source="socket"), RANK1, STORAGE, 2049)],
    "h1": [
        flow(1, Direction.TX, rank(1), RANK1, RANK0, 8572),
        flow(3, Direction.RX, rank(1), RANK0, RANK1, 29500),
        flow(4, Direction.TX, rank(1), RANK1, STORAGE, 2049),
    ],
}


def collected(directory, again=()):
    """again: what h0 describes later."""

    async def scenario():
        collector = Collector(directory)
        entries = {h: await collector.registry.open(hello(host=h, session=f"s{h}"), asyncio.Event()) for h in HOSTS}
        for sequence in range(1, 30):
            for host, entry in entries.items():
                described = HOSTS[host] if sequence == 1 else again if (host, sequence) == ("h0", 3) else ()
                numbers = [flow.flow_id for flow in HOSTS[host]]
                sent = batch(sequence, described, numbers)
                take(collector.registry, entry, sent)
        first, *others = entries.values()
        for entry in others:
            collector.registry.settle(entry, leaving=True)
        await collector.end(first)

    asyncio.run(scenario())
    return read(directory, "flows").set_index(["host", "flow_id"])


def test_who_serves_a_job_beside_its_ranks_works_for_it(tmp_path):
    flows = collected(tmp_path)
    told = ["class", "class_source", "job", "rank", "peer_rank", "process", "pid"]
    assert flows.loc[("h0", 1), told].tolist() == ["DL-only", "peer", "bert", -1, 1, "horovodrun", 20]
    assert flows.loc[("h0", 2), told[:3]].tolist() == ["cross", "listener", ""]
    assert flows.loc[("h3", 4), told[:3]].tolist() == ["cross", "socket", ""]
    buckets = read(tmp_path, "buckets").groupby(["host", "flow_id"], observed=True)
    assert {key: set(rows["class"]) for key, rows in buckets if key[0] != "h1"} == {
        ("h0", 1): {"DL-only"},
        ("h0", 2): {"cross"},
        ("h0", 3): {"DL-only"},
        ("h3", 4): {"cross"},
    }
    assert set(buckets.get_group(("h0", 1))["job"]) == {"bert"}


def test_it_stays_so_when_more_is_known_of_the_process(tmp_path):
    closed = replace(HOSTS["h0"][0], owner=replace(LAUNCHER, pid=21, source="close"))
    flows = collected(tmp_path, again=(closed,))
    assert flows.loc[("h0", 1), ["class_source", "job", "pid"]].tolist() == ["peer", "bert", 21]


def test_a_rank_stays_a_rank(tmp_path):
    """As when a process says of itself that it is one, having been asked for before."""
    joined = replace(HOSTS["h0"][0], owner=rank(0))
    flows = collected(tmp_path, again=(joined,))
    assert flows.loc[("h0", 1), ["class_source", "job", "rank"]].tolist() == ["connect", "bert", 0]


def test_a_process_that_serves_another_job_of_the_same_name_is_not_this_ones(tmp_path):
    other = replace(rank(0), pid=11)
    described = {
        "h0": [
            flow(1, Direction.RX, LAUNCHER, RANK1, RANK0, 8572),
            flow(3, Direction.TX, rank(0), RANK0, NEIGHBOUR, 29500),
        ],
        "h1": [flow(1, Direction.TX, other, RANK1, RANK0, 8572)],
    }

    async def scenario():
        collector = Collector(tmp_path)
        entries = {h: await collector.registry.open(hello(host=h, session=f"s{h}"), asyncio.Event()) for h in described}
        agents = {host: TrainingAgent() for host in described}
        for sequence in range(1, 30):
            for (host, entry), pid in zip(entries.items(), (10, 11), strict=True):
                marks = [
                    Mark("bert", 0, 2, pid, max(k, 0), moment, (100 * sequence - 90 + after) * MS, Source.HOOK, 0)
                    for k, moment, after in (
                        *([(0, Moment.JOIN, 0)] if sequence == 1 else []),
                        (sequence, Moment.STEP_START, 0),
                        (sequence, Moment.STEP_END, 80),
                    )
                ]
                numbers = [flow.flow_id for flow in described[host]]
                sent = batch(sequence, described[host] if sequence == 1 else (), numbers)
                take(collector.registry, entry, replace(sent, training=agents[host].training(marks)))
        first, second = entries.values()
        collector.registry.settle(second, leaving=True)
        await collector.end(first)

    asyncio.run(scenario())
    flows = read(tmp_path, "flows").set_index(["host", "flow_id"])
    assert flows.loc[("h1", 1), "job"] == "bert#2"
    assert flows.loc[("h0", 1), ["class", "class_source", "job"]].tolist() == ["cross", "listener", ""]
