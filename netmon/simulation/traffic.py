# SPDX-License-Identifier: Apache-2.0
"""What was sent, each byte once: as its sender saw it, or its receiver where the sender was not watched.

For packet simulators as lists of flows: who sends how many bytes to whom, from when on. ns3: the flow file of HPCC's
simulator and of what was built upon it (ASTRA-sim's ns-3 back end, PowerTCP): the number of flows, then `SRC DST
PRIORITY PORT BYTES START_SECONDS` each. htsim: a connection matrix as the simulators of csg-htsim load it, times in
picoseconds. Nodes are numbered as the comments (htsim) or FILE.nodes (both) say.
"""

import ipaddress
import struct
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


# --- A capture of headers that was never taken: each bucket's packets, evenly spread over it, with their true lengths.
#
# Addresses, ports, protocols, payload and numbers of packets are those of the recording; sequence numbers count a
# flow's payload; MAC addresses, acknowledgements and identifiers are made up. Frames are cut after their headers.

MOST_PACKETS = 20_000_000
_FILE = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)  # times in ns, Ethernet
_TCP, _UDP, _ETHERNET = 6, 17, 14
_RECORD = 16
_ACK_PUSH = 0x18

Bytes = npt.NDArray[np.uint8]


def write_pcap(data: Path, window: Window, out: Path) -> str:
    """Write OUT; what was written, in words. Raises DataError, OSError."""
    flows = flows_of(data, window)
    flows = flows[flows["src"].map(_is_address) & flows["dst"].map(_is_address)].reset_index(drop=True)
    rows = buckets_of(data, window, flows)
    number = np.maximum(1, rows["packets"].to_numpy(np.int64))
    if number.sum() > MOST_PACKETS:
        raise DataError(
            f"cannot write {format_count(int(number.sum()))} packets into one capture; the most is "
            f"{format_count(MOST_PACKETS)}: select less with --since and --until, --iterations, --job or --host"
        )
    packets = _packets(rows, number)
    with out.open("wb") as file:
        file.write(_FILE)
        file.write(_frames(packets, flows).tobytes())
    total = format_bytes(int(packets["wire"].sum()))
    return f"{out}: {len(packets['wire'])} packets of {len(set(rows['flow']))} flows, {total} on the wire"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _packets(rows: pd.DataFrame, number: Numbers) -> dict[str, Numbers]:
    """Each packet's flow, time_ns, wire and payload bytes and the flow's payload before it, by time."""
    row = np.repeat(np.arange(len(rows)), number)
    index = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
    start, width = (rows[name].to_numpy(np.int64) for name in ("bucket_start_ns", "bucket_ns"))
    times = start[row] + index * width[row] // number[row]
    order = np.argsort(times, kind="stable")
    packets = {"flow": rows["flow"].to_numpy(np.int64)[row], "time_ns": times}
    for name in ("wire", "payload"):
        whole = rows[f"{name}_bytes"].to_numpy(np.int64)
        packets[name] = whole[row] // number[row] + (index < (whole % number)[row])
    packets = {name: values[order] for name, values in packets.items()}
    by_flow = np.argsort(packets["flow"], kind="stable")
    sums = np.cumsum(packets["payload"][by_flow]) - packets["payload"][by_flow]
    begins = np.flatnonzero(np.diff(packets["flow"][by_flow], prepend=-1))
    first = np.repeat(sums[begins], np.diff(np.append(begins, len(sums))))
    packets["before"] = np.empty_like(sums)
    packets["before"][by_flow] = sums - first
    return packets


def _frames(packets: dict[str, Numbers], flows: pd.DataFrame) -> Bytes:
    """Records of the capture, one after the other."""
    kinds, of = _kinds(flows)
    kind = of[packets["flow"]]
    lengths = np.array([_RECORD + len(template) for template in kinds.values()])[kind]
    begins = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for number, ((version, protocol), template) in enumerate(kinds.items()):
        own = np.flatnonzero(kind == number)
        for piece in np.array_split(own, max(1, len(own) // 500_000)):
            these = {name: values[piece] for name, values in packets.items()}
            made = _of_kind(these, flows, version, protocol, template)
            out[begins[piece][:, None] + np.arange(made.shape[1])] = made
    return out


def _kinds(flows: pd.DataFrame) -> tuple[dict[tuple[int, int], bytes], Numbers]:
    """Headers by IP version and transport, and which of them each flow has."""
    kinds: dict[tuple[int, int], bytes] = {}
    of = []
    for src, protocol in zip(flows["src"], flows["protocol"], strict=True):
        version = ipaddress.ip_address(src).version
        transport = int(protocol) if protocol in (_TCP, _UDP) else 0
        length = _ETHERNET + (20 if version == 4 else 40) + {_TCP: 20, _UDP: 8}.get(transport, 0)
        kinds.setdefault((version, transport), bytes(length))
        of.append(list(kinds).index((version, transport)))
    return kinds, np.array(of, np.int64)


def _of_kind(
    packets: dict[str, Numbers], flows: pd.DataFrame, version: int, transport: int, template: bytes
) -> npt.NDArray[np.uint8]:
    """(packets, record and header) bytes."""
    flow, wire, payload = packets["flow"], packets["wire"], packets["payload"]
    made = np.zeros((len(flow), _RECORD + len(template)), np.uint8)
    ip = _RECORD + _ETHERNET
    at = ip + (20 if version == 4 else 40)
    headers = _ETHERNET + at - ip + {_TCP: 20, _UDP: 8}.get(transport, 0)
    # Of TCP what is neither payload nor a plain header is options, in words of 4 bytes.
    options = np.clip((wire - payload - headers) // 4, 0, 10) * 4 if transport == _TCP else np.zeros_like(wire)
    length = headers + options + payload
    wire = np.maximum(wire, length)
    for index, values in ((0, packets["time_ns"] // 10**9), (4, packets["time_ns"] % 10**9), (12, wire)):
        made[:, index : index + 4] = values.astype("<u4").view(np.uint8).reshape(-1, 4)
    made[:, 8:12] = np.array([len(template)], "<u4").view(np.uint8)
    made[:, _RECORD : ip - 2] = _macs(flows)[flow]
    made[:, ip - 2 : ip] = (0x08, 0x00) if version == 4 else (0x86, 0xDD)
    ends = _addresses(flows, version)[flow]
    protocol = flows["protocol"].to_numpy(np.int64)[flow]
    if version == 4:
        made[:, ip] = 0x45
        _put(made, ip + 2, np.minimum(length - _ETHERNET, 65535), 2)
        made[:, ip + 6] = 0x40  # not to be fragmented
        made[:, ip + 8] = 64
        made[:, ip + 9] = protocol
        made[:, ip + 12 : ip + 20] = ends
        _put(made, ip + 10, _checksum(made[:, ip : ip + 20]), 2)
    else:
        made[:, ip] = 0x60
        _put(made, ip + 4, np.minimum(length - _ETHERNET - 40, 65535), 2)
        made[:, ip + 6], made[:, ip + 7] = protocol, 64
        made[:, ip + 8 : ip + 40] = ends
    if transport:
        for index, name in ((at, "src_port"), (at + 2, "dst_port")):
            _put(made, index, flows[name].to_numpy(np.int64)[flow], 2)
    if transport == _TCP:
        _put(made, at + 4, packets["before"] % 2**32, 4)
        made[:, at + 12] = (5 + options // 4) << 4
        made[:, at + 13] = np.where(payload > 0, _ACK_PUSH, _ACK_PUSH & 0x10)
        made[:, at + 14 : at + 16] = 0xFF
    elif transport == _UDP:
        _put(made, at + 4, np.minimum(8 + payload, 65535), 2)
    return made


def _put(made: Bytes, index: int, values: Numbers, size: int) -> None:
    """Big-endian."""
    made[:, index : index + size] = values.astype(f">u{size}").view(np.uint8).reshape(-1, size)


def _checksum(header: Bytes) -> Numbers:
    words = header.reshape(len(header), -1, 2).astype(np.int64)
    total = (words[:, :, 0] << 8 | words[:, :, 1]).sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    checksum: Numbers = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return checksum


def _addresses(flows: pd.DataFrame, version: int) -> Bytes:
    """(flows, source and target); zeros for those of the other version."""
    size = 4 if version == 4 else 16
    ends = [(ipaddress.ip_address(src), ipaddress.ip_address(dst)) for src, dst in flows[TUPLE[:2]].to_numpy(str)]
    packed = [src.packed + dst.packed if src.version == version else bytes(2 * size) for src, dst in ends]
    return np.frombuffer(b"".join(packed), np.uint8).reshape(-1, 2 * size)


def _macs(flows: pd.DataFrame) -> Bytes:
    """(flows, target and source): locally administered, by the last four bytes of the addresses."""
    packed = [
        b"".join(b"\x02\x00" + ipaddress.ip_address(end).packed[-4:] for end in (dst, src))
        for src, dst in flows[TUPLE[:2]].to_numpy(str)
    ]
    return np.frombuffer(b"".join(packed), np.uint8).reshape(-1, 12)
