# SPDX-License-Identifier: Apache-2.0
"""A viewer's end of the collector's Watch call: of one collector, or of several workers side by side."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from netmon.errors import CertificateError, NetmonError, UsageError
from netmon.views import Selection, Snapshot
from netmon.wire.identity import Role
from netmon.wire.merged_snapshots import from_each, merge
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import in_words, open_channel
from netmon.wire.security import PLAIN, Security
from netmon.wire.snapshots import decode_snapshot, encode_selection

ONE_SNAPSHOT = 0
"""The interval that asks for a single snapshot."""

_ONE_SNAPSHOT_TIMEOUT_S = 10
_RETRY_S = 1.0
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # A collector whose machine has vanished sends no more packets: ask, or the view would wait for ever.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
)
_REASONS = {
    grpc.StatusCode.UNAVAILABLE: "no answer there; is `netmon collector` running?",
    grpc.StatusCode.DEADLINE_EXCEEDED: f"no snapshot within {_ONE_SNAPSHOT_TIMEOUT_S} s",
    grpc.StatusCode.UNIMPLEMENTED: "what listens there is not a netmon collector",
}
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
_ANSWERED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT)
VIEWERS = (Role.FULL, Role.JOBS)


class UnreachableError(NetmonError):
    """The collector does not answer, or has stopped answering."""


@dataclass(frozen=True)
class Outage:
    """The collector is gone and is being asked again."""

    since_ns: int  # utc
    reason: str


def watch(address: str, interval_ms: int, selection: Selection, security: Security = PLAIN) -> Iterator[Snapshot]:
    """Snapshots of what is requested from the collector at `HOST:PORT` or `unix:PATH`; blocks for each.

    Interval 0 (ONE_SNAPSHOT) gives one and ends. Raises UnreachableError where the collector does not answer or
    goes away, WireError where it answers nonsense, UsageError and CertificateError where none may be asked.
    """
    timeout = _ONE_SNAPSHOT_TIMEOUT_S if interval_ms == ONE_SNAPSHOT else None
    request = encode_selection(selection, interval_ms)
    with open_channel(address, security, OPTIONS, *VIEWERS) as channel:
        call = CollectorStub(channel).Watch(request, timeout=timeout)  # type: ignore[no-untyped-call]
        try:
            for message in call:
                yield decode_snapshot(message)
        except grpc.RpcError as error:
            raise UnreachableError(
                f"cannot reach the collector at {address}: {reason(error, security, address)}"
            ) from None
        finally:
            call.cancel()


def watch_once(addresses: str, selection: Selection, security: Security = PLAIN) -> Snapshot:
    """One snapshot of a collector, or of several workers (`A,B`); blocks for at most 10 s. Raises as watch does."""
    workers = split(addresses)
    if len(workers) == 1:
        return _one(workers[0], selection, security)
    with ThreadPoolExecutor(len(workers)) as pool:
        return merge(list(pool.map(lambda address: _one(address, from_each(selection), security), workers)), selection)


def split(addresses: str) -> list[str]:
    """The addresses of a list with commas, each once. Raises UsageError where there is none."""
    found = list(dict.fromkeys(filter(None, (address.strip() for address in addresses.split(",")))))
    if not found:
        raise UsageError("which collector? give its HOST:PORT or unix:PATH; of several workers all, with commas")
    return found


def is_address(text: str) -> bool:
    """Whether it names a collector, and no folder: HOST:PORT or unix:PATH, of workers with commas."""
    return not Path(text).is_dir() and (text.startswith("unix:") or text.rpartition(":")[2].isdigit())


def _one(address: str, selection: Selection, security: Security) -> Snapshot:
    for snapshot in watch(address, ONE_SNAPSHOT, selection, security):
        return snapshot
    raise UnreachableError(f"cannot reach the collector at {address}: it sent no snapshot")


def follow(
    addresses: str,
    interval_ms: int,
    selection: Callable[[], Selection],
    retry_s: float = _RETRY_S,
    security: Security = PLAIN,
) -> Iterator[Snapshot | Outage]:
    """Like watch, without end: once there has been a snapshot, an Outage stands for each attempt that failed.

    selection: looked at after every snapshot; it may change. Raises UnreachableError where the first attempt fails. Of
    several workers (`A,B`) those that are gone are missing from the snapshot, which says so; an Outage: all are gone.
    """
    workers = split(addresses)
    if len(workers) == 1:
        yield from _follow_one(workers[0], interval_ms, selection, retry_s, security)
        return
    news: queue.SimpleQueue[tuple[str, Snapshot | Outage | Exception]] = queue.SimpleQueue()
    over = threading.Event()

    def read(address: str) -> None:
        try:
            for update in _follow_one(address, interval_ms, lambda: from_each(selection()), retry_s, security):
                news.put((address, update))
                if over.is_set():
                    return
        except Exception as error:
            news.put((address, error))

    for address in workers:
        threading.Thread(target=read, args=(address,), name=f"snapshots of {address}", daemon=True).start()
    latest: dict[str, Snapshot | Outage] = {}
    received: set[str] = set()  # since the last frame: there is one for all of them, not one for each
    try:
        while True:
            address, update = news.get()
            if isinstance(update, Exception):
                raise update
            again = address in received
            received.add(address)
            latest[address] = update
            gone = {other for other, known in latest.items() if isinstance(known, Outage)}
            if len(latest) == len(workers) and (again or received | gone == set(workers)):
                received.clear()
                yield _together(latest, selection())
    finally:
        over.set()


def _together(latest: dict[str, Snapshot | Outage], selection: Selection) -> Snapshot | Outage:
    seen = [update for update in latest.values() if isinstance(update, Snapshot)]
    gone = {address: update for address, update in latest.items() if isinstance(update, Outage)}
    if not seen:
        return min(gone.values(), key=lambda outage: outage.since_ns)
    merged = merge(seen, selection)
    return replace(merged, warnings=(*(outage.reason for outage in gone.values()), *merged.warnings))


def _follow_one(
    address: str, interval_ms: int, selection: Callable[[], Selection], retry_s: float, security: Security
) -> Iterator[Snapshot | Outage]:
    since_ns: int | None = None
    seen = False
    while True:
        try:
            now = selection()
            for snapshot in watch(address, interval_ms, now, security):
                seen, since_ns = True, None
                yield snapshot
                if selection() != now:
                    break
            else:
                reason = f"the collector at {address} ended the stream"
            if selection() != now:
                continue
        except (UnreachableError, CertificateError) as error:
            if not seen:
                raise
            reason = str(error)
        since_ns = since_ns or time.time_ns()
        yield Outage(since_ns, reason)
        time.sleep(retry_s)


def answers(call: Any, address: str, security: Security) -> Iterator[Any]:
    """What a call gives, message by message; it is over when nobody reads on. Raises UnreachableError."""
    try:
        yield from call
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() in _ANSWERED:
            raise UnreachableError(str(error.details())) from None
        raise UnreachableError(f"cannot reach the collector at {address}: {reason(error, security, address)}") from None
    finally:
        call.cancel()


def reason(error: grpc.RpcError, security: Security, address: str = "") -> str:
    """Why a call to a collector failed, in words. address: as for `in_words`."""
    if not isinstance(error, grpc.Call):
        return str(error)
    if error.code() in _FINAL:
        return str(error.details())
    if error.code() is grpc.StatusCode.UNAVAILABLE and (words := in_words(str(error.details()), security, address)):
        return words
    return _REASONS.get(error.code()) or f"{error.code().name.lower()}: {error.details()}"
