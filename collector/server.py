# SPDX-License-Identifier: Apache-2.0
"""The service, from its first socket to its last acknowledgement."""

import asyncio
import contextlib
import gc
import json
import logging
import shutil
import signal
import tempfile
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from collector.answers import Answers
from collector.dataset.sink import ParquetSink, Upkeep
from collector.jobs.process import JobStageProcess
from collector.live import Dataset
from collector.receiving.client import ReceiverClient
from collector.receiving.frames import Listen
from collector.registry import Registry
from collector.service import Admission, CollectorService, admission_to
from collector.settings import ListenConfig, Settings
from netmon.dl.classify import NS_PER_S
from netmon.errors import DataError, NetmonError, UnsupportedError
from netmon.own_module import own_module, to_install
from netmon.service import Supervisor
from netmon.wire.limits import COLLECTOR_OPTIONS

if TYPE_CHECKING:
    from collector.bus.worker import ClusterWorker, WorkerSettings
    from collector.metrics.families import Seen
    from collector.metrics.spans import Spans
    from netmon.telemetry.endpoint import Endpoint


# --- What Prometheus and probes query, where the library for it is installed.

_REQUEST_EVERY_S, _ANSWER_WITHIN_S = 5.0, 1.0


def why_not_ready(registry: Registry) -> str:
    """Why the collector takes nothing in now; empty: it does."""
    if registry.flushing.trouble:
        return registry.flushing.trouble
    return "" if registry.flushing.open else "rows wait for the disk: nothing more is taken in until it has some"


def serve_metrics(
    address: str,
    registry: Registry,
    listen_config: ListenConfig,
    among: "ClusterWorker | None",
    helpers: Mapping[str, Callable[[], int]],
) -> "Endpoint | None":
    """At HOST:PORT; empty: nowhere. helpers: pids of the collector's other processes, 0: none runs.

    Raises UsageError, UnsupportedError, CertificateError.
    """
    if not address:
        return None
    try:
        from collector.metrics.families import Seen, metrics_endpoint
        from netmon.telemetry.endpoint import Condition, used, used_by
    except ImportError as error:  # it needs libraries that the rest does without
        raise UnsupportedError(
            f"cannot serve metrics: {error.name} is not installed; {to_install('metrics')}"
        ) from None
    bus = _BusDepth(among) if among else None

    async def look() -> "Seen":
        waits = await bus.now() if bus else None
        waiting, flushing = registry.intake.waiting_rows, registry.flushing
        stored = flushing.storing()
        return Seen(
            frozen=registry.freeze(),
            jobs=registry.live.jobs.counts.copy(),
            waiting_rows=waiting,
            unwritten=stored.full,
            pending_bytes=flushing.pending_bytes,
            used=used(),
            helpers={name: now for name, pid in helpers.items() if (now := used_by(pid()))},
            delays=flushing.delays.copy(),
            clock_jumps=registry.failures.jumps.count,
            bus=waits,
        )

    return metrics_endpoint(address, listen_config.security, look, lambda: Condition(unready=why_not_ready(registry)))


class _BusDepth:
    """Queried now and then, however often somebody scrapes."""

    def __init__(self, among: "ClusterWorker") -> None:
        self._among = among
        self._known: tuple[int, int] | None = None
        self._requested_s = -_REQUEST_EVERY_S

    async def now(self) -> tuple[int, int] | None:
        if time.monotonic() - self._requested_s >= _REQUEST_EVERY_S:
            self._requested_s, self._known = time.monotonic(), None
            with contextlib.suppress(NetmonError, asyncio.TimeoutError):
                self._known = await asyncio.wait_for(self._among.depth(), _ANSWER_WITHIN_S)
        return self._known


# --- The page for browsers alongside a collector: `netmon web` in a process of its own, which cannot hold the
# collector up.
#
# It sees the collector as any viewer does, by a socket in a folder that only this user can open.

_BEGIN_S, _END_S, _AGAIN_S = 60.0, 5.0, 1.0


class WebProcess:
    """Between `start` and `close`; lives on one event loop. A process that dies is started again."""

    def __init__(self, answers: Answers, listen: str, listen_config: ListenConfig) -> None:
        """listen: HOST:PORT for browsers. door: whose certificate the page shows, and which tokens it takes."""
        self._folder = Path(tempfile.mkdtemp(prefix="netmon-"))
        at = f"unix:{self._folder}/page"
        self._server = grpc.aio.server(options=COLLECTOR_OPTIONS)
        self._server.add_generic_rpc_handlers((CollectorService(Admission(), None, answers.answer),))
        self._server.add_insecure_port(at)
        tls, tokens = (path and str(path.resolve()) for path in (listen_config.security.tls, listen_config.tokens))
        request = {
            "collector": at,
            "listen": listen,
            "tls": tls,
            "tokens": tokens,
            "insecure": listen_config.security.insecure,
        }
        self._request = json.dumps(request)
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process; 0: none runs."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Serve. Raises UnsupportedError where it cannot."""
        await self._server.start()
        self._process = await self._started()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """The process ends, and the folder is removed."""
        if self._watching:
            self._watching.cancel()
        if self._process:
            await _ended(self._process)
        await self._server.stop(None)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _started(self) -> Process:
        program = own_module("netmon.web.server", self._request)
        # It ends when its standard input does: with this process, however that ends.
        process = await asyncio.create_subprocess_exec(
            *program["args"], cwd=program["cwd"], env=program["env"], stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(asyncio.TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), _BEGIN_S)
        answer = json.loads(line) if line else {"trouble": "the page's process has ended, or does not answer"}
        if trouble := answer.get("trouble"):
            await _ended(process)
            raise UnsupportedError(str(trouble))
        _log.info("page for browsers: %s", answer["address"])
        return process

    async def _watch(self) -> None:
        while True:
            assert self._process is not None
            status = await self._process.wait()
            _log.warning("the page's process has ended (status %s); it is started again", status)
            self._process = None
            while self._process is None:
                await asyncio.sleep(_AGAIN_S)
                try:
                    self._process = await self._started()
                except (UnsupportedError, OSError) as error:
                    _log.warning("%s", error)


async def _ended(process: Process) -> None:
    if process.stdin:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# --- The service, from its first socket to its last acknowledgement.

_log = logging.getLogger(__name__)
_GRACE_S = 1.0
_BUS_WITHIN_S = 15.0
_END_WITHIN_S = 7.0  # of the end of the tick in which the signal came, before the grace
_OVER_WITHIN_S = 9.0  # of the signal, whatever happens
_TICK_S, _SPARING_TICK_S, _MOST_TICK_S = 0.2, 0.4, 1.0  # from one to the next
_LOOKED_OVER = (50_000, 20, 20)  # a tick of a thousand hosts makes so many objects, and lets go of nearly all
_T = TypeVar("_T")


async def serve(
    settings: Settings,
    stop: asyncio.Event | None = None,
    abandon: Callable[[], None] = lambda: None,
    worker: "WorkerSettings | None" = None,
    spans: "Spans | None" = None,
    stored: Dataset | None = None,
) -> None:
    """Collect until SIGTERM or SIGINT (or `stop`), then store what is left.

    abandon: called where that takes too long; may end the process, as nothing is lost by it. worker: one of many,
    whose agents are on a bus; without it the collector is alone, and agents connect to it. spans: get iterations and
    verdicts. stored: rows of the dataset, for viewers; without it they see the present only.

    Raises DataError where data cannot be written, UnsupportedError where it cannot listen, BusError without the bus;
    UsageError, CertificateError.
    """
    listen, data, listen_config = settings.listen, settings.data, settings.listen_config
    admission_to(listen, listen_config)  # raises what is wrong with it before anything is begun
    overdue = _overdue(data, abandon)
    stop = stop or _stop_on_signals(overdue)
    working: list[asyncio.Task[None]] = []
    sink = ParquetSink(data, worker.name if worker else "", settings.durability)
    upkeep = Upkeep(sink, lambda: settings.keep)
    jobs = JobStageProcess()
    registry = Registry(sink, settings, jobs)
    supervisor = Supervisor()
    if spans:
        registry.live.on_accounted, registry.live.jobs.counts.on_verdict = spans.add_iterations, spans.judged
    listener: ReceiverClient | None = None
    among: ClusterWorker | None = None
    endpoint: Endpoint | None = None
    page: WebProcess | None = None
    try:
        exposed = listen_config.security.exposed(listen, *(worker.bus.servers if worker else ()))
        answers = Answers(registry, exposed, stored)
        registry.live.stored = stored
        listener = ReceiverClient(registry, answers, Listen(listen, listen_config, streams=worker is None))
        if worker:
            among = await _or_stopped(_among(worker, registry, sink), stop)
            if among is None:
                return
        await listener.start()
        if settings.http:
            page = WebProcess(answers, settings.http, listen_config)
            await page.start()
        others: dict[str, Callable[[], int]] = {"jobs": lambda: jobs.pid, "receiver": lambda: listener.pid}
        if page:
            others["page"] = lambda: page.pid
        endpoint = serve_metrics(settings.metrics, registry, listen_config, among, others)
        _log.info(f"listening on {listen}, writing to {data}")
        if exposed:
            _log.warning(
                "--insecure: nothing is encrypted, and whoever reaches %s can send as any host and see everything",
                f"{listen} or the bus" if worker else listen,
            )
        gc.freeze()  # what is there now stays: it need not be looked over again and again
        gc.set_threshold(*_LOOKED_OVER)
        supervisor.ready()
        flushing = _flush_for_ever(registry, lambda: settings.flush_ns / NS_PER_S)
        stopped = asyncio.create_task(stop.wait())
        working = [
            asyncio.create_task(work)
            for work in (_tick_for_ever(listener, supervisor, registry), _infer_for_ever(registry), flushing)
        ]
        working += [asyncio.create_task(among.run())] if among else []
        working.append(asyncio.create_task(listener.follow(lambda: why_not_ready(registry))))
        working += [asyncio.create_task(spans.follow())] if spans else []
        ended, _ = await asyncio.wait((stopped, *working), return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
        supervisor.stopping()
        await listener.leave()
        await _store_the_rest(registry, data, abandon, among)
    finally:
        for task in working[1:]:
            task.cancel()
        if listener:
            await listener.close(_GRACE_S)
        for task in working[:1]:
            task.cancel()
        if among:
            await among.close()
        if page:
            await page.close()
        if endpoint:
            await asyncio.to_thread(endpoint.close)
        if spans:
            await asyncio.to_thread(spans.close)
        await registry.close()
        jobs.close()
        upkeep.close()
        sink.close()
        overdue.cancel()
        supervisor.close()


async def _or_stopped(work: Coroutine[Any, Any, _T], stop: asyncio.Event) -> _T | None:
    """What it leads to; None: it was stopped before."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None


async def _among(settings: "WorkerSettings", registry: Registry, sink: ParquetSink) -> "ClusterWorker":
    from collector.bus.worker import ClusterWorker  # needs the bus's library
    from netmon.wire.bus import BusError, UnansweredError

    deadline = time.monotonic() + _BUS_WITHIN_S  # its servers may be starting alongside us
    warned = False
    while True:
        try:
            return await ClusterWorker.begin(settings, registry, sink)
        except UnansweredError as error:  # as while they cannot be reached
            if not warned:
                _log.warning("%s; waiting for it", error)
            warned, deadline = True, time.monotonic() + _BUS_WITHIN_S
        except BusError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_TICK_S)


async def _store_the_rest(
    registry: Registry, data: Path, abandon: Callable[[], None], among: "ClusterWorker | None"
) -> None:
    """What agents have sent until now, as far as there is time: they keep what is not acknowledged."""
    registry.flushing.close_intake()
    rest = asyncio.create_task(_leave(registry, among) if among else _settle_and_flush(registry))
    done, _ = await asyncio.wait((rest,), timeout=_END_WITHIN_S)
    if not done:
        _log.warning(
            f"not all rows are stored in {data} after {_END_WITHIN_S:g} s; agents that spool will send the rest"
        )
        abandon()
    if not await rest:
        raise DataError(f"cannot store the last rows in {data}; agents that spool will send them again")


async def _leave(registry: Registry, among: "ClusterWorker") -> bool:
    await among.leave()
    return await registry.flush()


async def _settle_and_flush(registry: Registry) -> bool:
    registry.settle_everything()
    await registry.live.judging.finish()
    return await registry.flush()


async def _flush_for_ever(registry: Registry, interval_s: Callable[[], float]) -> None:
    took_s = begun = 0.0
    while True:
        pause_s = flush_pause_s(interval_s(), took_s)
        due_s = time.monotonic() + pause_s
        await asyncio.sleep(pause_s)
        # What is there now has waited for a part of a tick: with what the tick brings, it waits for no other one. Where
        # storing takes most of the time, one tick since the last time is enough.
        if registry.intake.ticked_s < (begun if took_s > interval_s() / 2 else due_s):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(registry.intake.next_tick(), 2 * _MOST_TICK_S)
        begun = time.monotonic()
        registry.tidy()
        await registry.flush()
        took_s = time.monotonic() - begun


def flush_pause_s(interval_s: float, took_s: float) -> float:
    """From one flush to the next, after one that took so long: what has settled is stored within the interval.

    Where the disk, or we, need half of it and longer, a quarter of it remains for everything else.
    """
    return max(interval_s / 4, interval_s - 2 * took_s)


async def _tick_for_ever(listener: ReceiverClient, supervisor: Supervisor, registry: Registry) -> None:
    while True:
        registry.failures.check_clock()
        begun = time.monotonic()
        waited_s = await listener.tick()
        supervisor.alive()
        pause_s = tick_pause_s(time.monotonic() - begun - waited_s)
        await listener.rest(max(_TICK_S / 10, pause_s - waited_s))


def tick_pause_s(took_s: float) -> float:
    """From one tick to the next, after one that took so long.

    Much of a tick is spent once for each host and job, however much they have sent: where ticks take long there are
    fewer of them. They take an eighth of a core's time, or as little of it as can be had without much delay.
    """
    from_one_to_the_next_s = max(_TICK_S, min(8 * took_s, _SPARING_TICK_S), 2 * took_s)
    return max(min(from_one_to_the_next_s, _MOST_TICK_S) - took_s, _TICK_S / 10)


async def _infer_for_ever(registry: Registry) -> None:
    while True:
        await asyncio.sleep(registry.infer_rest_s)
        await registry.infer()


def _overdue(data: Path, abandon: Callable[[], None]) -> threading.Timer:
    """Once started, ends it all in time: also where the loop is busy for longer than that."""

    def end() -> None:
        _log.warning(f"{_OVER_WITHIN_S:g} s are over, and not all is stored in {data}; agents that spool send the rest")
        abandon()

    timer = threading.Timer(_OVER_WITHIN_S, end)
    timer.daemon = True
    return timer


def _stop_on_signals(overdue: threading.Timer) -> asyncio.Event:
    """Set by SIGTERM and SIGINT, from when on it has so long; the loop may be in the middle of a tick."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    first = iter((True,))  # a signal may come within the handler of another one

    def request_stop(*_: object) -> None:
        if not overdue.finished.is_set() and next(first, False):
            overdue.start()
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    return stop
