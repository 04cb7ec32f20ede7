# SPDX-License-Identifier: Apache-2.0
"""The account of iterations, held against one that is added up row by row."""

from itertools import pairwise

import numpy as np
import pytest

from netmon.dl.account import HostAccounts, TrafficOwner, TrafficQuery, row_keys
from netmon.dl.classify import NS_PER_S, Rows, Traffic, row_classes, share_windows
from netmon.records import Class

MS = 1_000_000
WINDOW_NS = 5 * MS
HOSTS = 3
OWNERS = [
    *(TrafficOwner("a", 0, "job a"), TrafficOwner("a", 1, "job a"), TrafficOwner("b", 0, "job b")),
    *(TrafficOwner("", -1, "iperf3"), TrafficOwner("", -1, "curl"), TrafficOwner("", -1, "")),
]
JOBS = {"a": 1, "b": 2}
CAPACITY_BPS = 1_000_000_000


def some_rows(random, count):
    """Rows of all hosts, two links each, by time; traffic_owner 5 is nobody's."""
    table = {
        "host": random.integers(0, HOSTS, count),
        "time_ns": np.sort(random.integers(0, 2000, count)) * MS,
        "traffic_owner": random.integers(0, len(OWNERS), count),
        "way": random.integers(0, 2, count),
        "payload": random.integers(0, 3, count) * 40_000,
    }
    table["link"] = table["host"] * 2 + table["way"]
    dl = table["traffic_owner"] < 3
    table["traffic"] = np.where(dl, random.integers(0, len(Traffic), count), Traffic.UNKNOWN)
    own = np.where(dl, Class.DL_ONLY, np.where(table["traffic_owner"] < 5, Class.CROSS, Class.UNCLASSIFIED))
    table["own_class"] = own.astype(np.uint8)
    return table


def add(accounts, rows, until_ns):
    """As the host stage does; returns windows and classes."""
    job = np.array([JOBS.get(traffic_owner.job, 0) for traffic_owner in OWNERS])[rows["traffic_owner"]]
    gradient = (rows["own_class"] == Class.DL_ONLY) & (rows["traffic"] == Traffic.GRADIENT)
    asked = Rows(
        *(rows["time_ns"], rows["link"], rows["own_class"], job, gradient),
        *(rows["payload"] + 66, rows["payload"]),
    )
    windows = share_windows(asked, np.full(2 * HOSTS, CAPACITY_BPS), WINDOW_NS, 0.02)
    classes = row_classes(asked, windows)
    keys = row_keys(rows["traffic_owner"], classes, rows["traffic"], rows["way"])
    until = np.full(HOSTS, until_ns)
    accounts.payload.add(rows["host"], rows["time_ns"], keys, rows["payload"], until)
    accounts.windows.add(windows, np.repeat(np.arange(HOSTS), 2), np.ones(HOSTS, np.bool_), until)
    return windows, classes


def tallied(accounts, asked):
    columns = accounts.tally(TrafficQuery(*map(np.array, zip(*asked, strict=True))), OWNERS, ["", *JOBS])
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def expected(asked, rows, classes, windows):
    """The account, row by row."""
    sums = {
        f"{what}_{way}_bytes": 0
        for what in ("dl", "dl_shared", "dl_control", "cross", "other_job", "unclassified")
        for way in ("rx", "tx")
    }
    by_name, own = {}, (["", *JOBS][asked.job], asked.rank)
    inside = (rows["host"] == asked.host) & (rows["time_ns"] >= asked.start_ns) & (rows["time_ns"] < asked.end_ns)
    for row in np.flatnonzero(inside & (rows["payload"] > 0)).tolist():
        whose, way = OWNERS[rows["traffic_owner"][row]], ("rx", "tx")[rows["way"][row]]
        payload, class_ = int(rows["payload"][row]), classes[row]
        dl = class_ in (Class.DL_ONLY, Class.DL_SHARED)
        other = dl and whose.job != own[0]
        for what, counts in (
            ("dl", dl and whose[:2] == own),
            ("dl_shared", class_ == Class.DL_SHARED and whose[:2] == own),
            ("dl_control", dl and whose[:2] == own and rows["traffic"][row] == Traffic.CONTROL),
            ("cross", other or class_ == Class.CROSS),
            ("other_job", other),
            ("unclassified", class_ == Class.UNCLASSIFIED),
        ):
            sums[f"{what}_{way}_bytes"] += payload * bool(counts)
        if other or class_ == Class.CROSS:
            by_name.setdefault(whose.name, {"rx": 0, "tx": 0})[way] += payload
    top = max(by_name, key=lambda name: (sum(by_name[name].values()), name), default="")
    moved = by_name.get(top, {"rx": 0, "tx": 0})
    seen = windows.link // 2 == asked.host
    seen &= windows.number >= asked.start_ns // WINDOW_NS
    seen &= windows.number <= (asked.end_ns - 1) // WINDOW_NS
    peak = int(windows.wire_bytes[seen].max(initial=0)) * 8 * NS_PER_S // WINDOW_NS
    return sums | {
        **{"cross_top": top, "cross_top_tx_bytes": moved["tx"], "cross_top_rx_bytes": moved["rx"], "peak_bps": peak},
        "node_shared": not asked.alone and bool(windows.shared(asked.job)[seen].any()),
    }


@pytest.mark.parametrize("seed", range(6))
def test_many_iterations_at_once_have_the_account_of_each(seed):
    random = np.random.default_rng(seed)
    rows = some_rows(random, 1500)
    accounts = HostAccounts()
    asked = []
    for _ in range(40):
        whose = OWNERS[random.integers(0, 3)]
        start, end = np.sort(random.choice(2000, 2, replace=False)) * MS
        host, alone = int(random.integers(0, HOSTS)), bool(random.integers(0, 4) == 0)
        asked.append(TrafficQuery(host, WINDOW_NS, JOBS[whose.job], whose.rank, int(start), int(end), alone))
    for one in asked:
        accounts.payload.cut_all(one.host, [one.start_ns, one.end_ns])
    seen = []
    cuts = np.searchsorted(rows["time_ns"], np.array([0, 500, 1000, 1500, 2001]) * MS)  # of whole windows
    for number, (begin, end) in enumerate(pairwise(cuts)):
        part = {name: column[begin:end] for name, column in rows.items()}
        seen.append((part, *reversed(add(accounts, part, (number + 1) * 500 * MS))))
    classes = np.concatenate([classes for _, classes, _ in seen])
    whole, _ = add(HostAccounts(), rows, 2000 * MS)
    tallies = tallied(accounts, asked)
    assert tallies == [expected(one, rows, classes, whole) for one in asked]
    accounts.payload.forget(np.full(HOSTS, 0), np.full(HOSTS, 10**12))
    accounts.windows.forget(np.full(HOSTS, 0), np.full(HOSTS, WINDOW_NS))
    assert tallied(accounts, asked) == tallies


def test_a_partys_number_may_be_anothers_later():
    def column(value):
        return np.full(1, value)

    accounts, cross = HostAccounts(), np.full(1, Class.CROSS, np.uint8)
    asked = TrafficQuery(*map(column, (0, WINDOW_NS, 1, 0, 0, 100 * MS, False)))
    traffic_owners = [TrafficOwner("", -1, "iperf3"), TrafficOwner("", -1, "curl")]
    keys = row_keys(column(0), cross, np.zeros(1, np.uint8), column(1))
    accounts.payload.add(column(0), column(5 * MS), keys, column(1000), column(200 * MS))
    assert accounts.tally(asked, traffic_owners, ["", "a"])["cross_top"].tolist() == ["iperf3"]
    traffic_owners[0] = TrafficOwner("a", 0, "job a")
    assert accounts.tally(asked, traffic_owners, ["", "a"])["cross_top"].tolist() == ["job a"]
