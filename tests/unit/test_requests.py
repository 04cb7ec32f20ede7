# SPDX-License-Identifier: Apache-2.0
"""What the part without capabilities may ask of the part that has them: these forms, and nothing beside them."""

import struct

import pytest

from netmon.kernel.requests import (
    MOST_BYTES,
    MOST_ENDPOINTS,
    FindOwners,
    Look,
    LookClosely,
    LookElsewhere,
    More,
    ReadPosted,
    RefusedError,
    Start,
    decode,
    encode,
)
from netmon.kernel.sock_diag import Endpoint

FOUR, SIX = Endpoint(6, "10.0.0.1", 5999, "10.0.0.2", 40_000), Endpoint(17, "fe80::1", 53, "fe80::2", 1024)
START = Start((("eth0", 2), ("größe0", 3), ("ens1f0np0", 2**31 - 1)), "auto", 10_000, 0, "each")


def start(
    hook: int = 0, bucket_ns: int = 10_000, flows: int = 0, index: int = 2, name: bytes = b"eth0", transfers: int = 1
) -> bytes:
    return b"\1" + struct.pack("<BQIBI16s", hook, bucket_ns, flows, transfers, index, name)


def owners(*ends: tuple[int, bytes, bytes], form: bytes = b"\4") -> bytes:
    return form + b"".join(bytes([protocol]) + local + remote + bytes(4) for protocol, local, remote in ends)


MAPPED = bytes(10) + b"\xff\xff" + bytes(4)


@pytest.mark.parametrize(
    "request_",
    [START, Look(), More(), LookClosely(), ReadPosted(), FindOwners([FOUR, SIX]), LookElsewhere([FOUR])],
)
def test_what_is_encoded_is_decoded(request_) -> None:
    assert decode(encode(request_)) == request_


def test_a_request_holds_so_many_endpoints() -> None:
    assert len(encode(FindOwners([FOUR] * (MOST_ENDPOINTS + 1)))) <= MOST_BYTES
    assert decode(encode(FindOwners([FOUR] * (MOST_ENDPOINTS + 1)))) == FindOwners([FOUR] * MOST_ENDPOINTS)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\0",
        b"\x08",
        b"\7\0",
        b"\xff" * 100,
        b"\2\0",
        b"\3\0",
        b"\2" + bytes(MOST_BYTES),
        b"\1",
        start()[:-1],
        start() + b"\0",
        start()[:15],  # no interface
        start(hook=3),
        start(transfers=3),
        start(bucket_ns=0),
        start(bucket_ns=999),
        start(bucket_ns=1_000_000_001),
        start(bucket_ns=2**64 - 1),
        start(flows=(1 << 20) + 1),
        start(index=0),
        start(index=2**31),
        start(name=b""),
        start(name=b".."),
        start(name=b"../../etc"),
        start(name=b"a b"),
        start(name=b"a\0b"),
        start(name=b"\x1b[2J"),
        start(name=b"\xff"),
        start(name=16 * b"x"),
        start() + 256 * struct.pack("<I16s", 2, b"eth0"),
        b"\4",
        owners((6, MAPPED, MAPPED))[:-1],
        owners((1, MAPPED, MAPPED)),
        owners((6, MAPPED, bytes(15) + b"\1")),
        owners((17, MAPPED, MAPPED), form=b"\5"),
        owners(*[(6, MAPPED, MAPPED)] * (MOST_ENDPOINTS + 1)),
        b'{"operation": "start", "interfaces": [], "hook": "auto", "geometry": {"bucket_ns": "({ 1; })"}}',
    ],
)
def test_what_has_none_of_the_forms_is_refused(packet: bytes) -> None:
    with pytest.raises(RefusedError):
        decode(packet)


def test_the_packets_of_the_tests_are_well_formed_but_for_what_they_break() -> None:
    assert decode(start()) == Start((("eth0", 2),), "auto", 10_000, 0, "operations")
    assert decode(owners((6, MAPPED, MAPPED))) == FindOwners([Endpoint(6, "0.0.0.0", 0, "0.0.0.0", 0)])
