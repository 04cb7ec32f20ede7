# SPDX-License-Identifier: Apache-2.0
"""What NCCL's proxies send: rows that become fewer and lose no byte, libraries and answers that are nonsense."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.agent.transfers import _COARSER, Transfers, _rows, merged
from netmon.errors import KernelError
from netmon.evidence import TRANSFERS, UNKNOWN
from netmon.kernel.training.nccl import checked
from netmon.kernel.training.nccl_layout import FIELDS, read_library
from netmon.records import TRANSFER, TRANSFER_OPERATION, TRANSFER_OPERATIONS

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(0, 1), st.integers(0, 1 << 20), st.integers(0, 3)),
    max_size=30,
)


@given(ROWS, st.sampled_from(_COARSER))
def test_rows_of_one_kind_become_one_and_no_byte_is_lost(few: list[tuple[int, ...]], names: tuple[str, ...]) -> None:
    rows = np.zeros(len(few), TRANSFERS)
    for number, (pid, peer, sends, bytes_, transfers) in enumerate(few):
        row = rows[number]
        row["pid"], row["peer"], row["sends"], row["transfers"] = pid, peer, sends, transfers
        row["missed"] = transfers == 0
        row["bytes"] = bytes_ if transfers else UNKNOWN
        row["start_ns"], row["end_ns"], row["operations"] = 100 + number, 200 + number, 1
    if not few:
        return
    one = merged(rows, names)
    assert len(one) == len(np.unique(rows[list(names)]))
    for name in ("transfers", "missed", "operations"):
        assert one[name].sum() == rows[name].sum()
    assert np.maximum(one["bytes"], 0).sum() == np.maximum(rows["bytes"], 0).sum()
    assert ((one["bytes"] == UNKNOWN) == (one["transfers"] == 0)).all()
    assert one["start_ns"].min() == 100
    assert one["end_ns"].max() == 199 + len(few)
    level = TRANSFER_OPERATION if "number" in names else TRANSFER_OPERATIONS
    assert (one["level"][one["operations"] > 1] == level).all()


def test_what_no_nccl_says_is_unknown() -> None:
    told = np.zeros(2, TRANSFER)
    told["rank"], told["peer"], told["device"] = (-1, 3), (1 << 30, 4), (-7, 5)
    told["bytes"], told["number"] = ((1 << 64) - 1, 17), ((1 << 64) - 1, 18)
    told["missed"] = (2, 0)
    rows = _rows(told)
    assert rows[["group_rank", "peer", "device"]].tolist() == [(-1, -1, -1), (3, 4, 5)]
    assert rows["bytes"].tolist() == [UNKNOWN, 17]
    assert rows["number"][0] > 1 << 40


def test_there_is_nothing_without_a_library() -> None:
    transfers = Transfers({})
    assert transfers.level == 0
    assert not len(transfers.due({}))


ANSWER: dict[str, Any] = {
    "layout": {**dict.fromkeys(FIELDS, 8), "sub_bytes": 100, "subs": 4}
    | dict.fromkeys(("sent", "awaited", "received", "total"), 0),
    "probes": {"nccl_over": [100]},
    "collectives": {"4": 5},
    "algorithms": {},
}


def test_an_answer_of_the_right_form_is_taken() -> None:
    assert checked(ANSWER)["collectives"] == {4: 5}


@pytest.mark.parametrize(
    "changed",
    [
        {"layout": None},
        {"layout": {**ANSWER["layout"], "size": -1}},
        {"layout": {**ANSWER["layout"], "size": 1 << 40}},
        {"layout": {**ANSWER["layout"], "subs": 0}},
        {"layout": {**ANSWER["layout"], "more": 1}},
        {"layout": {name: 0 for name in ANSWER["layout"] if name != "size"}},
        {"layout": {**ANSWER["layout"], "sent": "x"}},
        {"probes": {"another": [1]}},
        {"probes": {"nccl_over": []}},
        {"probes": {"nccl_over": list(range(1000))}},
        {"collectives": {"99": 1}},
        {"algorithms": {"1": 300}},
        {"algorithms": [1]},
    ],
)
def test_an_answer_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(KernelError):
        checked(ANSWER | changed)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(200), os.urandom(4096)])
def test_what_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(content)
    with open(tmp_path / "libnccl.so.2", "rb") as file, pytest.raises((ValueError, OSError)):
        read_library(file.fileno())
