# SPDX-License-Identifier: Apache-2.0
"""What was sent, each byte once: as its sender saw it, or its receiver where the sender was not watched.

For packet simulators as lists of flows: who sends how many bytes to whom, from when on. ns3: the flow file of HPCC's
simulator and of what was built upon it (ASTRA-sim's ns-3 back end, PowerTCP): the number of flows, then `SRC DST
PRIORITY PORT BYTES START_SECONDS` each. htsim: a connection matrix as the simulators of csg-htsim load it, times in
picoseconds. Nodes are numbered as the comments (htsim) or FILE.nodes (both) say.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from netmon.errors import DataError
from netmon.history.dataset import Window, frame_of, open_rows, stream
from netmon.history.frames import plain_words
from netmon.records import PROTOCOL_NON_IP
from netmon.units import format_bytes, format_count, format_duration

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
    files, condition = open_rows(data, "flows", Window(job=window.job, hosts=window.hosts))
    flows = frame_of(files, _DESCRIBED, condition, whole=True)
    if flows.empty:
        raise DataError(f"cannot play {data} again: it tells of no flow there")
    flows = flows.drop_duplicates(FLOW, keep="last")
    flows = flows[~(flows["members"].fillna(0).astype(int) > 0) & (flows["protocol"] != PROTOCOL_NON_IP)]
    sent = pd.MultiIndex.from_frame(flows.loc[flows["direction"] == "tx", TUPLE])
    twice = (flows["direction"] == "rx") & pd.MultiIndex.from_frame(flows[TUPLE]).isin(sent)
    return flows[~twice].reset_index(drop=True)


def buckets_of(data: Path, window: Window, flows: pd.DataFrame) -> pd.DataFrame:
    """Their rows, by time, with `flow`: the place of each row's flow in `flows`. Raises DataError: none, too many."""
    if flows.empty:
        raise DataError(f"cannot play {data} again: none of its flows there can be played")
    files, condition = open_rows(data, "buckets", window)
    sessions = pa.array(flows["session"].unique().tolist())
    number = pd.Series(np.arange(len(flows)), pd.MultiIndex.from_frame(flows[FLOW]))
    pieces, rows = list[pd.DataFrame](), 0
    for batch in stream(files, _BUCKET, condition):
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


# --- Lists of flows.

SILENCE_NS = 10_000_000
"""A connection that says nothing for longer is a new flow when it speaks again."""
_PRIORITY = 3
_LARGEST = 2**31 - 1  # bytes of a flow: htsim reads them into an int


def write_ns3(data: Path, window: Window, out: Path) -> str:
    """Write OUT and OUT.nodes; what was written, in words. Raises DataError, OSError."""
    sent, nodes, flows = _sent(data, window)
    ports = flows["dst_port"].to_numpy()[sent["flow"]]
    columns = [sent["from"], sent["to"], [_PRIORITY] * len(sent), ports, sent["payload_bytes"], sent["at_ns"] / 1e9]
    lines = [f"{a} {b} {p} {port} {size} {at:.9f}" for a, b, p, port, size, at in zip(*columns, strict=True)]
    out.write_text("\n".join([str(len(lines)), *lines]) + "\n")
    return _summary(out, sent, nodes)


def write_htsim(data: Path, window: Window, out: Path) -> str:
    """Write OUT and OUT.nodes; what was written, in words. Raises DataError, OSError."""
    sent, nodes, _ = _sent(data, window)
    columns = [sent["from"], sent["to"], range(1, len(sent) + 1), sent["at_ns"] * 1000, sent["payload_bytes"]]
    lines = [f"{a}->{b} id {id_} start {at} size {size}" for a, b, id_, at, size in zip(*columns, strict=True)]
    out.write_text("\n".join([f"Nodes {len(nodes)}", f"Connections {len(lines)}", *lines]) + "\n")
    return _summary(out, sent, nodes)


def _sent(data: Path, window: Window) -> tuple[pd.DataFrame, list[str], pd.DataFrame]:
    """Pieces with from, to and at_ns since the first; the nodes' addresses; and the flows."""
    flows = flows_of(data, window)
    sent = pieces_of(buckets_of(data, window, flows), SILENCE_NS)
    ends = flows[["src", "dst"]].to_numpy(str)[sent["flow"].to_numpy()]
    nodes, number = np.unique(ends, return_inverse=True)
    indices = number.reshape(ends.shape)
    sent = sent.assign(**{"from": indices[:, 0], "to": indices[:, 1]}, at_ns=sent["start_ns"] - sent["start_ns"].min())
    return _cut(sent), nodes.tolist(), flows


def _cut(sent: pd.DataFrame) -> pd.DataFrame:
    """What is larger than a simulator can read, as several that begin together."""
    times = -(-sent["payload_bytes"] // _LARGEST)
    if (times == 1).all():
        return sent
    cut = sent.loc[sent.index.repeat(times)]
    index = cut.groupby(level=0).cumcount()
    left = cut["payload_bytes"] - index * _LARGEST
    return cut.assign(payload_bytes=left.clip(upper=_LARGEST)).reset_index(drop=True)


def _summary(out: Path, sent: pd.DataFrame, nodes: list[str]) -> str:
    listed = out.with_name(f"{out.name}.nodes")
    listed.write_text("".join(f"{number} {address}\n" for number, address in enumerate(nodes)))
    took = format_duration(int(sent["end_ns"].max() - sent["start_ns"].min()))
    size = format_bytes(int(sent["payload_bytes"].sum()))
    return f"{out}: {len(sent)} flows between {len(nodes)} nodes, {size} in {took}; nodes' addresses in {listed}"
