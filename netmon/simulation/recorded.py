# SPDX-License-Identifier: Apache-2.0
"""What was sent, each byte once: as its sender saw it, or its receiver where the sender was not watched."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.errors import DataError
from netmon.history.dataset import all_of, frame_of, open_table, stream
from netmon.history.frames import plain_words
from netmon.history.selection import Window, open_rows
from netmon.records import PROTOCOL_NON_IP
from netmon.units import format_count

FLOW = ["session", "flow_id"]
TUPLE = ["src", "dst", "src_port", "dst_port", "protocol"]
_BUCKET = [*FLOW, "bucket_start_ns", "bucket_ns", "packets", "wire_bytes", "payload_bytes"]
_DESCRIBED = [*FLOW, "host", "direction", *TUPLE, "job", "rank", "peer_rank", "traffic", "members"]
MOST_ROWS = 20_000_000

Numbers = npt.NDArray[np.int64]


def flows_of(data: Path, window: Window) -> pd.DataFrame:
    """The flows that are to be played again, by session and flow_id; without those that another host tells, too.

    Aggregates, which stand for many flows, and what is not IP are left out. Raises DataError.
    """
    table = open_table(data, "flows")
    names = [name for name in _DESCRIBED if name in table.schema.names]
    condition = all_of(
        [
            *([ds.field("job") == window.job] if window.job is not None else []),
            *([ds.field("host").isin(window.hosts)] if window.hosts else []),
        ]
    )
    flows = frame_of(stream(table, names, condition), _DESCRIBED, whole=True)
    if flows.empty:
        raise DataError(f"cannot play {data} again: it tells of no flow there")
    flows = flows.drop_duplicates(FLOW, keep="last")
    flows = flows[~(flows["members"].fillna(0).astype(int) > 0) & (flows["protocol"] != PROTOCOL_NON_IP)]
    sent = pd.MultiIndex.from_frame(flows.loc[flows["direction"] == "tx", TUPLE])
    twice = (flows["direction"] == "rx") & pd.MultiIndex.from_frame(flows[TUPLE]).isin(sent)
    return flows[~twice].reset_index(drop=True)


def buckets_of(data: Path, window: Window, flows: pd.DataFrame, columns: Sequence[str] = _BUCKET) -> pd.DataFrame:
    """Their rows, by time, with `flow`: the place of each row's flow in `flows`. Raises DataError: none, too many."""
    if flows.empty:
        raise DataError(f"cannot play {data} again: none of its flows there can be played")
    files, condition = open_rows(data, "buckets", window)
    sessions = pa.array(flows["session"].unique().tolist())
    number = pd.Series(np.arange(len(flows)), pd.MultiIndex.from_frame(flows[FLOW]))
    pieces, rows = list[pd.DataFrame](), 0
    for batch in stream(files, list(columns), condition):
        own = batch.filter(pc.is_in(batch["session"].cast(pa.string()), sessions))
        frame = plain_words(pa.Table.from_batches([own]).to_pandas())
        frame["flow"] = number.reindex(pd.MultiIndex.from_frame(frame[FLOW])).to_numpy()
        frame = frame[frame["flow"].notna()].drop(columns=FLOW)
        pieces.append(frame.astype({"flow": np.int64}))
        rows += len(frame)
        if rows > MOST_ROWS:
            raise DataError(
                f"cannot play more than {format_count(MOST_ROWS)} rows of {data} again: select less with --since and "
                "--until, --iterations, --job or --host"
            )
    if not rows:
        raise DataError(f"cannot play {data} again: it holds no traffic there")
    return pd.concat(pieces, ignore_index=True).sort_values("bucket_start_ns", kind="stable", ignore_index=True)


def pieces_of(buckets: pd.DataFrame, silence_ns: int) -> pd.DataFrame:
    """What each flow sent without falling silent: flow, start_ns, end_ns, payload_bytes, wire_bytes; by time."""
    rows = buckets[buckets["payload_bytes"] > 0].sort_values(["flow", "bucket_start_ns"], kind="stable")
    flow, start = rows["flow"].to_numpy(), rows["bucket_start_ns"].to_numpy(np.int64)
    end = start + rows["bucket_ns"].to_numpy(np.int64)
    if not len(rows):
        return pd.DataFrame(columns=["flow", "start_ns", "end_ns", "payload_bytes", "wire_bytes"])
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (np.diff(flow) != 0) | (start[1:] - end[:-1] > silence_ns)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(rows)) - 1
    sums = {name: np.add.reduceat(rows[name].to_numpy(np.int64), first) for name in ("payload_bytes", "wire_bytes")}
    found = pd.DataFrame({"flow": flow[first], "start_ns": start[first], "end_ns": end[last], **sums})
    return found.sort_values("start_ns", kind="stable", ignore_index=True)
