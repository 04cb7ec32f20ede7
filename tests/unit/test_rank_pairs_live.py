# SPDX-License-Identifier: Apache-2.0
"""What a collector shows of what ranks send each other by NCCL."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from test_rank_pairs import a_ring

from collector.host.tables import Lately
from collector.view.view import RankPairs
from netmon.records import Columns, Direction

S = 1_000_000_000


class Flows:
    """One of each host; ranks are sessions."""

    jobs = ("", "train")
    state = np.array(
        [(1, rank, 2 * 0 + Direction.TX) for rank in range(3)], [("job", "<i8"), ("rank", "<i8"), ("link", "<i8")]
    )
    keys = SimpleNamespace(find=lambda session, flow_id: np.where(flow_id == 1, session, -1))


def a_collector(ago_ns: int = S) -> tuple[RankPairs, dict[str, Lately]]:
    lately = {name: Lately() for name in ("transfers", "rdma", "transport")}
    tables: Any = SimpleNamespace(
        evidence=SimpleNamespace(lately=lately),
        flows=Flows(),
        sessions=SimpleNamespace(utc=lambda session, mono_ns: mono_ns),
    )
    links = SimpleNamespace(interface=lambda number: SimpleNamespace(name=f"eth{number}"))
    sessions: Any = {n: SimpleNamespace(window=SimpleNamespace(links=links)) for n in range(3)}
    now = time.time_ns() - ago_ns
    add(
        lately["transfers"],
        [row | {"session": row["rank"], "pid": 10 + row["rank"]} for row in a_ring([0, 1, 2], at_ns=now)],
    )
    same = {"end_ns": now, "bytes": 2500, "rdma_device": "mlx5_0"}
    add(lately["rdma"], [same | {"session": 0, "pid": 10, "verb": verb} for verb in ("write", "send", "read")])
    sent = {"session": 2, "flow_id": 1, "end_ns": now, "sent_bytes": 6000, "retransmitted_bytes": 1000}
    add(lately["transport"], [sent, sent | {"flow_id": 2, "sent_bytes": 10**9}, sent | {"end_ns": now - 60 * S}])
    return RankPairs(tables, sessions), lately


def add(table: Lately, rows: list[dict[str, Any]]) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    words = {"verb", "rdma_device"}
    table.append(Columns({name: np.array(own, object if name in words else np.int64) for name, own in columns.items()}))


def test_pairs_with_their_ways() -> None:
    pairs, _ = a_collector()
    found = pairs.due({"train": 3})
    assert found is not None
    assert [(pair.rank, pair.peer, pair.bytes, pair.transport, pair.interface) for pair in found["train"]] == [
        (0, 1, 5000, "RDMA", "mlx5_0"),
        (1, 2, 5000, "", ""),
        (2, 0, 5000, "sockets", "eth1"),
    ]
    assert pairs.due({"train": 3}) is None  # it has just been looked at


def test_what_has_long_been_over_is_not_shown() -> None:
    pairs, _ = a_collector(30 * S)
    assert pairs.due({}) == {}
    pairs, lately = a_collector()
    lately["transfers"] = Lately()
    assert pairs.due({}) == {}
