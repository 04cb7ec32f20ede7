# SPDX-License-Identifier: Apache-2.0
"""A viewer's end of the collector's Watch call: of one collector, or of multiple workers side by side."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import grpc

from netmon.errors import CertificateError, NetmonError, UsageError
from netmon.views import (
    RECENT_HANGS,
    Hang,
    JobView,
    LinkView,
    Page,
    Selection,
    Snapshot,
    Totals,
)
from netmon.wire.mapping import decode_snapshot, encode_selection
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import in_words, open_channel
from netmon.wire.security import PLAIN, Role, Security

# --- Multiple workers as one collector: what each of them shows, put together. Each host and job is with one of them.

_LARGEST = ("oldest_ns", "cpu_fraction", "rss_bytes", "clock_error_ns")  # of Totals; all others add up
T = TypeVar("T")


def from_each(selection: Selection) -> Selection:
    """The selection for every worker, from which the requested one can be made."""
    return replace(
        selection,
        most_links=selection.most_links and selection.links_from + selection.most_links,
        most_jobs=selection.most_jobs and selection.jobs_from + selection.most_jobs,
        links_from=0,
        jobs_from=0,
    )


def merge(snapshots: Sequence[Snapshot], selection: Selection) -> Snapshot:
    """One snapshot of the workers' (at least one; as from_each asks for them).

    Where not all can come, the worst of each worker come first, then the second worst of each. A host or job that is
    on its way from one worker to another may be with both for a moment: the one that knows more of it counts.
    """
    found = [(host, n) for n, snapshot in enumerate(snapshots) for host in snapshot.hosts]
    best = _best(found, lambda one: one[0].host, lambda one: (one[0].connected, -one[0].age_ns))
    owner = {host.host: n for host, n in best}
    links = _in_order(
        [[link for link in s.links if owner.get(link.host, n) == n] for n, s in enumerate(snapshots)],
        _link_name if not selection.most_links else None,
    )
    jobs = _in_order([s.jobs for s in snapshots], _job_name if not selection.most_jobs else None)
    jobs = _with_hangs(_best(jobs, _job_name, _job_news), jobs)
    flows = (flow for n, s in enumerate(snapshots) for flow in s.flows if owner.get(flow.host, n) == n)
    return replace(
        snapshots[0],
        time_ns=max(s.time_ns for s in snapshots),
        hosts=tuple(sorted((host for host, _ in best), key=lambda host: host.host)),
        links=tuple(_part(links, selection.links_from, selection.most_links)),
        jobs=tuple(_part(jobs, selection.jobs_from, selection.most_jobs)),
        flows=tuple(sorted(flows, key=lambda flow: -flow.wire_bps)[: selection.flows]),
        warnings=tuple(dict.fromkeys(chain.from_iterable(s.warnings for s in snapshots))),
        totals=_totals([s.totals for s in snapshots]),
        page=_page([s.page for s in snapshots], selection),
        insecure=any(s.insecure for s in snapshots),
        version=" ".join(sorted({s.version for s in snapshots})),
    )


def _with_hangs(jobs: Sequence[JobView], views: Sequence[JobView]) -> list[JobView]:
    """Each with what any of the views tells of it: workers see a job's hangs by the ranks of their own hosts."""
    found = {job.job: list[Hang]() for job in jobs}
    for view in views:
        found[view.job] += view.hangs
    newest = {name: sorted(hangs, key=lambda hang: -hang.since_ns)[:RECENT_HANGS] for name, hangs in found.items()}
    return [replace(job, hangs=tuple(newest[job.job])) if newest[job.job] else job for job in jobs]


def _job_name(view: JobView) -> str:
    return view.job


def _job_news(view: JobView) -> tuple[int, int]:
    return view.iteration, view.known_ranks or len(view.ranks)


def _link_name(view: LinkView) -> tuple[str, str, int]:
    return view.host, view.interface, view.direction


def _best(views: Iterable[T], name: Callable[[T], str], news: Callable[[T], tuple[int, int]]) -> list[T]:
    """One view of each name, in the order of their appearance."""
    best: dict[str, T] = {}
    for view in views:
        known = best.get(name(view))
        if known is None or news(view) > news(known):
            best[name(view)] = view
    return list(best.values())


def _in_order(parts: Sequence[Sequence[T]], by: Callable[[T], str | tuple[str, str, int]] | None) -> list[T]:
    """By name, or the first of each, then the second of each."""
    if by is not None:
        return sorted(chain.from_iterable(parts), key=by)
    return [view for turn in zip_longest(*parts) for view in turn if view is not None]


def _part(views: Sequence[T], begin: int, most: int) -> Sequence[T]:
    return views[begin : begin + most] if most else views[begin:]


def _totals(parts: Sequence[Totals]) -> Totals:
    added: dict[str, Any] = {}
    for field in fields(Totals):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "class_bps":
            added[field.name] = tuple(sum(column) for column in zip_longest(*values, fillvalue=0.0))
        elif isinstance(values[0], tuple):
            added[field.name] = tuple(sorted(set(chain.from_iterable(values))))
        else:
            added[field.name] = max(values) if field.name in _LARGEST else sum(values)
    return replace(Totals(), **added)


def _page(parts: Sequence[Page], selection: Selection) -> Page:
    links, jobs = sum(part.links for part in parts), sum(part.jobs for part in parts)
    unknown = set(parts[0].unknown).intersection(*(part.unknown for part in parts))
    return Page(
        hosts=sum(part.hosts for part in parts),
        links=links,
        links_from=min(selection.links_from, links),
        jobs=jobs,
        jobs_from=min(selection.jobs_from, jobs),
        unknown=tuple(sorted(unknown)),
    )


# --- watch

ONE_SNAPSHOT = 0
"""The interval that asks for a single snapshot."""

_ONE_SNAPSHOT_TIMEOUT_S = 10
_RETRY_S = 1.0
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # A collector whose machine has vanished sends no more packets: ping, or the view would wait for ever.
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
    """The collector does not answer, or no longer does."""


@dataclass(frozen=True)
class Outage:
    """The collector is gone; requests are repeated."""

    since_ns: int  # utc
    reason: str


def watch(address: str, interval_ms: int, selection: Selection, security: Security = PLAIN) -> Iterator[Snapshot]:
    """Snapshots of what is requested from the collector at `HOST:PORT` or `unix:PATH`; blocks for each.

    Interval 0 (ONE_SNAPSHOT) gives one and ends. Raises UnreachableError where the collector does not answer or
    goes away, WireError where it answers nonsense, UsageError and CertificateError where none may be queried.
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
    """One snapshot of a collector, or of multiple workers (`A,B`); blocks for at most 10 s. Raises as watch does."""
    workers = split(addresses)
    if len(workers) == 1:
        return _one(workers[0], selection, security)
    with ThreadPoolExecutor(len(workers)) as pool:
        return merge(list(pool.map(lambda address: _one(address, from_each(selection), security), workers)), selection)


def split(addresses: str) -> list[str]:
    """The addresses of a list with commas, each once. Raises UsageError where there is none."""
    found = list(dict.fromkeys(filter(None, (address.strip() for address in addresses.split(",")))))
    if not found:
        raise UsageError("which collector? give its HOST:PORT or unix:PATH; of multiple workers all, with commas")
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
    multiple workers (`A,B`) those that are gone are missing from the snapshot, which says so; an Outage: all are gone.
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
