# SPDX-License-Identifier: Apache-2.0
"""Lists of flows for packet simulators: who sends how many bytes to whom, from when on.

ns3: the flow file of HPCC's simulator and of what was built upon it (ASTRA-sim's ns-3 back end, PowerTCP): the number
of flows, then `SRC DST PRIORITY PORT BYTES START_SECONDS` each. htsim: a connection matrix as the simulators of
csg-htsim load it, times in picoseconds. Nodes are numbered as the comments (htsim) or FILE.nodes (both) say.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from netmon.history.selection import Window
from netmon.simulation.recorded import buckets_of, flows_of, pieces_of
from netmon.units import format_bytes, format_duration

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
