# SPDX-License-Identifier: Apache-2.0
"""A recorded training as the input of simulators, of tools that read captures, and of the lab.

What was sent, each byte once: as its sender saw it, or its receiver where the sender was not watched. For packet
simulators as lists of flows: who sends how many bytes to whom, from when on. ns3: the flow file of HPCC's
simulator and of what was built upon it (ASTRA-sim's ns-3 back end, PowerTCP): the number of flows, then `SRC DST
PRIORITY PORT BYTES START_SECONDS` each. htsim: a connection matrix as the simulators of csg-htsim load it, times in
picoseconds. Nodes are numbered as the comments (htsim) or FILE.nodes (both) say.

Chakra execution traces for ASTRA-sim: what each rank computed and reduced, and what had to wait for what. An iteration
is: computing until the first gradient, then one all-reduce of all gradients and, alongside it, the rest of the backward
pass (where its end is known), then the update. The simulator decides how long the all-reduce takes; computing takes as
long as it did (ASTRA-sim: "replay-only" in the system's configuration).

A generator that is fitted to a recorded job: in which phases it communicates, how much, and how long it pauses. An
iteration is a number of phases; in each, every rank waits for its own gap after it has finished the phase before, and
then sends its bytes to its peers and receives theirs. Sizes are medians; gaps are kept as they were, iteration by
iteration, so that what ranks have in common stays. `netmon lab run --replay FILE` plays it.
"""

import ipaddress
import itertools
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from netmon.dl.generated import Generator, Phase
from netmon.errors import DataError
from netmon.history.dataset import Window, frame_of, open_rows, plain_words, stream
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
    """What is larger than a simulator can read, as multiple sends that begin together."""
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


# --- Chakra execution traces.

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
    without = f"; {left_out} left out, of which not every rank reported when it communicated" if left_out else ""
    return f"{out}: {size} ranks, {number} iterations, {format_bytes(reduced)} reduced in each{without}"


def _rows(data: Path, window: Window) -> tuple[pd.DataFrame, int]:
    """Iterations of one job that all of its ranks report, and how many others there are. Raises DataError."""
    files, condition = open_rows(data, "iterations", window)
    rows = frame_of(files, _COLUMNS, condition, whole=True)
    if rows.empty:
        raise DataError(f"cannot write execution traces of {data}: it holds no such iteration")
    if len(jobs := sorted(set(rows["job"]))) > 1:
        raise DataError(f"cannot write execution traces of more than one job, {', '.join(jobs)}: give --job")
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
            f"cannot write execution traces: {data} lacks the times at which every rank communicated "
            "(netmon.training and uprobes report them)"
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
        file: Any = opened  # the stubs require a BytesIO

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
                rest_of_backward = f"{name}: the rest of the backward pass"
                waits_for.append(add(rest_of_backward, COMP_NODE, [computed], us, last - first - exposed))
            us = (last - begin) // 1000
            before = [add(f"{name}: after the last gradient", COMP_NODE, waits_for, us, end - last)]


# --- A generator that is fitted to a recorded job.

_PHASE_GAP_NS = 3_000_000
"""The gap between phases: at least so long no rank sends gradients."""
_MOST_ITERATIONS = 200
_FEWEST = 3
_ITERATION = ["job", "rank", "size", "iteration", "start_ns", "end_ns"]


def write_generator(data: Path, window: Window, out: Path) -> str:
    """Write OUT; what was fitted, in words. Raises DataError, OSError."""
    generator, used, of = fit(data, window)
    out.write_text(json.dumps(generator.document(), indent=1) + "\n")
    sizes = ", ".join(format_bytes(sum(phase.bytes.values())) for phase in generator.phases)
    about = f"{generator.ranks} ranks, {format_duration(generator.iteration_ns)} an iteration"
    phases = f"{len(generator.phases)} phases ({sizes})"
    return f"{out}: {about}, {phases}, fitted to {used} of {of} iterations"


def fit(data: Path, window: Window) -> tuple[Generator, int, int]:
    """The generator, how many iterations it rests on and of how many. Raises DataError."""
    iterations = _iterations(data, window)
    job = str(iterations["job"].iloc[0])
    flows = _gradients(flows_of(data, window), job, data)
    sent = buckets_of(data, window, flows)
    sent = sent[sent["payload_bytes"] > 0]
    whole = pieces_of(sent.assign(flow=0).sort_values("bucket_start_ns", kind="stable"), _PHASE_GAP_NS)
    spans = iterations.groupby("iteration").agg(start=("start_ns", "min"), end=("end_ns", "max")).sort_values("start")
    phase_of = (
        np.searchsorted(spans["start"].to_numpy(np.int64), whole["start_ns"].to_numpy(np.int64), side="right") - 1
    )
    inside = phase_of >= 0
    whole, phase_of = whole[inside], phase_of[inside]
    count = Counter(np.bincount(phase_of, minlength=len(spans)).tolist())
    count.pop(0, None)
    if not count:
        raise DataError(f"cannot fit a generator: {data} holds no gradients of job {job} in its iterations")
    most_common = count.most_common(1)[0][0]
    fits = [index for index in range(len(spans)) if (phase_of == index).sum() == most_common]
    if len(fits) < _FEWEST:
        raise DataError(f"cannot fit a generator to {len(fits)} iterations that are alike; it takes {_FEWEST}")
    fits = fits[:_MOST_ITERATIONS]
    return _fitted(job, iterations, spans, flows, sent, whole, phase_of, fits), len(fits), len(spans)


def _fitted(
    job: str,
    iterations: pd.DataFrame,
    spans: pd.DataFrame,
    flows: pd.DataFrame,
    sent: pd.DataFrame,
    whole: pd.DataFrame,
    phase_of: Numbers,
    fits: list[int],
) -> Generator:
    """spans: of the iterations by index. whole: phases; phase_of: the place of each one's iteration."""
    ranks = int(iterations["size"].max())
    pair = flows["rank"].to_numpy(np.int64) * ranks + flows["peer_rank"].to_numpy(np.int64)
    starts, ends = (sent[name].to_numpy(np.int64) for name in ("bucket_start_ns", "bucket_ns"))
    ends = starts + ends
    payload, pairs = sent["payload_bytes"].to_numpy(np.int64), pair[sent["flow"].to_numpy()]
    sizes, gaps, after = [], [], []
    for index in fits:
        before = _of_ranks(iterations, spans.index[index], ranks, "start_ns", "min")
        own_sizes, own_gaps = [], []
        for begin, end in whole.loc[phase_of == index, ["start_ns", "end_ns"]].to_numpy(np.int64).tolist():
            low, high = np.searchsorted(starts, (begin, end))
            inside = slice(int(low), int(high))
            own_sizes.append(np.bincount(pairs[inside], payload[inside], ranks * ranks))
            first, last = np.full(ranks, begin), np.full(ranks, end)
            for rank in range(ranks):
                sends = pairs[inside] // ranks == rank
                takes = sends | (pairs[inside] % ranks == rank)
                if sends.any():
                    first[rank] = starts[inside][sends].min()
                if takes.any():
                    last[rank] = ends[inside][takes].max()
            own_gaps.append(np.maximum(0, first - before))
            before = last
        finished = _of_ranks(iterations, spans.index[index], ranks, "end_ns", "max")
        sizes.append(own_sizes)
        gaps.append(own_gaps)
        after.append(np.maximum(0, finished - before))
    median = np.median(np.array(sizes), axis=0).round().astype(np.int64)
    phases = tuple(
        Phase({(int(p) // ranks, int(p) % ranks): int(row[p]) for p in np.flatnonzero(row)}) for row in median
    )
    took = spans["end"].to_numpy(np.int64) - spans["start"].to_numpy(np.int64)
    all_gaps = np.array(gaps).astype(np.int64)  # iteration, phase, rank
    return Generator(job, ranks, phases, all_gaps, np.array(after), int(np.median(took[fits])))


def _of_ranks(iterations: pd.DataFrame, number: object, ranks: int, column: str, default: str) -> Numbers:
    """A moment of each rank; of one that did not report, the earliest or latest of the others."""
    own = iterations[iterations["iteration"] == number]
    found = np.full(ranks, int(getattr(own[column], default)()))
    found[own["rank"].to_numpy(np.int64)] = own[column].to_numpy(np.int64)
    return found


def _iterations(data: Path, window: Window) -> pd.DataFrame:
    files, condition = open_rows(data, "iterations", window)
    rows = frame_of(files, _ITERATION, condition)
    rows = rows[rows["rank"] >= 0]
    if rows.empty:
        raise DataError(f"cannot fit a generator: {data} holds no iteration there whose rank is known")
    if len(jobs := sorted(set(rows["job"]))) > 1:
        raise DataError(f"cannot fit one generator to more than one job, {', '.join(jobs)}: give --job")
    size = max(int(rows["size"].fillna(0).max()), int(rows["rank"].max()) + 1)
    once: pd.DataFrame = rows.assign(size=size).drop_duplicates(["rank", "iteration"])
    return once


def _gradients(flows: pd.DataFrame, job: str, data: Path) -> pd.DataFrame:
    """From rank to rank. A flow that only its receiver saw has its ends the other way round."""
    own = flows[(flows["job"] == job) & (flows["traffic"] != "control")]
    own = own[own["rank"].notna() & (own["rank"] >= 0)].reset_index(drop=True)
    sent = own["direction"] == "tx"
    here, there = (np.where(sent, own[a], own[b]) for a, b in (("src", "dst"), ("dst", "src")))
    local = own["rank"].to_numpy(np.int64)
    peers = own["peer_rank"].fillna(-1).to_numpy(np.int64)
    remote = np.where(peers >= 0, peers, pd.Series(there).map(_ranks_alone(here, local)).fillna(-1).to_numpy(np.int64))
    ends = {"rank": np.where(sent, local, remote), "peer_rank": np.where(sent, remote, local)}
    known: pd.DataFrame = own.assign(**ends)[(remote >= 0) & (remote != local)].reset_index(drop=True)
    if known.empty:
        raise DataError(f"cannot fit a generator: {data} tells of no flow between ranks of job {job}")
    return known


def _ranks_alone(addresses: npt.NDArray[np.object_], ranks: Numbers) -> dict[str, int]:
    """The rank at each address that has one rank only."""
    found = pd.DataFrame({"address": addresses, "rank": ranks}).drop_duplicates()
    return {str(a): int(r) for a, r in found.drop_duplicates("address", keep=False).itertuples(index=False)}
