# SPDX-License-Identifier: Apache-2.0
"""Sends spooled batches to the collector and hears what it has stored, for as long as the agent lives."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from netmon.agent.pulls import Pulls
from netmon.agent.spool import Spool, left_behind
from netmon.wire import netmon_pb2, netmon_pb2_grpc

log = logging.getLogger(__name__)

_POLL_S = 0.2
_RETRY_S = 1.0
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class Stream(threading.Thread):
    """One thread per agent. A batch that the collector refuses loses its buckets, is counted, and is passed."""

    def __init__(self, address: str, spool: Spool, left_in: Path, limit_bytes: int, pulls: Pulls) -> None:
        """address: HOST:PORT or unix:PATH; left_in: where sessions may have been left behind."""
        super().__init__(name="stream", daemon=True)
        self._address = address
        self._spool = spool
        self._left_in = left_in
        self._limit_bytes = limit_bytes
        self._finishing, self._ended = threading.Event(), threading.Event()
        self._pulls = pulls
        self.connected = False
        self.sent = 0
        """Sequence of the last batch that was handed to a connection."""

    def run(self) -> None:
        """Streams until `end`."""
        with grpc.insecure_channel(self._address, options=_OPTIONS) as channel:
            stub = netmon_pb2_grpc.CollectorStub(channel)  # type: ignore[no-untyped-call]
            self._send_left_behind(stub)
            while not (self._ended.is_set() or (self._finishing.is_set() and not self._spool.size)):
                self._send(stub, self._spool, self._finishing.is_set, live=True)
                self._ended.wait(_RETRY_S if self._spool.size else 0)

    def finish(self, timeout_s: float) -> None:
        """Sends what is left, tells the collector that it is all, and waits for it at most so long.

        What the collector has not acknowledged then stays in the spool.
        """
        self._finishing.set()
        self.join(timeout_s)
        self._ended.set()

    def _send_left_behind(self, stub: netmon_pb2_grpc.CollectorStub) -> None:
        for spool in left_behind(self._left_in, self._limit_bytes):
            while spool.hello and spool.size and not self._ended.is_set():
                log.info("sending %d bytes that an earlier session left behind", spool.size)
                self._send(stub, spool, lambda: True)
            spool.close()

    def _send(
        self, stub: netmon_pb2_grpc.CollectorStub, spool: Spool, done: Callable[[], bool], live: bool = False
    ) -> None:
        """One connection, from its beginning to its end: ours, once done() holds and everything has been sent."""
        over = threading.Event()
        also = (self._pulls, self._note_sent) if live else ()
        messages = _messages(spool, over, done, *also)
        try:
            for acknowledgement in stub.Stream(messages, wait_for_ready=True):
                self._note(True)
                spool.acknowledge(acknowledgement.sequence)
                if live and acknowledgement.HasField("request"):
                    self._pulls.ask(acknowledgement.request)
        except grpc.RpcError as error:
            self._handle(error, spool)
        finally:
            over.set()
            if live:
                self._pulls.clear()

    def _handle(self, error: grpc.RpcError, spool: Spool) -> None:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            refused = next((m.value for m in error.trailing_metadata() or () if m.key == "netmon-sequence"), None)
            log.error("the collector refused a batch: %s", details)
            if refused and spool.after(int(refused) - 1, 0):
                spool.replace(int(refused))
            return
        if not self._ended.is_set():
            self._note(False, f"{code.name.lower()}: {details}")

    def _note(self, connected: bool, reason: str = "") -> None:
        if connected != self.connected:
            self.connected = connected
            if connected:
                log.info("connected to the collector at %s", self._address)
            else:
                log.warning("lost the collector at %s (%s); batches wait on disk", self._address, reason)

    def _note_sent(self, sequence: int) -> None:
        self.sent = max(self.sent, sequence)


def _messages(
    spool: Spool,
    over: threading.Event,
    done: Callable[[], bool],
    pulls: Pulls | None = None,
    sent: Callable[[int], object] = lambda _: None,
) -> Iterator[netmon_pb2.AgentMessage]:
    """Batches as they come; while none waits, answers."""
    yield netmon_pb2.AgentMessage.FromString(spool.hello)
    last = 0
    while not over.is_set():
        found = spool.after(last, 0 if done() else pulls.patience(_POLL_S) if pulls else _POLL_S)
        if found:
            last, message = found
            yield netmon_pb2.AgentMessage.FromString(message)
            sent(last)
        elif done():
            return
        elif pulls and (answer := pulls.take()):
            yield netmon_pb2.AgentMessage.FromString(answer)
