# SPDX-License-Identifier: Apache-2.0
"""The kernel's tables and answers about sockets, as text and bytes."""

import os
import socket
from pathlib import Path

import pytest

from netmon.kernel.owners import namespaces, owner_search
from netmon.kernel.owners.owner_search import Found, SocketOwners, SocketTable, find_sockets
from netmon.kernel.sock_diag import DiagnosisSocket, Endpoint, packed
from netmon.rate_limiter import TimeLimiter

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: str, remote: str, state: str, inode: int) -> str:
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 2 ffff 0\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A namespace as /proc/5/net tells of it."""
    net = tmp_path / "5/net"
    net.mkdir(parents=True)
    established = row("0201A8C0:1770", "0301A8C0:C350", "01", 11)
    gone = row("0201A8C0:1770", "0301A8C0:C351", "06", 0)
    (net / "tcp").write_text(HEAD + row("00000000:1770", "00000000:0000", "0A", 10) + established + gone)
    mapped = row("0000000000000000FFFF00000201A8C0:1771", "0000000000000000FFFF00000301A8C0:C350", "01", 12)
    (net / "tcp6").write_text(HEAD + mapped + row("0" * 32 + ":1772", "0" * 32 + ":0000", "0A", 13))
    (net / "udp").write_text(
        HEAD + row("00000000:1B58", "00000000:0000", "07", 20) + row("0201A8C0:1B58", "00000000:0000", "07", 21)
    )
    (net / "fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.168.1.2\n        /32 host LOCAL\n"
        "     |-- 192.168.1.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
    )
    (net / "if_inet6").write_text(
        "fd000000000000000000000000000002 02 40 00 80 eth0\n" + "0" * 31 + "1 01 80 10 80 lo\n"
    )
    monkeypatch.setattr(owner_search, "PROC", tmp_path)
    monkeypatch.setattr(namespaces, "PROC", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        (Endpoint(TCP, "192.168.1.2", 6000, "192.168.1.3", 50000), Found(11)),
        (Endpoint(TCP, "192.168.1.2", 6000, "192.168.1.3", 50001), Found(10, True, False)),
        (Endpoint(TCP, "192.168.1.2", 6001, "192.168.1.3", 50000), Found(12)),
        (Endpoint(TCP, "192.168.1.2", 6002, "192.168.1.3", 1), Found(13, True, False)),
        (Endpoint(TCP, "192.168.1.2", 6003, "192.168.1.3", 1), None),
        (Endpoint(UDP, "192.168.1.2", 7000, "192.168.1.3", 1), Found(21, False, False)),
        (Endpoint(UDP, "192.168.1.9", 7000, "192.168.1.3", 1), Found(20, False, False)),
    ],
)
def test_connected_comes_before_bound_and_an_address_before_any(proc: Path, endpoint: Endpoint, found: Found) -> None:
    assert SocketTable("5").find(endpoint) == found


def test_a_namespace_tells_its_addresses(proc: Path) -> None:
    assert set(namespaces._read_addresses(5)) == {"192.168.1.2", "192.168.1.255", "fd00::2"}
    assert set(namespaces._read_addresses(6)) == set()


def test_both_ends_are_packed_as_the_kernel_tells_of_them() -> None:
    endpoint = Endpoint(TCP, "192.0.2.1", 6000, "2001:db8::1", 0x1234)
    assert packed(endpoint) == (
        bytes(10) + b"\xff\xff\xc0\x00\x02\x01"  # IPv4-mapped
        + b"\x20\x01\x0d\xb8" + bytes(11) + b"\x01"
        + b"\x17\x70\x12\x34"  # network order
    )  # fmt: skip
    assert endpoint.reversed().reversed() == endpoint


def test_the_kernel_finds_our_own_sockets() -> None:
    diagnosis = DiagnosisSocket()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        server, _ = listener.accept()
        datagrams.bind(("127.0.0.1", 0))
        near, far = listener.getsockname(), client.getsockname()
        asked = [
            Endpoint(TCP, *near, *far),
            Endpoint(TCP, *far, *near),
            Endpoint(TCP, *near, "127.0.0.1", 1),
            Endpoint(UDP, *datagrams.getsockname(), "127.0.0.1", 1),
            Endpoint(TCP, "127.0.0.1", 1, "127.0.0.1", 1),
        ]
        inodes = [os.fstat(s.fileno()).st_ino for s in (server, client, listener, datagrams)]
        found = find_sockets(diagnosis, asked * 40)  # more than are asked for at a time
        assert found == 40 * [
            Found(inodes[0]),
            Found(inodes[1]),
            Found(inodes[2], listening=True, connected=False),
            Found(inodes[3], connected=False),
            None,
        ]
        assert SocketOwners().find(set(inodes), [os.getpid()]) == dict.fromkeys(inodes, os.getpid())
        server.close()
    diagnosis.close()


def test_work_that_takes_too_much_time_has_to_wait() -> None:
    limiter = TimeLimiter(share=1e-9, burst_ns=1)
    assert limiter.allows()
    with limiter:
        sum(range(1000))
    assert not limiter.allows()
