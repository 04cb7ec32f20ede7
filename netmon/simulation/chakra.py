# SPDX-License-Identifier: Apache-2.0
"""Chakra execution traces for ASTRA-sim: what each rank computed and reduced, and what had to wait for what.

An iteration is: computing until the first gradient, then one all-reduce of all gradients and, alongside it, the rest of
the backward pass (where its end is known), then the update. The simulator decides how long the all-reduce takes;
computing takes as long as it did (ASTRA-sim: "replay-only" in the system's configuration).
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from netmon.errors import DataError
from netmon.history.dataset import Window, frame_of, open_rows
from netmon.units import format_bytes

_VERSION = "0.0.4"
_COLUMNS = [
    *("job", "rank", "size", "iteration", "start_ns", "end_ns", "comm_start_ns", "comm_end_ns", "exposed_ns"),
    *("parameters", "gradient_bytes", "dl_tx_bytes"),
]
_FLOAT_BYTES = 4


def write_chakra(data: Path, window: Window, out: Path) -> str:
    """Write OUT/chakra.RANK.et of every rank of a job; what was written, in words. Raises DataError, OSError."""
    rows, left_out = _rows(data, window)
    size = int(rows["size"].iloc[0])
    reduced = _gradient_bytes(rows, size)
    out.mkdir(parents=True, exist_ok=True)
    for rank, own in rows.groupby("rank"):
        _write_rank(out / f"chakra.{rank}.et", own.sort_values("iteration"), reduced)
    number = rows["iteration"].nunique()
    without = f"; {left_out} left out, of which not every rank told when it communicated" if left_out else ""
    return f"{out}: {size} ranks, {number} iterations, {format_bytes(reduced)} reduced in each{without}"


def _rows(data: Path, window: Window) -> tuple[pd.DataFrame, int]:
    """Iterations of one job that all of its ranks report, and how many others there are. Raises DataError."""
    files, condition = open_rows(data, "iterations", window)
    rows = frame_of(files, _COLUMNS, condition, whole=True)
    if rows.empty:
        raise DataError(f"cannot write execution traces of {data}: it holds no such iteration")
    if len(jobs := sorted(set(rows["job"]))) > 1:
        raise DataError(f"cannot write execution traces of several jobs, {', '.join(jobs)}: give --job")
    rows = rows[rows["rank"] >= 0].drop_duplicates(["rank", "iteration"])
    size = max(int(rows["size"].fillna(0).max()), int(rows["rank"].max()) + 1) if len(rows) else 0
    ranks = sorted(set(rows["rank"]))
    if len(ranks) < max(2, size):
        raise DataError(
            f"cannot write execution traces: {data} tells of ranks {', '.join(map(str, ranks)) or 'none'} of {size}, "
            "and a simulator needs all"
        )
    known = rows[rows["comm_start_ns"].notna() & rows["comm_end_ns"].notna()]
    complete = known.groupby("iteration")["rank"].nunique() == size
    wanted = complete.index[complete]
    if not len(wanted):
        raise DataError(
            f"cannot write execution traces: nobody told {data} when every rank communicated (netmon.training and "
            "uprobes do)"
        )
    return known[known["iteration"].isin(wanted)].assign(size=size), rows["iteration"].nunique() - len(wanted)


def _gradient_bytes(rows: pd.DataFrame, size: int) -> int:
    """As reported, else from the parameters (float32), else from what each rank sent: 2·(N−1)/N of it (equation
    3.1)."""
    sent = size / (2 * size - 2)
    for column, factor in (("gradient_bytes", 1.0), ("parameters", _FLOAT_BYTES), ("dl_tx_bytes", sent)):
        known = rows[column].dropna().astype(np.int64)
        if len(known) and (value := int(known.median() * factor)) > 0:
            return value
    raise DataError("cannot write execution traces: the dataset does not say how much was reduced")


def _write_rank(path: Path, rows: pd.DataFrame, reduced: int) -> None:
    from chakra.schema.protobuf.et_def_pb2 import (
        ALL_REDUCE,
        COMM_COLL_NODE,
        COMP_NODE,
        AttributeProto,
        GlobalMetadata,
        Node,
    )
    from google.protobuf.proto import serialize_length_prefixed

    numbers = itertools.count(1)
    with path.open("wb") as opened:
        file: Any = opened  # the stubs ask for a BytesIO

        def add(name: str, kind: int, after: list[int], start_us: int, length_ns: int, **more: int) -> int:
            node = Node(id=next(numbers), name=name, type=kind, data_deps=after)
            node.start_time_micros, node.duration_micros = max(0, start_us), max(1, round(length_ns / 1000))
            node.attr.append(AttributeProto(name="is_cpu_op", bool_val=False))
            node.attr.extend(AttributeProto(name=key, int64_val=value) for key, value in more.items())
            serialize_length_prefixed(node, file)
            return int(node.id)

        serialize_length_prefixed(GlobalMetadata(version=_VERSION), file)
        before: list[int] = []
        begin = int(rows["start_ns"].iloc[0])
        for row in rows.to_dict("records"):
            start, end, first, last = (int(row[n]) for n in ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns"))
            exposed = last - first if row["exposed_ns"] is None else min(int(row["exposed_ns"]), last - first)
            name = f"iteration {row['iteration']}"
            us = (start - begin) // 1000
            computed = add(f"{name}: until the first gradient", COMP_NODE, before, us, first - start)
            us, reduction = (first - begin) // 1000, {"comm_type": ALL_REDUCE, "comm_size": reduced}
            waits_for = [add(f"{name}: all-reduce", COMM_COLL_NODE, [computed], us, last - first, **reduction)]
            if exposed < last - first:
                beside = f"{name}: the rest of the backward pass"
                waits_for.append(add(beside, COMP_NODE, [computed], us, last - first - exposed))
            us = (last - begin) // 1000
            before = [add(f"{name}: after the last gradient", COMP_NODE, waits_for, us, end - last)]
