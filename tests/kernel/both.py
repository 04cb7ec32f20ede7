# SPDX-License-Identifier: Apache-2.0
"""For tests: the same traffic counted by the live agent and captured by tcpdump, as two tables of flows."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from pair import NETMON, Watched, run
from waiting import wait_for

from netmon.lab.network import Host
from netmon.lab.process import Process
from netmon.records import FLOW_KEY, Direction, address
from netmon.replay.frames import Capture, Frames, frames_of
from netmon.replay.replay import HostSide, packed

FLOW = ["direction", "src", "dst", "src_port", "dst_port", "protocol"]
COUNTS = ["packets", "wire_bytes", "payload_bytes"]
LEFT_IPV6, RIGHT_IPV6 = "2001:db8::1", "2001:db8::2"
ETHERNET = 14
CAPTURED = r"(\d+) packets captured, (\d+) packets received by filter"

_SEND = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
    sender.bind((sys.argv[1], 0))
    for line in sys.stdin:
        sender.send(bytes.fromhex(line))
"""


class Both:
    """A watched pair whose right end is captured as well."""

    def __init__(self, watched: Watched, mtu: int = 1500, offload: bool = True) -> None:
        self.watched, self.mtu = watched, mtu
        self.capture = watched.folder / "right.pcap"
        self._counted: dict[str, int] = {}
        for end in (watched.left, watched.right):
            end.namespace.run("ip", "link", "set", end.interface, "mtu", str(mtu))
            if not offload:
                end.namespace.run("ethtool", "-K", end.interface, *["tso", "off", "gso", "off", "gro", "off"])

    def enable_ipv6(self) -> None:
        """The ends get their addresses, and have told each other all about them when this returns."""
        quiet = ("router_solicitations=0", "accept_dad=0", "mldv2_unsolicited_report_interval=1")
        ends = (self.watched.left, self.watched.right)
        for end, ipv6 in zip(ends, (LEFT_IPV6, RIGHT_IPV6), strict=True):
            settings = [f"net.ipv6.conf.{end.interface}.{setting}" for setting in (*quiet, "disable_ipv6=0")]
            end.namespace.set(*settings)
            end.namespace.run("ip", "address", "add", f"{ipv6}/64", "dev", end.interface, "nodad")
        for here, there, ipv6 in ((*ends, RIGHT_IPV6), (*ends[::-1], LEFT_IPV6)):
            neighbour = (ipv6, "lladdr", there.hardware_address, "dev", here.interface, "nud", "permanent")
            here.namespace.run("ip", "neigh", "replace", *neighbour)
        self.watched.settled()

    @contextmanager
    def observed(self, hook: str) -> Iterator[None]:
        """The traffic within is counted and captured; nothing may be lost anywhere."""
        collector, agent = self.watched.both("--hook", hook)
        before = self.watched.settled()
        with self.captured():
            yield
            after = self.watched.settled()
            self._counted = {way: after[way] - before[way] for way in after}
        agent.end_in_order(seconds=60)
        collector.end_in_order(seconds=60)

    @contextmanager
    def captured(self) -> Iterator[None]:
        """The traffic within is captured; nothing may be lost."""
        with self._tcpdump() as tcpdump:
            yield
            wait_for(lambda: _has_all(tcpdump))
            assert tcpdump.end() == 0
        assert re.search(r"^0 packets dropped by kernel", tcpdump.output(), re.MULTILINE), tcpdump.output()

    def frames(self) -> pd.DataFrame:
        """The capture, a row per frame: FLOW, time_ns (UTC) and COUNTS."""
        frames = self._frames()
        keys = frames.words.view(FLOW_KEY)[:, 0].tolist()
        flows = [
            (("rx", "tx")[link >> 8 & 1], address(src), address(dst), sport, dport, link & 0xFF)
            for src, dst, sport, dport, link in keys
        ]
        counts = {"wire_bytes": frames.wire_bytes, "payload_bytes": frames.payload_bytes}
        return pd.DataFrame(flows, columns=FLOW).assign(time_ns=frames.time_ns, packets=1, **counts)

    @contextmanager
    def _tcpdump(self) -> Iterator[Process]:
        right = self.watched.right
        host = Host("right", right.namespace.name, right.address)
        keep = ["--immediate-mode", "-s", "256", "-B", "65536", "-Z", "root", "-w", str(self.capture)]
        with Process("tcpdump", ["tcpdump", "-i", right.interface, *keep], self.watched.folder, host=host) as process:
            process.wait_output("listening on", 10)
            yield process

    def check_counter(self) -> None:
        """Nothing is missing: what was attributed is what the NIC has counted.

        A NIC counts a super-packet with one header, as the capture does, or with one per segment, as the agent does; a
        veth that polls leaves the Ethernet headers out.
        """
        live, captured = (t.groupby("direction")["wire_bytes"].sum() for t in (self.live(), self.replayed()))
        ledger = self.ledger()
        for way, counter in self._counted.items():
            assert ledger.loc[way, "nic_counter_bytes"] == counter
            assert ledger.loc[way, "attributed_bytes"] == live[way]
            assert ledger.loc[way, ["overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes"]].sum() == 0
            with_headers = counter + ETHERNET * ledger.loc[way, "nic_packets"]
            assert {counter, with_headers} & {live[way], captured[way]}

    def ledger(self) -> pd.DataFrame:
        """The account of each direction."""
        return self.watched.table("ledger").groupby("direction", observed=True).sum(numeric_only=True)

    def send(self, frames: list[bytes], from_right: bool) -> None:
        """Frames as they are, out of one end's interface."""
        end = self.watched.right if from_right else self.watched.left
        command = end.namespace.inside(sys.executable, "-c", _SEND, end.interface)
        subprocess.run(command, input="\n".join(frame.hex() for frame in frames), text=True, check=True)

    def iperf(self, to: str, *options: str) -> None:
        """A transfer in both directions."""
        right = self.watched.right
        host = Host("right", right.namespace.name, right.address)
        with Process("iperf3", ["iperf3", "-s", "-1", "--forceflush"], self.watched.folder, host=host) as server:
            server.wait_output("listening", 10)
            self.watched.left.namespace.run("iperf3", "-c", to, "--bidir", *options)
            server.end()

    def live(self) -> pd.DataFrame:
        """What the agent counted: FLOW → COUNTS."""
        return flow_counts(self.watched.data)

    def replayed(self) -> pd.DataFrame:
        """The capture, by `netmon replay`."""
        data = self.watched.folder / "replayed"
        if data.exists():
            return flow_counts(data)
        run(*NETMON, "replay", str(self.capture), "--data", str(data), "--address", *self._addresses())
        ledger = pd.read_parquet(data / "ledger")
        assert (ledger["invisible_bytes"] == 0).all()
        return flow_counts(data)

    def further_segments(self) -> pd.DataFrame:
        """What the capture does not show of super-packets: FLOW → COUNTS of every segment but the first.

        A segment of TCP is as long as the MTU lets it be with the headers of its super-packet.
        """
        frames = self._frames()
        headers = frames.wire_bytes - frames.payload_bytes
        whole = self.mtu + ETHERNET - headers
        keys = frames.words.view(FLOW_KEY)[:, 0]
        tcp = (keys["link_protocol"] & 0xFF) == 6
        more = np.where(tcp & (frames.payload_bytes > whole), -(-frames.payload_bytes // whole) - 1, 0)
        rows = [
            (("rx", "tx")[link >> 8 & 1], address(src), address(dst), sport, dport, link & 0xFF, n, n * size, 0)
            for (src, dst, sport, dport, link), n, size in zip(
                keys[more > 0].tolist(), more[more > 0].tolist(), headers[more > 0].tolist(), strict=True
            )
        ]
        return pd.DataFrame(rows, columns=FLOW + COUNTS).groupby(FLOW).sum().astype("int64")

    def _addresses(self) -> list[str]:
        (link,) = json.loads(self.watched.right.namespace.run("ip", "-json", "address", "show", "dev", "veth0"))
        return [entry["local"] for entry in link["addr_info"]] + [RIGHT_IPV6]

    def _frames(self) -> Frames:
        capture, parts = Capture(Path(self.capture)), []
        while (chunk := capture.read()) is not None:
            parts.append(frames_of(chunk))
        capture.close()
        side = HostSide(map(packed, self._addresses()))
        for part in parts:
            side.complete(part)
        return Frames(*(np.concatenate([getattr(p, c) for p in parts]) for c in Frames.__dataclass_fields__))


def _has_all(tcpdump: Process) -> bool:
    """Whether it has written what its kernel side has taken: it ends without a look at what waits there."""
    said = len(re.findall(CAPTURED, tcpdump.output()))
    os.kill(tcpdump.pid, signal.SIGUSR1)
    wait_for(lambda: len(re.findall(CAPTURED, tcpdump.output())) > said)
    captured, received = re.findall(CAPTURED, tcpdump.output())[-1]
    return captured == received


def flow_counts(data: Path) -> pd.DataFrame:
    """A dataset's buckets, summed up per flow."""
    buckets, flows = pd.read_parquet(data / "buckets"), pd.read_parquet(data / "flows")
    flows["direction"] = flows["direction"].astype(str)
    assert set(flows["direction"]) <= {way.name.lower() for way in Direction}
    rows = buckets[["flow_id", *COUNTS]].merge(flows[["flow_id", *FLOW]].astype({"src": str, "dst": str}), on="flow_id")
    return rows.groupby(FLOW)[COUNTS].sum().astype("int64")
