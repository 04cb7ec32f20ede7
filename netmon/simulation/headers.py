# SPDX-License-Identifier: Apache-2.0
"""A capture of headers that was never taken: each bucket's packets, evenly spread over it, with their true lengths.

Addresses, ports, protocols, payload and numbers of packets are those of the recording; sequence numbers count a flow's
payload; MAC addresses, acknowledgements and identifiers are made up. Frames are cut after their headers.
"""

import ipaddress
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.errors import DataError
from netmon.history.dataset import Window
from netmon.simulation.traffic import TUPLE, buckets_of, flows_of
from netmon.units import format_bytes, format_count

MOST_PACKETS = 20_000_000
_FILE = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)  # times in ns, Ethernet
_TCP, _UDP, _ETHERNET = 6, 17, 14
_RECORD = 16
_ACK_PUSH = 0x18

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


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
