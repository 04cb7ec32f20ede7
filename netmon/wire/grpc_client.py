# SPDX-License-Identifier: Apache-2.0
"""A client of gRPC in one thread, which wakes when something has come and at no other time. HTTP/2 is h2's.

gRPC's own library takes 20 MB and multiple threads, and wakes them dozens of times a second: too much for an agent on a
host on which nothing happens.
"""

import contextlib
import errno
import math
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import unquote

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from netmon.errors import NetmonError, UsageError
from netmon.wire.limits import CONNECT_S, KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from netmon.wire.security import RESOLVERS

MOST_RECEIVED = 4 << 20
"""Bytes of a message that comes."""

CODES = (
    *("ok", "cancelled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists"),
    *("permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented"),
    *("internal", "unavailable", "data_loss", "unauthenticated"),
)
"""Of a status, by number."""

_AHEAD = 256 << 10  # bytes that wait for the socket, above which no more are made
_MOST_AHEAD = 1 << 20  # with answers to the other end's requests
_MOST_FRAME, _MOST_HEADERS = 1 << 14, 1 << 14
_FRAME_HEAD, _MESSAGE_HEAD = 9, 5
_SENT_FRAME = 64 << 10
_SETTINGS, _GOAWAY = 4, 7  # kinds of frames
# Whoever sends us more frames than this sends them to keep us busy: so many a second, and some for each that we sent.
_FRAMES, _FRAMES_PER_S, _FRAMES_PER_SENT, _MOST_FRAMES = 2000.0, 1000.0, 4, 1 << 16
_OF_RESET: dict[int, str] = {
    ErrorCodes.REFUSED_STREAM: "unavailable",
    ErrorCodes.CANCEL: "cancelled",
    ErrorCodes.ENHANCE_YOUR_CALM: "resource_exhausted",
}


class BrokenError(NetmonError):
    """A connection is over, and all its calls with it."""


class Status(NamedTuple):
    """How a call has ended."""

    code: str  # of CODES
    details: str
    metadata: Mapping[str, str]  # after the last message


class Call:
    """One of a connection."""

    def __init__(self, number: int) -> None:
        """number: of its stream."""
        self.number = number
        self.messages: deque[bytes] = deque()
        """That have come."""
        self.status: Status | None = None
        """None: it goes on."""
        self.waiting: deque[memoryview] = deque()
        """What the other end cannot take yet."""
        self.finished = self.finishing = False
        self._partial = bytearray()
        self._headers: dict[str, str] = {}

    def send(self, message: bytes) -> None:
        """It goes out piece by piece, as the other end takes it."""
        self.waiting.append(memoryview(b"\0" + len(message).to_bytes(4, "big")))
        if message:
            self.waiting.append(memoryview(message))

    def finish(self) -> None:
        """Nothing more will be sent than what waits."""
        if not self.finished:
            self.finished = self.finishing = True

    def take_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Of the beginning, or of the end."""
        self._headers |= {name.decode("ascii", "replace"): value.decode("latin-1") for name, value in headers}

    def take_data(self, data: bytes) -> None:
        """Part of a message, or of more than one. Raises BrokenError."""
        self._partial += data
        while len(self._partial) >= _MESSAGE_HEAD:
            size = int.from_bytes(self._partial[1:_MESSAGE_HEAD], "big")
            if self._partial[0] or size > MOST_RECEIVED:
                what = "is compressed" if self._partial[0] else f"has {size} bytes, more than {MOST_RECEIVED}"
                raise BrokenError(f"resource_exhausted: a message of the other end {what}")
            if len(self._partial) < _MESSAGE_HEAD + size:
                return
            self.messages.append(bytes(self._partial[_MESSAGE_HEAD : _MESSAGE_HEAD + size]))
            del self._partial[: _MESSAGE_HEAD + size]

    def end(self, code: str, details: str) -> None:
        """For ever; only the first reason counts."""
        self.status = self.status or Status(code, details, self._headers)
        self.waiting.clear()

    def end_in_order(self) -> None:
        """By what the other end has said of it."""
        number, http = self._headers.get("grpc-status", ""), self._headers.get(":status", "")
        if number:
            code = CODES[int(number)] if number in map(str, range(len(CODES))) else "unknown"
            self.end(code, unquote(self._headers.get("grpc-message", ""), errors="replace"))
        elif http != "200":
            self.end("unimplemented" if http == "404" else "unavailable", f"it is no gRPC server: it says HTTP {http}")
        else:
            self.end("unknown", "it has ended the call without a status")


class Protocol:
    """What is said on one connection. It knows no socket and no clock: bytes and times are given."""

    def __init__(self, authority: str, scheme: str = "http") -> None:
        # What gRPC's library says of an error may begin or end with a space, which HTTP/2 would not have in a header.
        self._h2 = H2Connection(H2Configuration(header_encoding=None, validate_inbound_headers=False))
        self._h2.local_settings = Settings(
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.MAX_FRAME_SIZE: _MOST_FRAME,
                SettingCodes.MAX_HEADER_LIST_SIZE: _MOST_HEADERS,
            }
        )
        self._h2.decoder.max_header_list_size = _MOST_HEADERS
        self._h2.initiate_connection()
        self._authority, self._scheme = authority, scheme
        self._unread = bytearray()
        self._calls: dict[int, Call] = {}
        self._allowed, self._allowed_s = _FRAMES, -math.inf
        self._allowed_by_sent = 0
        self.settled = False
        """Whether the other end has said what it is."""
        self.pinged = False  # and not answered
        self.leaving = ""  # why it takes no new calls
        self.out = bytearray(self._h2.data_to_send())
        """To be sent; who has sent some takes it away."""

    def open(self, path: str) -> Call:
        """A call. Raises BrokenError."""
        if self.leaving:
            raise BrokenError(self.leaving)
        call = Call(self._h2.get_next_available_stream_id())
        headers = [
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", path),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "netmon"),
        ]
        with _kept():
            self._h2.send_headers(call.number, headers)
        self._calls[call.number] = call
        self.out += self._h2.data_to_send()
        return call

    def cancel(self, call: Call) -> None:
        """It is over, whatever the other end says of it."""
        call.end("cancelled", "")
        self._forget(call)

    def ping(self) -> None:
        """The answer shows in `pinged`."""
        self.pinged = True
        self._h2.ping(b"netmon??")
        self.out += self._h2.data_to_send()

    def fill(self) -> bool:
        """Moves to `out` what the other end can take; whether more would have room. Raises BrokenError."""
        with _kept():
            for call in self._calls.values():
                self._fill(call)
        return len(self.out) < _AHEAD

    def _fill(self, call: Call) -> None:
        while call.waiting and len(self.out) < _AHEAD:
            window = min(self._h2.local_flow_control_window(call.number), self._h2.max_outbound_frame_size)
            if window <= 0:
                return
            self._h2.send_data(call.number, _pieces(call.waiting, min(window, _SENT_FRAME)))
            self._allowed_by_sent = min(_MOST_FRAMES, self._allowed_by_sent + _FRAMES_PER_SENT)
            self.out += self._h2.data_to_send()
        if call.finishing and not call.waiting:
            call.finishing = False
            self._h2.end_stream(call.number)
            self.out += self._h2.data_to_send()

    def receive(self, data: bytes, now_s: float) -> None:
        """What has come, at this time (mono): calls have it then. Raises BrokenError."""
        self._allowed = min(_FRAMES, self._allowed + (now_s - self._allowed_s) * _FRAMES_PER_S)
        self._allowed_s = now_s
        self._unread += data
        if not self.settled and len(self._unread) >= 4 and self._unread[3] != _SETTINGS:
            raise BrokenError(self._no_http2())
        while len(self._unread) >= _FRAME_HEAD:
            size = int.from_bytes(self._unread[:3], "big")
            if size > _MOST_FRAME:
                raise BrokenError("internal: it breaks HTTP/2: a frame is too large")
            if len(self._unread) < _FRAME_HEAD + size:
                break
            frame = bytes(self._unread[: _FRAME_HEAD + size])
            del self._unread[: _FRAME_HEAD + size]
            self._take_frame(frame)
            self.out += self._h2.data_to_send()
        if len(self.out) > _MOST_AHEAD:
            raise BrokenError("resource_exhausted: it asks more and more, and reads no answer")

    def _no_http2(self) -> str:
        begun = bytes(self._unread[:80])
        if begun.startswith(b"HTTP/"):
            line = begun.split(b"\r\n")[0].decode("ascii", "replace")
            return f"unavailable: it is no gRPC server: it says {line}"
        if begun.startswith(b"\x15\x03"):
            return "unavailable: socket closed: it speaks TLS"
        return "unavailable: it is no gRPC server: it does not speak HTTP/2"

    def _take_frame(self, frame: bytes) -> None:
        if self._allowed >= 1:
            self._allowed -= 1
        elif self._allowed_by_sent:
            self._allowed_by_sent -= 1
        else:
            raise BrokenError("resource_exhausted: it sends more frames than anybody has a use for")
        if frame[3] == _GOAWAY:  # h2 would let nothing come after it, as the last acknowledgements
            self._go_away(frame[_FRAME_HEAD:])
            return
        with _kept():
            for event in self._h2.receive_data(frame):
                self._take(event)

    def _take(self, event: Any) -> None:
        self.settled |= isinstance(event, events.RemoteSettingsChanged)
        self.pinged &= not isinstance(event, events.PingAckReceived)
        if isinstance(event, events.DataReceived):
            # That it is taken in is said at once: what is not read of a call waits in it, and is bounded there.
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        call = self._calls.get(getattr(event, "stream_id", 0) or 0)
        if call is None:
            return
        if isinstance(event, events.DataReceived):
            call.take_data(event.data or b"")
        elif isinstance(event, events.ResponseReceived | events.TrailersReceived):
            call.take_headers(event.headers)
        elif isinstance(event, events.StreamEnded):
            call.end_in_order()
            self._forget(call)
        elif isinstance(event, events.StreamReset):
            code = int(event.error_code or 0)
            call.end(_OF_RESET.get(code, "internal"), f"it has reset the call ({code})")
            self._calls.pop(call.number)

    def _forget(self, call: Call) -> None:
        """It has ended; for the other end, too."""
        self._calls.pop(call.number, None)
        with contextlib.suppress(ProtocolError):
            self._h2.reset_stream(call.number, ErrorCodes.CANCEL)
        self.out += self._h2.data_to_send()

    def _go_away(self, body: bytes) -> None:
        """Calls that it has begun to answer are answered yet, if it goes in order."""
        last, code = int.from_bytes(body[:4], "big") & 0x7FFFFFFF, int.from_bytes(body[4:8], "big")
        said = body[8:200].decode("ascii", "replace") or f"error {code}"
        self.leaving = f"unavailable: it goes away ({said})"
        if code or any(number > last for number in self._calls):
            raise BrokenError(self.leaving)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Whoever does not keep HTTP/2's rules is left."""
    try:
        yield
    except ProtocolError as error:
        raise BrokenError(f"internal: it breaks HTTP/2: {error}") from None


def _pieces(waiting: deque[memoryview], most: int) -> bytes:
    """Taken away from what waits."""
    taken, size = list[memoryview](), 0
    while waiting and size < most:
        piece = waiting.popleft()
        if len(piece) > most - size:
            waiting.appendleft(piece[most - size :])
            piece = piece[: most - size]
        taken.append(piece)
        size += len(piece)
    return b"".join(taken)


# --- The socket, and who waits for it.


class Waker:
    """Ends a thread's wait, from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __enter__(self) -> "Waker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            os.close(self.descriptor)
            self.descriptor = -1

    def wake(self) -> None:
        """Nothing happens where nobody waits any more."""
        with self._lock:
            if self.descriptor >= 0:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Consumes the pending wake-ups."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)


class Channel:
    """A connection to one server. Used by one thread."""

    def __init__(self, plain: socket.socket, protocol: Protocol, waker: Waker) -> None:
        """plain: connected, or about to be; does not block."""
        self._socket, self._waker, self.protocol = plain, waker, protocol
        self._received_s = time.monotonic()
        self._pinged_s = 0.0
        self.received_ns = 0
        """When what was read last had come (mono)."""

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def send(self) -> None:
        """As much as the socket takes. Raises BrokenError."""
        out = self.protocol.out
        try:
            while out:
                with memoryview(out) as view:
                    sent = self._socket.send(view[: 1 << 18])
                del out[:sent]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise BrokenError(f"unavailable: {_reason(error)}") from None

    def wait(self, timeout_s: float) -> None:
        """Until something has come, which calls have then, somebody has woken us, or the time is over.

        Raises BrokenError, also where the other end does not answer a ping.
        """
        wanted = select.POLLIN | (select.POLLOUT if self.protocol.out else 0)
        until_s = self._check()
        ready = _poll(self._socket.fileno(), wanted, self._waker, min(timeout_s, until_s - time.monotonic()))
        if ready & ~select.POLLOUT:
            self.received_ns = time.monotonic_ns()
            self._receive()
        if ready & select.POLLOUT:
            self.send()

    def _check(self) -> float:
        """When to look again whether the other end is there. Raises BrokenError."""
        now = time.monotonic()
        if not self.protocol.pinged and now >= self._received_s + KEEPALIVE_S:
            self._pinged_s = now
            self.protocol.ping()
            self.send()
        if not self.protocol.pinged:
            return self._received_s + KEEPALIVE_S
        if now >= self._pinged_s + KEEPALIVE_TIMEOUT_S:
            raise BrokenError("unavailable: ping timeout")
        return self._pinged_s + KEEPALIVE_TIMEOUT_S

    def _receive(self) -> None:
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise BrokenError(f"unavailable: {_reason(error)}") from None
            if not data:
                raise BrokenError(f"unavailable: {self.protocol.leaving or 'socket closed'}")
            self._received_s = time.monotonic()
            self.protocol.receive(data, self._received_s)
            # No poll reports what TLS has deciphered already.
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return


def connect(address: str, context: ssl.SSLContext | None, waker: Waker, over: Callable[[], bool]) -> Channel:
    """To HOST:PORT or unix:PATH; blocks until over(), which is called when it is woken, or for a second for each
    address of the host at most, in addition to the time of the name lookup.

    context: for TLS. No proxy is used. Raises BrokenError; UsageError for what is no address.
    """
    for start in RESOLVERS:
        address = address.removeprefix(start)
    reasons = dict[str, None]()
    host, ends = _ends(address, waker, over)
    authority, scheme = address if host else "localhost", "https" if context else "http"
    for family, end in ends:
        with contextlib.ExitStack() as kept:
            try:
                attempt = _Attempt(kept.enter_context(socket.socket(family, _KIND)), waker, over)
                attempt.connect(end)
                if context:
                    kept.enter_context(attempt.protect(context, host))
                channel = attempt.greet(Protocol(authority, scheme))
                kept.pop_all()
                return channel
            except BrokenError as error:
                reasons[str(error)] = None
            except (OSError, ValueError) as error:
                reasons[f"unavailable: {_reason(error)}"] = None
        if over():
            break
    raise BrokenError("; ".join(reasons) or "cancelled")


_KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
_MOST_ADDRESSES = 8  # of a name that are tried
_TCP = (socket.AF_INET, socket.AF_INET6)
_End = tuple[socket.AddressFamily, Any]


class _Attempt:
    """To connect to one address, within a second."""

    def __init__(self, plain: socket.socket, waker: Waker, over: Callable[[], bool]) -> None:
        self._socket, self._waker, self._over = plain, waker, over
        self._until_s = time.monotonic() + CONNECT_S

    def connect(self, end: Any) -> None:
        """Raises OSError, BrokenError."""
        code = self._socket.connect_ex(end)
        if code == errno.EINPROGRESS:
            self._wait(select.POLLOUT)
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            where = end if isinstance(end, str) else f"{end[0]}:{end[1]}"
            raise BrokenError(f"unavailable: {where}: {os.strerror(code)}")
        if self._socket.family in _TCP:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A batch a second finds a cut sooner than pings.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(KEEPALIVE_TIMEOUT_S * 1000))

    def protect(self, context: ssl.SSLContext, host: str) -> socket.socket:
        """The socket from now on. Raises OSError, ValueError, BrokenError."""
        protected = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
        self._socket = protected
        try:
            while True:
                try:
                    protected.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT)
        except BaseException:
            protected.close()
            raise
        return protected

    def greet(self, protocol: Protocol) -> Channel:
        """Until the other end has said that it speaks HTTP/2. Raises BrokenError."""
        channel = Channel(self._socket, protocol, self._waker)
        while not protocol.settled:
            channel.send()
            self._check()
            channel.wait(self._until_s - time.monotonic())
        return channel

    def _wait(self, wanted: int) -> None:
        while not _poll(self._socket.fileno(), wanted, self._waker, self._until_s - time.monotonic()):
            self._check()

    def _check(self) -> None:
        if self._over():
            raise BrokenError("cancelled")
        if time.monotonic() >= self._until_s:
            raise BrokenError(f"unavailable: nobody answers within {CONNECT_S:g} s")


def _ends(address: str, waker: Waker, over: Callable[[], bool]) -> tuple[str, list[_End]]:
    """The host, empty of a socket on this machine, and its addresses. Raises BrokenError, UsageError."""
    if address.startswith("unix-abstract:"):
        return "", [(socket.AF_UNIX, "\0" + address.partition(":")[2])]
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        return "", [(socket.AF_UNIX, path.removeprefix("//") if path.startswith("///") else path)]
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"cannot connect to {address}: give HOST:PORT, such as localhost:9400")
    found = _addresses(host, int(port), waker, over)
    return host, [(family, end) for family, _, _, _, end in found[:_MOST_ADDRESSES]]


def _addresses(host: str, port: int, waker: Waker, over: Callable[[], bool]) -> list[Any]:
    """Of a name. Raises BrokenError."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    found: list[list[Any] | Exception] = []

    def resolve_name() -> None:
        """In a thread of its own: who answers late, or never, keeps nobody from ending."""
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)
        waker.wake()

    threading.Thread(target=resolve_name, name="resolve", daemon=True).start()
    while not found:
        _poll(-1, 0, waker, math.inf)
        if over():
            raise BrokenError("cancelled")
    if isinstance(found[0], Exception):
        raise BrokenError(f"unavailable: {host}: {_reason(found[0])}")
    return found[0]


def _poll(descriptor: int, wanted: int, waker: Waker, timeout_s: float) -> int:
    """What it is ready for, or what is wrong with it; 0: nothing, and it is over, or somebody has woken us."""
    poll = select.poll()
    poll.register(waker.descriptor, select.POLLIN)
    if descriptor >= 0:
        poll.register(descriptor, wanted)
    ready = dict(poll.poll(None if timeout_s == math.inf else max(0, math.ceil(timeout_s * 1000))))
    if waker.descriptor in ready:
        waker.clear()
    return ready.get(descriptor, 0)


def _reason(error: Exception) -> str:
    """What the other end did, or the system says."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "socket closed"
    if isinstance(error, ssl.SSLError):
        return str(error)
    return getattr(error, "strerror", None) or str(error)
