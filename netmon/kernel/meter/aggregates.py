# SPDX-License-Identifier: Apache-2.0
"""Flows that are not described one by one: accounted under the prefix of their remote address, or a service.

An aggregate is of one link, protocol and family. Its prefix is a /24 (IPv4) or /48 (IPv6), as long as there are few
of those; then a /8 or /16, then every address: how many there can be has a bound, whoever sends from wherever.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.records import Table

Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.uint32]

_V4_WORD, _V4_BITS = np.uint64(0xFFFF0000), np.uint64(0xFFFFFFFF)  # bytes 8 to 11 of ::ffff:a.b.c.d
_NOTHING, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class _Level:
    """bits: of the prefix, IPv4 and IPv6; masks: on the second word of the one, the first of the other."""

    bits: tuple[int, int]
    masks: tuple[np.uint64, np.uint64]
    most: int  # aggregates of it


# Words are little-endian: the first bytes of an address are a word's low ones.
_LEVELS = (
    _Level((24, 48), (np.uint64(0x00FFFFFF_FFFFFFFF), np.uint64(0x0000FFFF_FFFFFFFF)), 1024),
    _Level((8, 16), (np.uint64(0x000000FF_FFFFFFFF), np.uint64(0xFFFF)), 1024),
    _Level((0, 0), (_V4_BITS, _NOTHING), 1 << 32),  # as many as there are links, protocols and families
)
_PORT_SHIFT, _LEVEL_SHIFT = 32, 48  # in a name's last word, above FLOW_KEY's link_protocol
_REMOTE = 7  # a level of its own: a service elsewhere
_MOST_REMOTE = 1024


@dataclass
class Aggregate:
    """One of them. address: the remote prefix, 16 bytes; members: how often a flow of it has appeared."""

    flow_id: int
    link_protocol: int  # as in FLOW_KEY
    address: bytes
    prefix_bits: int  # of the address as it is written
    local_port: int = 0  # of a service that one process alone serves; then every remote address is meant
    remote_port: int = 0  # of a service to which one process alone talks; then the address is meant whole
    members: int = 0


class Aggregates:
    """All aggregates of a session. They stay."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        """new_id: gives a flow id that nobody has."""
        self._new_id = new_id
        self._of_name: dict[bytes, Aggregate] = {}
        self._counts = [0] * len(_LEVELS)
        self.by_id: dict[int, Aggregate] = {}
        self.services = np.zeros((2, 1 << 16), bool)
        """Of TCP and UDP, the local ports that one process alone serves, as its owner's flows have shown."""
        self._remote = np.zeros(0, np.uint64)  # _service_hash of each, sorted

    def know_remote(self, services: Iterable[tuple[int, bytes, int]]) -> None:
        """services: (protocol, address of 16 bytes, port) elsewhere to which one process alone talks, all of them."""
        rows = np.array([(*np.frombuffer(address, "<u8"), p, port) for p, address, port in services], np.uint64)
        rows = rows.reshape(-1, 4)[-_MOST_REMOTE:]
        self._remote = np.sort(_service_hash(rows[:, :2], rows[:, 2], rows[:, 3]))

    def number(self, keys: Table, counted: bool = True) -> Ids:
        """keys: (n,) FLOW_KEY → the ids of their aggregates (n,). counted: they are new members."""
        ids = np.zeros(len(keys), np.uint32)
        words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, 5)
        open_ = np.arange(len(keys))
        for level, what in enumerate(_LEVELS):
            names = self._names(words[open_], level, what)
            unique, of_key, count = np.unique(names, return_inverse=True, return_counts=True)
            found = [self._find(name, level, what) for name in unique.tolist()]
            for aggregate, n in zip(found, count.tolist(), strict=True):
                if aggregate and counted:
                    aggregate.members += n
            of_name = np.array([aggregate.flow_id if aggregate else 0 for aggregate in found], np.uint32)
            ids[open_] = of_name[of_key]
            open_ = open_[ids[open_] == 0]
            if not len(open_):
                break
        return ids

    def _find(self, name: bytes, level: int, what: _Level) -> Aggregate | None:
        aggregate = self._of_name.get(name)
        if aggregate is None and self._counts[level] < what.most:
            self._counts[level] += 1
            aggregate = self._of_name[name] = _described(self._new_id(), name, what)
            self.by_id[aggregate.flow_id] = aggregate
        return aggregate

    def _names(self, words: Words, number: int, level: _Level) -> npt.NDArray[np.void]:
        """(n, 5) words of keys → what their aggregates are called (n,): address, link and protocol, port, level."""
        link_protocol = words[:, 4] >> np.uint64(32)
        sends = (link_protocol >> np.uint64(8) & np.uint64(1)).astype(bool)
        remote = np.where(sends[:, None], words[:, 2:4], words[:, 0:2])
        four = (remote[:, 0] == 0) & (remote[:, 1] & _V4_BITS == _V4_WORD)
        masks_of_four, masks_of_six = (_ALL, level.masks[0]), (level.masks[1], _NOTHING)
        names = np.empty((len(words), 3), np.uint64)
        for i in range(2):
            names[:, i] = remote[:, i] & np.where(four, masks_of_four[i], masks_of_six[i])
        names[:, 2] = link_protocol | np.uint64(number << _LEVEL_SHIFT)
        protocol, local = _protocol(link_protocol), _local_ports(words[:, 4], sends)
        in_use = (protocol >= 0) & self.services[protocol.clip(0), local]
        if in_use.any():
            names[in_use, 0], names[in_use, 1] = 0, np.where(four[in_use], _V4_WORD, _NOTHING)
            names[in_use, 2] |= local[in_use].astype(np.uint64) << np.uint64(_PORT_SHIFT)
        if len(self._remote):
            port = _local_ports(words[:, 4], ~sends).astype(np.uint64)
            known = np.isin(_service_hash(remote, link_protocol & np.uint64(0xFF), port), self._remote) & ~in_use
            names[known, :2] = remote[known]
            names[known, 2] = link_protocol[known] | port[known] << np.uint64(_PORT_SHIFT)
            names[known, 2] |= np.uint64(_REMOTE << _LEVEL_SHIFT)
        return names.view("V24").ravel()


def _service_hash(address: Words, protocol: Words, port: Words) -> Words:
    """address: (n, 2); protocol, port: (n,) → (n,). Two services with one hash would be taken for each other's."""
    mixed = address[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ address[:, 1] * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0x94D049BB133111EB) ^ (protocol << np.uint64(16) | port)
    hashed: Words = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
    return hashed


def _protocol(link_protocol: Words) -> npt.NDArray[np.intp]:
    """0 for TCP, 1 for UDP, −1 for all others."""
    number = link_protocol & np.uint64(0xFF)
    return np.where(number == 6, 0, np.where(number == 17, 1, -1)).astype(np.intp)


def _local_ports(last: Words, sends: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    ports = np.where(sends, last, last >> np.uint64(16)) & np.uint64(0xFFFF)  # in network order
    return ports.astype(np.uint16).byteswap()


def _described(flow_id: int, name: bytes, level: _Level) -> Aggregate:
    address, last = name[:16], int.from_bytes(name[16:], "little")
    four = address[:12] == bytes(10) + b"\xff\xff"
    port = last >> _PORT_SHIFT & 0xFFFF
    if last >> _LEVEL_SHIFT == _REMOTE:
        return Aggregate(flow_id, last & 0xFFFFFFFF, address, 32 if four else 128, remote_port=port)
    bits = 0 if port else level.bits[0 if four else 1]
    return Aggregate(flow_id, last & 0xFFFFFFFF, address, bits, port)
