# SPDX-License-Identifier: Apache-2.0
"""Months of jobs and ranks: what is kept is what is there, and no number is another's while somebody has it."""

import numpy as np
from collector_stream import hello

from collector.host.flows import AllFlows, FlowTable, Links, Numbered
from collector.host.tables import Tables
from collector.settings import Settings
from netmon.records import Columns, Direction, Flow, Owner


def test_a_number_is_somebody_elses_after_a_while() -> None:
    names = Numbered("")
    assert [names.number(name) for name in ("", "a", "b", "a")] == [0, 1, 2, 1]
    names.release_unused([2])
    assert names.number("c") == 3
    names.release_unused([])
    assert names.number("d") == 4  # all were in use lately
    names.release_unused([4])  # a, b: not since long ago
    assert [names.number(name) for name in ("e", "f", "g", "")] == [2, 1, 5, 0]
    assert names.values == ["", "f", "e", "c", "d", "g"]


def test_months_of_jobs_take_no_more_than_those_that_are_there() -> None:
    everything = AllFlows()
    flows = FlowTable(Links(hello()), everything, 0)

    def describe(number: int) -> int:
        owner = Owner(job=f"job-{number}", rank=number, source="test")
        flows.describe(Flow(number, 7, Direction.TX, "198.18.0.1", "198.18.0.2", 1, 2, 6, 0, owner))
        return flows.index_of(number) or 0

    lasting = describe(1)
    for number in range(2, 200):
        describe(number)
        everything.remove([flows._index.pop(number)])
        everything.release_numbers(jobs=[])
        row = everything.state[lasting]
        assert everything.jobs[row["job"]] == "job-1"
        assert everything.traffic_owners[row["traffic_owner"]].rank == 1
        assert row["rank_id"] == everything.rank_id(0, int(row["job"]), 1)
    assert max(len(everything.jobs), len(everything.traffic_owners), everything.rank_ids) <= 6


def test_rows_on_their_way_to_the_disk_keep_their_jobs_names() -> None:
    tables = Tables(Settings())
    whose = {name: tables.flows.job(name) for name in ("host", "waits", "collectives", "transfers", "rdma")}
    for name, job in whose.items():
        tables.evidence.unstored[name].add(Columns({"session": np.zeros(1, np.int32), "job": np.array([job])}))

    def hours_pass(count: int) -> None:
        for _ in range(count):
            tables._numbers_s = -np.inf
            tables.forget()

    hours_pass(4)
    assert tables.flows.job("another") not in whose.values()
    for name in whose:
        tables.evidence.unstored[name].take()
    hours_pass(2)
    assert tables.flows.job("one more") in whose.values()
