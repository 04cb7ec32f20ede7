# SPDX-License-Identifier: Apache-2.0
"""Every request that the part without capabilities can make of the part that has them: all forms, and their one check.

A request is one packet: a byte for the form, then fields of fixed width, little-endian, up to the last byte. The only
text is an interface's name, which has to be one that the kernel could have given.

| form | fields | makes the privileged part |
| --- | --- | --- |
| `Start` | hook, bucket width, flow slots, transfers, interfaces | load and attach our programs; hand over their maps |
| `Look` | – | look at all processes; probe the libraries of those that train, hand over their timelines |
| `More` | – | send the next page of the last look's ranks |
| `FindOwners` | ends of connections | find whose the connections are |
| `LookElsewhere` | ends of TCP connections | read TCP's counters of connections in other network namespaces |
| `LookClosely` | – | read what the last look's ranks do: states, CPU time, bytes read and written |
| `ReadPosted` | – | say what was posted to RDMA devices since the last time |

`Start` is answered once, before all others. It chooses sizes within ranges: no path, flag or code comes with it.
No request names a process, a user, a file, a program, a map or a descriptor: which libraries are probed and which
files are handed over follows from what the kernel says of the processes that train (`training.timelines`).

What breaks a rule is refused and counted, does nothing, and the connection goes on: to end would let one flaw of ours
detach everything, and nothing is gained by it, as the same packet is refused the next time, too.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from socket import IPPROTO_TCP, IPPROTO_UDP

from netmon.errors import KernelError
from netmon.kernel.meter.memory import MAX_BUCKET_NS, MAX_SLOTS, MIN_BUCKET_NS
from netmon.kernel.sock_diag import MAPPED, Endpoint, address_text, packed

MOST_BYTES = 64 << 10
"""Of a request."""

MOST_ENDPOINTS, MOST_INTERFACES = 1000, 256
HOOKS = ("auto", "tc", "xdp")
TRANSFERS = ("none", "operations", "each")
"""How much is reported of what NCCL sends, as netmon.kernel.training.nccl numbers it."""

_START, _LOOK, _MORE, _FIND_OWNERS, _LOOK_ELSEWHERE, _LOOK_CLOSELY, _READ_POSTED = range(1, 8)
_SIZES = struct.Struct("<BQIB")  # hook, bucket width, flow slots, place in TRANSFERS
_INTERFACE = struct.Struct("<I16s")  # index, name
_ENDPOINT = struct.Struct("<B16s16s2s2s")  # protocol, then as netmon.kernel.sock_diag.packed
_MAX_INDEX = 2**31 - 1


class RefusedError(KernelError):
    """A request that has none of the forms, or comes when it may not."""


@dataclass(frozen=True)
class Start:
    """interfaces: (name, ifindex) of each; hook: of HOOKS; bucket_ns, flows: as choose_geometry takes them; transfers:
    of TRANSFERS.
    """

    interfaces: tuple[tuple[str, int], ...]
    hook: str
    bucket_ns: int
    flows: int
    transfers: str = "none"


@dataclass(frozen=True)
class Look:
    """Has no fields."""


@dataclass(frozen=True)
class More:
    """Has no fields."""


@dataclass(frozen=True)
class FindOwners:
    """endpoints: of TCP or UDP, MOST_ENDPOINTS at most."""

    endpoints: Sequence[Endpoint]


@dataclass(frozen=True)
class LookElsewhere:
    """endpoints: of TCP, MOST_ENDPOINTS at most."""

    endpoints: Sequence[Endpoint]


@dataclass(frozen=True)
class LookClosely:
    """Has no fields."""


@dataclass(frozen=True)
class ReadPosted:
    """Has no fields."""


Request = Start | Look | More | FindOwners | LookElsewhere | LookClosely | ReadPosted
_WITHOUT_FIELDS: dict[int, type[Look | More | LookClosely | ReadPosted]] = {
    **{_LOOK: Look, _MORE: More},
    **{_LOOK_CLOSELY: LookClosely, _READ_POSTED: ReadPosted},
}


def encode(request: Request) -> bytes:
    """The packet. Beyond MOST_ENDPOINTS endpoints are left out."""
    if isinstance(request, Start):
        transfers = TRANSFERS.index(request.transfers)
        sizes = _SIZES.pack(HOOKS.index(request.hook), request.bucket_ns, request.flows, transfers)
        interfaces = (_INTERFACE.pack(index, name.encode()) for name, index in request.interfaces)
        return bytes([_START]) + sizes + b"".join(interfaces)
    if isinstance(request, (FindOwners, LookElsewhere)):
        form = _FIND_OWNERS if isinstance(request, FindOwners) else _LOOK_ELSEWHERE
        endpoints = request.endpoints[:MOST_ENDPOINTS]
        return bytes([form]) + b"".join(bytes([endpoint.protocol]) + packed(endpoint) for endpoint in endpoints)
    return bytes(form for form, kind in _WITHOUT_FIELDS.items() if isinstance(request, kind))


def decode(packet: bytes) -> Request:
    """The one check. Raises RefusedError with the rule that was broken."""
    form, fields = packet[:1], packet[1:]
    if len(packet) > MOST_BYTES:
        raise RefusedError("it is too long")
    if form == bytes([_START]):
        return _start(fields)
    if form == bytes([_FIND_OWNERS]):
        return FindOwners(_endpoints(fields, (IPPROTO_TCP, IPPROTO_UDP)))
    if form == bytes([_LOOK_ELSEWHERE]):
        return LookElsewhere(_endpoints(fields, (IPPROTO_TCP,)))
    plain = _WITHOUT_FIELDS.get(int.from_bytes(form, "little"))
    if plain is None:
        raise RefusedError("there is no such form")
    if fields:
        raise RefusedError("this form has no fields")
    return plain()


def _start(fields: bytes) -> Start:
    if len(fields) < _SIZES.size or (len(fields) - _SIZES.size) % _INTERFACE.size:
        raise RefusedError("its fields are not those of a start")
    hook, bucket_ns, flows, transfers = _SIZES.unpack_from(fields)
    if (
        max(hook - len(HOOKS), transfers - len(TRANSFERS)) >= 0
        or not MIN_BUCKET_NS <= bucket_ns <= MAX_BUCKET_NS
        or flows > MAX_SLOTS
    ):
        raise RefusedError("a hook, a bucket width or a number of flows is out of range")
    interfaces = tuple((_interface_name(name), index) for index, name in _INTERFACE.iter_unpack(fields[_SIZES.size :]))
    if not 1 <= len(interfaces) <= MOST_INTERFACES or not all(1 <= index <= _MAX_INDEX for _, index in interfaces):
        raise RefusedError("a number of interfaces or an ifindex is out of range")
    return Start(interfaces, HOOKS[hook], bucket_ns, flows, TRANSFERS[transfers])


def _interface_name(field: bytes) -> str:
    """As the kernel's dev_valid_name has it, in UTF-8 that can be shown."""
    name, end, rest = field.partition(b"\0")
    text = name.decode(errors="replace")
    valid = text.isprintable() and text.encode() == name not in (b"", b".", b"..") and not set(name) & set(b"/: ")
    if not end or any(rest) or not valid:
        raise RefusedError("what it names is no interface")
    return text


def _endpoints(fields: bytes, protocols: Sequence[int]) -> list[Endpoint]:
    if not fields or len(fields) % _ENDPOINT.size or len(fields) > MOST_ENDPOINTS * _ENDPOINT.size:
        raise RefusedError("its fields are not ends of connections")
    endpoints = []
    for protocol, local, remote, local_port, remote_port in _ENDPOINT.iter_unpack(fields):
        if protocol not in protocols or local.startswith(MAPPED) != remote.startswith(MAPPED):
            raise RefusedError("an end of a connection is of another protocol, or of two families")
        ports = int.from_bytes(local_port, "big"), int.from_bytes(remote_port, "big")
        endpoints.append(Endpoint(protocol, address_text(local), ports[0], address_text(remote), ports[1]))
    return endpoints
