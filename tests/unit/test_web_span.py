# SPDX-License-Identifier: Apache-2.0
"""What was carried in a long time: all of it where that is little, else an estimate of bounded cost."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from netmon.views import RowQuery
from netmon.web import answers as module
from netmon.web.answers import by_process, of_span

S = 1_000_000_000
BEGIN, END = 1_000 * S, 1_600 * S


class Recorded:
    """Two processes: one sends 1,000 bytes a ms, the other one in the last 200 s of 600."""

    name = "made up"

    def __init__(self) -> None:
        self.read = 0

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        names = ["training", "backup"]
        if wanted.table == "flows":
            yield pa.RecordBatch.from_pylist(
                [
                    {"session": "s", "flow_id": n, "process": name, "user": "", "job": "", "rank": -1}
                    for n, name in enumerate(names)
                ]
            )
            return
        since, until = max(wanted.since_ns, BEGIN), min(wanted.until_ns, END)
        for begin in range(since, until, 100 * S):
            start = np.arange(-(-begin // 1_000_000) * 1_000_000, min(begin + 100 * S, until), 1_000_000)
            for flow in range(2):
                own = start[start >= END - 200 * S] if flow else start
                self.read += len(own)
                yield pa.RecordBatch.from_pydict(
                    {
                        **{"session": ["s"] * len(own), "host": ["h"] * len(own), "direction": ["tx"] * len(own)},
                        **{"flow_id": np.full(len(own), flow), "class": ["cross"] * len(own)},
                        **{"bucket_start_ns": own, "wire_bytes": np.full(len(own), 1_000)},
                    }
                )


def test_of_little_all_is_added_up() -> None:
    found = of_span(Recorded(), ["h"], BEGIN + 300 * S, END)
    assert found["read_ns"] == 300 * S
    found = {one["name"]: (one["now"], one["before"]) for one in found["processes"]}
    assert found == {"training": (300_000_000, 300_000_000), "backup": (200_000_000, 0)}
    head, columns = by_process(Recorded(), "h", BEGIN, END, 600)
    assert (head["names"], head["bins"], head["read_ns"]) == (["training", "backup"], 600, 600 * S)
    rates = columns["rate_bps"].reshape(2, 2, 600)
    assert np.allclose(rates[0, 1], 8e6)
    assert np.allclose(rates[1, 1, 400:], 8e6)
    assert not rates[1, 1, :400].any()


def test_of_much_a_part_is_read_and_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 50_000)
    rows = Recorded()
    found = of_span(rows, ["h"], BEGIN + 300 * S, END)
    assert 0 < found["read_ns"] < 30 * S
    assert rows.read < 300_000, "up to the bound, then as much again; batches are of 100 s"
    found = {one["name"]: (one["now"], one["before"]) for one in found["processes"]}
    assert found["training"] == pytest.approx((300e6, 300e6), rel=0.02)
    assert found["backup"] == pytest.approx((200e6, 0), rel=0.02)
    head, columns = by_process(Recorded(), "h", BEGIN, END, 600)
    assert (head["names"], head["bins"]) == (["training", "backup"], module.SAMPLES)
    rates = columns["rate_bps"].reshape(2, 2, -1)
    assert np.allclose(rates[0, 1], 8e6, rtol=0.02)
    assert np.allclose(rates[1, 1, 40:], 8e6, rtol=0.02)
    assert not rates[1, 1, :40].any()


def test_many_flows_are_added_up_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TOGETHER", 10)
    found = of_span(Recorded(), ["h"], BEGIN + 300 * S, END)
    assert sum(one["now"] for one in found["processes"]) == 500_000_000
