# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the channel, against servers that do what a collector does not: on raw sockets."""

import contextlib
import random
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from authorities import expired, pki, security
from collector_stream import Host, hello
from collector_thread import collecting
from hpack import Encoder
from sent_agent import LIMIT, Sent, check_whole, introduction, put
from waiting import free_port, wait_for

from collector.settings import ListenConfig
from netmon.agent.connection import End, GrpcConnection, Outgoing, connect_by_grpc
from netmon.agent.exchange import ClockExchanges
from netmon.agent.recorder import Pulls
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.wire import grpc_client, netmon_pb2
from netmon.wire.grpc_client import BrokenError, Call, Protocol
from netmon.wire.security import PLAIN, Identity, Role, Security

Serve = Callable[[socket.socket], None]

# --- Frames of a server, as RFC 9113 has them.

DATA, HEADERS, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, MORE = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, body: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def headers(*pairs: tuple[str, str], flags: int = END_HEADERS, stream: int = 1) -> bytes:
    return frame(HEADERS, Encoder().encode(pairs), flags, stream)


def message(data: bytes, stream: int = 1) -> bytes:
    return frame(DATA, b"\0" + len(data).to_bytes(4, "big") + data, 0, stream)


def acknowledgement(sequence: int) -> bytes:
    return message(netmon_pb2.Acknowledgement(sequence=sequence).SerializeToString())


def setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


SETTLED = frame(SETTINGS)
WIDE = frame(SETTINGS, setting(4, (1 << 31) - 1)) + frame(WINDOW, b"\x3f\xff\xff\xff")
BEGUN = headers((":status", "200"), ("content-type", "application/grpc"))


def trailers(*pairs: tuple[str, str]) -> bytes:
    return headers(*pairs, flags=END_HEADERS | END_STREAM)


def away(last: int, code: int, said: bytes = b"") -> bytes:
    return frame(GOAWAY, last.to_bytes(4, "big") + code.to_bytes(4, "big") + said)


@contextlib.contextmanager
def serving(serve: Serve, host: str = "127.0.0.1") -> Iterator[str]:
    """A server that does this with each of its connections; where it is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        ended = False

        def accept() -> None:
            while not ended:
                with contextlib.suppress(OSError):
                    near, _ = server.accept()
                    near.settimeout(30)
                    with near:
                        serve(near)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"[{host}]:{server.getsockname()[1]}" if ":" in host else f"{host}:{server.getsockname()[1]}"
        ended = True
        with contextlib.suppress(OSError), socket.create_connection(server.getsockname()[:2]):
            pass
        thread.join(30)


def says(*pieces: bytes, stays: bool = True) -> Serve:
    """Whatever it is asked."""

    def serve(near: socket.socket) -> None:
        near.recv(1 << 16)
        near.sendall(b"".join(pieces))
        while stays and near.recv(1 << 16):
            pass

    return serve


def greet(near: socket.socket, settings: bytes = SETTLED) -> None:
    """Until a call is begun."""
    near.sendall(settings)
    heard = b""
    while HEADERS not in kinds(heard[24:]):
        data = near.recv(1 << 16)
        if not data:
            raise ConnectionError
        heard += data


def kinds(data: bytes) -> list[int]:
    """Of the frames in it."""
    found = []
    while len(data) >= 9:
        found.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return found


def answers(*pieces: bytes, settings: bytes = SETTLED) -> Serve:
    """A call."""

    def serve(near: socket.socket) -> None:
        greet(near, settings)
        near.sendall(b"".join(pieces))
        while near.recv(1 << 16):
            pass

    return serve


def floods(piece: bytes, begun: bytes = BEGUN) -> Serve:
    """Without end, whether it is read or not."""

    def serve(near: socket.socket) -> None:
        greet(near)
        near.sendall(begun)
        while True:
            near.sendall(piece * 50)

    return serve


class Agent:
    """A spool with a batch, and a connection."""

    def __init__(self, folder: Path, address: str, own: Security = PLAIN, clock: bool = False) -> None:
        self.spool = Spool(SpoolFolder(folder / "spool"), "s1", LIMIT, lambda lost: None)
        self.spool.hello = introduction(hello(host="h0", session="s1"))
        self.host, self.pulls = Host(), Pulls(None)
        self.append()
        exchanges = ClockExchanges() if clock else None
        outgoing = Outgoing(self.spool, self.pulls, lambda: False)
        self.connection = GrpcConnection(address, outgoing, exchanges, 60, own)
        self.ends: list[End] = []
        self.heard = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def append(self) -> None:
        put(self.spool, self.host.batch())

    def _run(self) -> None:
        self.ends.append(self.connection.run(self.heard.set, {}))

    def __enter__(self) -> "Agent":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.end("the test is over")
        self._thread.join(30)
        self.spool.close()

    def ended(self, seconds: float = 60) -> End:
        self._thread.join(seconds)
        assert self.ends, "it goes on"
        return self.ends[0]


@pytest.fixture
def ended(tmp_path: Path) -> Callable[[Serve], End]:
    def of(serve: Serve) -> End:
        with serving(serve) as address, Agent(tmp_path, address) as agent:
            return agent.ended()

    return of


# --- What a server may say.

BOMB = Encoder().encode([("x", "y" * 4000)])
WORDS = {
    "nothing": (says(stays=False), "it hangs up: does it want TLS"),
    "http/1": (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "no gRPC server: it says HTTP/1.1 400 Bad Request$"),
    "ssh": (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "no gRPC server: it does not speak HTTP/2$"),
    "tls": (says(b"\x15\x03\x03\x00\x02\x02\x0a"), "it hangs up: does it want TLS"),
    "http/2": (answers(trailers((":status", "404"))), "^unimplemented: it is no gRPC server: it says HTTP 404$"),
    "no status": (answers(BEGUN, frame(DATA, b"", END_STREAM, 1)), "^unknown: it has ended the call without a status$"),
    "a status": (
        answers(BEGUN, trailers(("grpc-status", "9"), ("grpc-message", "caf%C3%A9 %zz"))),
        "^failed_precondition: café %zz$",
    ),
    "a long number": (
        answers(BEGUN, trailers(("grpc-status", "9" * 5000), ("netmon-sequence", "9" * 5000))),
        "^unknown: $",
    ),
    "a status with a space": (
        answers(BEGUN, trailers(("grpc-status", "2"), ("grpc-message", " it fails: "))),
        "^unknown:  it fails: $",
    ),
    "a strange status": (answers(BEGUN, trailers(("grpc-status", "99"))), "^unknown: $"),
    "reset": (
        answers(BEGUN, frame(RESET, (7).to_bytes(4, "big"), 0, 1)),
        r"^unavailable: it has reset the call \(7\)$",
    ),
    "reset strangely": (answers(BEGUN, frame(RESET, b"\xff" * 4, 0, 1)), "^internal: it has reset the call"),
    "goes away": (answers(BEGUN, away(1, 11, b"too_many_pings")), r"^unavailable: it goes away \(too_many_pings\)$"),
    "went away": (answers(BEGUN, away(0, 0)), r"^unavailable: it goes away \(error 0\)$"),
    "no acknowledgement": (answers(BEGUN, message(b"\xff\xff")), "^internal: what it says is no acknowledgement$"),
    "compressed": (answers(BEGUN, frame(DATA, b"\1\0\0\0\1x", 0, 1)), "^resource_exhausted: .* is compressed$"),
    "too long": (answers(BEGUN, frame(DATA, b"\0\xff\0\0\0x", 0, 1)), "^resource_exhausted: .* has 4278190080 bytes"),
    "a large frame": (
        answers(BEGUN, b"\xff\xff\xff\0\0\0\0\0\1"),
        "^internal: it breaks HTTP/2: a frame is too large$",
    ),
    "a push": (answers(BEGUN, frame(PUSH, b"\0\0\0\2" + BOMB, END_HEADERS, 1)), "^internal: it breaks HTTP/2"),
    "no calls": (says(frame(SETTINGS, setting(3, 0))), "^internal: it breaks HTTP/2: "),
    "a window": (answers(BEGUN, frame(WINDOW, b"\x7f\xff\xff\xff") * 2), "^internal: it breaks HTTP/2"),
    "a header bomb": (
        answers(frame(HEADERS, BOMB + b"\xbe" * 10, END_HEADERS, 1)),
        "^internal: it breaks HTTP/2",
    ),
    "no hpack": (answers(frame(HEADERS, b"\xff" * 20, END_HEADERS, 1)), "^internal: it breaks HTTP/2"),
    "headers": (floods(frame(MORE, BOMB, 0, 1), frame(HEADERS, b"", 0, 1)), "^internal: it breaks HTTP/2"),
    "settings": (floods(SETTLED), "^resource_exhausted: it sends more frames"),
    "pings": (floods(frame(PING, b"12345678")), "^resource_exhausted: it sends more frames"),
    "empty data": (floods(frame(DATA, b"", 0, 1)), "^resource_exhausted: it sends more frames"),
    "unknown frames": (floods(frame(77, b"x", 0, 1)), "^resource_exhausted: it sends more frames"),
    "acknowledgements": (floods(acknowledgement(0)), "^resource_exhausted: it sends more frames"),
}


@pytest.mark.parametrize("what", WORDS)
def test_whatever_a_server_says_ends_the_connection_in_words(what: str, ended: Callable[[Serve], End]) -> None:
    serve, reason = WORDS[what]
    end = ended(serve)
    assert re.search(reason, end.reason), end.reason


def test_who_asks_and_reads_nothing_is_left() -> None:
    protocol = Protocol("h")
    protocol.receive(SETTLED, 0.0)

    def ask() -> None:
        for second in range(10_000):
            protocol.receive(frame(PING, b"12345678") * 900, float(second))

    with pytest.raises(BrokenError, match="asks more and more, and reads no answer"):
        ask()
    assert len(protocol.out) < 2 << 20


def test_bytes_of_strangers_break_a_connection_and_nothing_else() -> None:
    chance = random.Random(1)
    good = [BEGUN, BEGUN, acknowledgement(3), frame(PING, b"12345678"), frame(WINDOW, b"\0\0\1\0"), away(1, 0)]
    good += [trailers(("grpc-status", "3"), ("netmon-sequence", "7")), frame(RESET, b"\0\0\0\x08", 0, 1)]
    good += [frame(SETTINGS, setting(4, 1 << 20) + setting(5, 1 << 15)), frame(77, b"?"), frame(DATA, b"", 1, 3)]
    broken = 0
    for _ in range(3000):
        protocol = Protocol("h")
        calls = [protocol.open("/a"), protocol.open("/b")]
        pieces = bytearray(SETTLED + b"".join(chance.choices(good, k=6)))
        for _ in range(chance.randrange(4)):
            pieces[chance.randrange(len(pieces))] = chance.randrange(256)
        try:
            for at in range(0, len(pieces), 40):
                protocol.receive(bytes(pieces[at : at + 40]), 0.0)
                calls[0].send(b"x" * 100)
                protocol.fill()
        except BrokenError:
            broken += 1
    assert 0 < broken < 3000


def test_messages_come_in_any_pieces() -> None:
    protocol = Protocol("h")
    call = protocol.open("/a")
    for byte in SETTLED + BEGUN + acknowledgement(5) + message(b"") + trailers(("grpc-status", "0"), ("a", "b")):
        protocol.receive(bytes([byte]), 0.0)
    assert list(call.messages) == [netmon_pb2.Acknowledgement(sequence=5).SerializeToString(), b""]
    assert call.status
    assert (call.status.code, call.status.metadata["a"]) == ("ok", "b")


def test_who_goes_away_in_order_may_end_what_it_began(ended: Callable[[Serve], End]) -> None:
    last = trailers(("grpc-status", "14"), ("grpc-message", "it ends"))
    end = ended(answers(BEGUN + away(1, 0) + frame(PING, b"12345678") + acknowledgement(1) + last))
    assert end == End("unavailable: it ends", answered=True)


def test_who_goes_away_is_asked_no_more(tmp_path: Path) -> None:
    last = trailers(("grpc-status", "14"), ("grpc-message", "it ends"))

    def serve(near: socket.socket) -> None:
        greet(near)
        near.sendall(BEGUN + away(3, 0) + acknowledgement(1) + frame(RESET, b"\0\0\0\0", 0, 3))
        time.sleep(1.5)  # by then another question would have been asked
        near.sendall(last)
        while near.recv(1 << 16):
            pass

    with serving(serve) as address, Agent(tmp_path, address, clock=True) as agent:
        assert agent.ended() == End("unavailable: it ends", answered=True)


def test_a_message_goes_out_as_far_as_the_other_end_takes_it() -> None:
    protocol = Protocol("h")
    protocol.receive(frame(SETTINGS, setting(4, 10)), 0.0)
    call = protocol.open("/a")
    protocol.out.clear()
    call.send(b"x" * 20)
    call.finish()
    protocol.fill()
    assert sent(protocol, call) == b"\0\0\0\0\x14" + b"x" * 5
    protocol.receive(frame(WINDOW, b"\0\0\0\x0f", 0, 1), 0.0)
    protocol.fill()
    assert bytes(protocol.out).endswith(frame(DATA, b"x" * 15, 0, 1) + frame(DATA, b"", END_STREAM, 1))


def sent(protocol: Protocol, call: Call) -> bytes:
    whole = bytes(protocol.out)
    protocol.out.clear()
    size = int.from_bytes(whole[:3], "big")
    assert whole[3:9] == bytes([DATA, 0]) + call.number.to_bytes(4, "big")
    return whole[9 : 9 + size]


def test_a_collector_that_does_not_read_fills_no_memory(tmp_path: Path) -> None:
    """Neither where its window is full, nor its socket."""
    for begun in (SETTLED, WIDE):
        asleep = threading.Event()

        def serve(near: socket.socket, begun: bytes = begun, asleep: threading.Event = asleep) -> None:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            greet(near, begun)
            asleep.wait(60)

        with serving(serve) as address, Agent(tmp_path / str(len(begun)), address) as agent:
            for number in range(2, 100):
                agent.spool.append(number, b"x" * (1 << 18), b"", b"")
            wait_for(lambda agent=agent: agent.spool.handed_out > 1 or len(agent.ends) > 0)
            time.sleep(0.3)
            assert 1 <= agent.spool.handed_out < 50
            begin = time.monotonic()
            agent.connection.end("enough")
            assert agent.ended().reason == "enough"
            assert time.monotonic() - begin < 5
            asleep.set()


def test_all_goes_at_once_to_who_takes_it(tmp_path: Path) -> None:
    """And says nothing meanwhile."""
    got = []

    def serve(near: socket.socket) -> None:
        greet(near, WIDE)
        while data := near.recv(1 << 20):
            got.append(len(data))

    with serving(serve) as address, Agent(tmp_path, address) as agent:
        for number in range(2, 40):
            agent.spool.append(number, b"x" * 700_000, b"", b"")
        wait_for(lambda: sum(got) > 37 * 700_000)


def test_who_acknowledges_each_of_many_is_kept(tmp_path: Path) -> None:
    def serve(near: socket.socket) -> None:
        greet(near, WIDE)
        near.sendall(BEGUN)
        time.sleep(0.5)
        for number in range(1, 8000):
            near.sendall(acknowledgement(number))
        while near.recv(1 << 20):
            pass

    with serving(serve) as address, Agent(tmp_path, address) as agent:
        for number in range(2, 8000):
            agent.spool.append(number, b"x", b"", b"")
        wait_for(lambda: agent.spool.acknowledged == 7999 or len(agent.ends) > 0)
        assert not agent.ends


def test_who_does_not_answer_a_ping_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "KEEPALIVE_S", 0.3)
    monkeypatch.setattr(grpc_client, "KEEPALIVE_TIMEOUT_S", 0.3)
    with serving(answers(BEGUN + acknowledgement(1))) as address, Agent(tmp_path, address) as agent:
        assert agent.ended() == End("unavailable: ping timeout", answered=True)


def test_who_answers_pings_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "KEEPALIVE_S", 0.1)
    pings = []

    def serve(near: socket.socket) -> None:
        greet(near)
        near.sendall(BEGUN)
        while data := near.recv(1 << 16):
            if b"netmon??" in data:
                pings.append(data)
                near.sendall(frame(PING, b"netmon??", 1))

    with serving(serve) as address, Agent(tmp_path, address) as agent:
        wait_for(lambda: len(pings) > 5)
        assert not agent.ends


# --- The way there.


def test_a_mute_peer_is_left_after_a_second(ended: Callable[[Serve], End]) -> None:
    begin = time.monotonic()
    assert ended(says()).reason == "unavailable: nobody answers within 1 s"
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("own", [PLAIN, security(Role.AGENT, "h0")], ids=["plain", "tls"])
def test_it_ends_at_once_while_it_connects(tmp_path: Path, own: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "CONNECT_S", 1000.0)
    with serving(says()) as address, Agent(tmp_path, address, own) as agent:
        time.sleep(0.2)
        agent.connection.end("enough")
        assert agent.ended(20).reason == "enough"


def test_it_ends_at_once_while_a_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lookup(lambda *_: asleep.wait(60) and []))
    with Agent(tmp_path, "head.example:1", Security(insecure=True)) as agent:
        time.sleep(0.2)
        agent.connection.end("enough")
        assert agent.ended(20).reason == "enough"
        asleep.set()


def lookup(found: Callable[[str, int], object]) -> Callable[..., object]:
    real = socket.getaddrinfo

    def ask(host: str, port: int, *args: object, **options: object) -> object:
        return found(host, port) if host == "head.example" and not options.get("flags") else real(host, port, **options)

    return ask


def test_every_address_of_a_name_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answers(BEGUN + acknowledgement(1))) as address:
        port = int(address.rpartition(":")[2])
        dead = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", free_port()))
        good = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lookup(lambda *_: [dead, good]))
        with Agent(tmp_path, f"head.example:{port}", Security(insecure=True)) as agent:
            wait_for(agent.heard.is_set)


@pytest.mark.parametrize("given", ["{}", "ipv6:{}", "dns:///{}"])
def test_ipv6(tmp_path: Path, given: str) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with serving(answers(BEGUN + acknowledgement(1)), "::1") as address:  # noqa: SIM117
        with Agent(tmp_path, given.format(address)) as agent:
            wait_for(agent.heard.is_set)


NOWHERE = {
    "127.0.0.1:1": r"^unavailable: 127\.0\.0\.1:1: Connection refused$",
    "unix:/nowhere": "^unavailable: /nowhere: No such file or directory$",
    "head.invalid:1": "^unavailable: head.invalid: ",
    "localhost": "^cannot connect to localhost: give HOST:PORT",
}


@pytest.mark.parametrize("address", NOWHERE)
def test_where_nobody_is(tmp_path: Path, address: str) -> None:
    with Agent(tmp_path, address, Security(insecure=True)) as agent:
        end = agent.ended()
    assert re.search(NOWHERE[address], end.reason), end.reason


def test_no_proxy_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    with serving(answers(BEGUN + acknowledgement(1))) as address, Agent(tmp_path, address) as agent:
        wait_for(agent.heard.is_set)


# --- A real collector with TLS.


@contextlib.contextmanager
def protected(folder: Path, own: Security) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    with collecting(address, folder / "data", listen_config=ListenConfig(own)):
        wait_for(lambda: listens(address))
        yield address


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
        return True
    return False


@contextlib.contextmanager
def ended_certificate() -> Iterator[str]:
    """A server that shows one; a collector would not begin with it."""
    folder = expired(pki("ours"), Identity(Role.COLLECTOR, "old"), 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    def serve(near: socket.socket) -> None:
        with context.wrap_socket(near, server_side=True) as inside:
            inside.recv(100)

    with serving(serve) as address:
        yield address


def test_an_agent_with_tls(tmp_path: Path) -> None:
    with protected(tmp_path, security(Role.COLLECTOR, "c")) as address:
        sent = Sent(tmp_path / "spool", address, connect=connect_by_grpc(address, security(Role.AGENT, "h0")))
        sent.start()
        sent.append(300)
        sent.finish()
        assert len(sent.exchanges.take()) > 0
    check_whole(tmp_path / "data", sent)


def test_why_tls_fails_is_said(tmp_path: Path) -> None:
    ours, theirs = security(Role.AGENT, "h0"), security(Role.AGENT, "h0", "theirs")
    made = pki("ours")
    with protected(tmp_path, security(Role.COLLECTOR, "c")) as address:
        for own, reason in (
            (PLAIN, "it hangs up: does it want TLS"),
            (theirs, "of another authority than our ca.crt"),
            (Security(tmp_path / "none"), "cannot read .*ca.crt: No such file"),
            (security(Role.FULL, "ann"), "is viewer ann's; a certificate of agent is needed here"),
            (security(Role.AGENT, "h1"), "^permission_denied: agent h1 says that it is h0"),
        ):
            with Agent(tmp_path / "agent", address, own) as agent:
                end = agent.ended()
            assert re.search(reason, end.reason), end.reason
    named = Security(made.issue(Identity(Role.COLLECTOR, "d"), ["10.9.9.9"]).folder)
    with protected(tmp_path / "named", named) as address, Agent(tmp_path / "agent", address, ours) as agent:
        assert "its certificate is for other addresses" in agent.ended().reason
    with ended_certificate() as address, Agent(tmp_path / "agent", address, ours) as agent:
        assert "the certificate of collector old has expired on" in agent.ended().reason
    with serving(says()) as address, Agent(tmp_path / "agent", address, ours) as agent:
        assert agent.ended().reason == "unavailable: nobody answers within 1 s"
    with protected(tmp_path / "plain", PLAIN) as address, Agent(tmp_path / "agent", address, ours) as agent:
        assert "it speaks no TLS there" in agent.ended().reason


# --- What an agent takes.

WITHOUT = """
import sys
import netmon.commands.agent, netmon.agent.agent, netmon.agent.metrics, netmon.kernel.privileged
print([name for name in sys.modules if name.split(".")[0] in ("grpc", "pandas", "pyarrow")])
"""


def test_an_agent_does_without_grpc() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
