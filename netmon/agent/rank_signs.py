# SPDX-License-Identifier: Apache-2.0
"""What tells a rank's new flow from others at first sight: who connects, to whom the ranks talk, and on which ports."""

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.aggregates import Aggregates
from netmon.kernel.owners.endpoint import packed_address
from netmon.records import Direction, Flow, Table

_REMEMBERED = 4096  # peers, ports
_SERVED = 8  # connections of one process alone, after which a local port is its service
_INDEX = {6: 0, 17: 1}  # of protocols with ports


class RankSigns:
    """Learns from the owners of flows that are described. What it says decides what is described, never whose it is."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.pids: set[int] = set()
        """Of ranks."""
        self._ports = np.zeros((2, 1 << 16), bool)  # local ones of ranks
        self._peers: dict[bytes, None] = {}  # remote addresses of ranks' flows

    def learn(self, flow: Flow) -> None:
        """A flow of a rank."""
        local, remote = ends_of(flow)
        if flow.protocol in _INDEX:
            self._ports[_INDEX[flow.protocol], local[1]] = True
        self._peers[packed_address(remote[0])] = None
        if len(self._peers) > _REMEMBERED:
            del self._peers[next(iter(self._peers))]

    def seen(self, keys: Table) -> npt.NDArray[np.bool_]:
        """keys: (n,) FLOW_KEY → which are on a rank's port, or of an address to which ranks talk: (n,)."""
        sends = (keys["link_protocol"] >> 8 & 1).astype(bool)
        protocol = keys["link_protocol"] & 0xFF
        ports = np.where(sends, keys["src_port"], keys["dst_port"]).astype(np.intp)
        udp = (protocol == 17).astype(np.intp)
        seen: npt.NDArray[np.bool_] = self._ports[udp, ports] & np.isin(protocol, list(_INDEX))
        if self._peers:
            remote = np.where(sends, keys["dst"], keys["src"]).tolist()
            seen |= np.array([address in self._peers for address in remote], bool)
        return seen


class LocalServices:
    """Local ports that one process alone serves, as far as the described flows show."""

    def __init__(self, aggregates: Aggregates) -> None:
        """aggregates: that account for what comes to such a port under its process."""
        self._aggregates = aggregates
        self._pids: dict[tuple[int, int], tuple[int, int]] = {}  # protocol and port → the only pid and how often, or 0

    def learn(self, flow: Flow) -> None:
        """A flow with a process, counted once."""
        if flow.protocol not in _INDEX:
            return
        port = flow.protocol, ends_of(flow)[0][1]
        pid, count = self._pids.pop(port, (flow.owner.pid, 0))
        alone = pid == flow.owner.pid and not flow.owner.job
        self._pids[port] = (pid, count + 1) if alone else (0, 0)
        self._aggregates.services[_INDEX[flow.protocol], port[1]] = alone and count + 1 >= _SERVED
        if len(self._pids) > _REMEMBERED:
            oldest = next(iter(self._pids))
            del self._pids[oldest]
            self._aggregates.services[_INDEX[oldest[0]], oldest[1]] = False


def ends_of(flow: Flow) -> tuple[tuple[str, int], tuple[str, int]]:
    """Address and port of the local end, and of the remote one."""
    source, destination = (flow.src, flow.src_port), (flow.dst, flow.dst_port)
    return (source, destination) if flow.direction is Direction.TX else (destination, source)


def raw_ends(keys: Table) -> list[bytes]:
    """(n,) FLOW_KEY → addresses and ports, the local end's first, as Birth.ends has them."""
    sends = (keys["link_protocol"] >> 8 & 1).astype(bool)
    ends = np.empty(len(keys), [("local", "V16"), ("remote", "V16"), ("ports", ">u2", 2)])
    ends["local"], ends["remote"] = (
        np.where(sends, keys["src"], keys["dst"]),
        np.where(sends, keys["dst"], keys["src"]),
    )
    ends["ports"][:, 0] = np.where(sends, keys["src_port"], keys["dst_port"])
    ends["ports"][:, 1] = np.where(sends, keys["dst_port"], keys["src_port"])
    raw: list[bytes] = ends.view("V36").tolist()
    return raw
