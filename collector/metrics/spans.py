# SPDX-License-Identifier: Apache-2.0
"""Iterations as spans, verdicts as their events, for whoever keeps traces (OpenTelemetry, OTLP over HTTP).

A span per iteration of a job, below it one per rank. An iteration waits for some seconds, until its ranks and its
verdict have been received. What nobody takes is dropped and said once: the dataset has it all.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_span_in_context

from collector.host.iteration_rows import Accounted
from collector.host.session import Session
from netmon.dl.account import Tally
from netmon.dl.iterations import Iteration
from netmon.errors import UsageError
from netmon.version import __version__
from netmon.views import Verdict
from netmon.wire.security import Security, is_local

_log = logging.getLogger(__name__)
_HOLD_S = 5.0  # after the last rank's word
_EVERY_S = 1.0
_MOST_WAITING = 4_096  # iterations
_MOST_QUEUED = 16_384  # spans
_TIMEOUT_S = 5.0


@dataclass
class _Waiting:
    last_row_s: float
    ranks: list[tuple[str, int, int, Iteration, Tally]] = field(default_factory=list)  # host, UTC of both ends
    verdict: Verdict | None = None


class Spans:
    """Of one collector; lives on its event loop, makes and sends spans alongside it."""

    def __init__(self, exporter: SpanExporter, where: str, timeout_s: float = _TIMEOUT_S) -> None:
        """exporter: of the SDK; where: for the log; timeout_s: for the last ones."""
        self._timeout_s = timeout_s
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # one line of ours instead of one each second
        about = Resource.create({"service.name": "netmon", "service.version": __version__})
        self._provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(_Said(exporter, where), max_queue_size=_MOST_QUEUED, max_export_batch_size=512)
        )
        self._tracer = self._provider.get_tracer("netmon", __version__)
        self._waiting: OrderedDict[tuple[str, int], _Waiting] = OrderedDict()
        self.dropped = 0
        """Iterations that were too many to be kept."""

    def add_iterations(self, session: Session, accounted: Accounted) -> None:
        """Iterations of a session's ranks, with all that is known of them."""
        host, utc = session.hello.host, session.window.alignment.utc
        for iteration, tally in accounted.each():
            ends = utc(iteration.start_ns), utc(iteration.end_ns)
            self._of(iteration.job, iteration.number).ranks.append((host, *ends, iteration, tally))

    def judged(self, verdict: Verdict) -> None:
        self._of(verdict.job, verdict.iteration).verdict = verdict

    def _of(self, job: str, number: int) -> _Waiting:
        waiting = self._waiting.get((job, number))
        if waiting is None:
            while len(self._waiting) >= _MOST_WAITING:
                self._waiting.popitem(last=False)
                self.dropped += 1
            waiting = self._waiting[job, number] = _Waiting(0.0)
        waiting.last_row_s = time.monotonic()
        return waiting

    async def follow(self) -> None:
        """Send what is complete, now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await asyncio.to_thread(self._emit, self._take(time.monotonic() - _HOLD_S))

    def close(self) -> None:
        """Send the rest; blocks for some seconds at most where nobody takes it."""
        self._emit(self._take(float("inf")))
        self._provider.force_flush(int(self._timeout_s * 1e3))
        self._provider.shutdown()

    def _take(self, before_s: float) -> list[tuple[tuple[str, int], _Waiting]]:
        due = [(key, waiting) for key, waiting in self._waiting.items() if waiting.last_row_s <= before_s]
        for key, _ in due:
            del self._waiting[key]
        return due

    def _emit(self, due: Sequence[tuple[tuple[str, int], _Waiting]]) -> None:
        for (job, number), waiting in due:
            verdict = waiting.verdict
            begins = [begin for _, begin, _, _, _ in waiting.ranks] or ([verdict.start_ns] if verdict else [])
            ends = [end for _, _, end, _, _ in waiting.ranks] or ([verdict.end_ns] if verdict else [])
            if not begins:
                continue
            named: dict[str, Any] = {"netmon.job": job, "netmon.iteration": number}
            whole = self._tracer.start_span(f"{job} iteration", attributes=named, start_time=min(begins))
            if verdict:
                whole.add_event("verdict", _of_verdict(verdict), timestamp=verdict.end_ns)
            below = set_span_in_context(whole)
            for host, begin_ns, end_ns, iteration, tally in waiting.ranks:
                attributes = named | _of_rank(host, iteration, tally)
                rank = self._tracer.start_span("rank", below, attributes=attributes, start_time=begin_ns)
                rank.end(end_ns)
            whole.end(max(ends))


def _of_rank(host: str, iteration: Iteration, tally: Tally) -> dict[str, Any]:
    known = {"netmon.exposed_ns": iteration.exposed_ns, "netmon.communication_ns": iteration.communication_ns}
    return {
        "host.name": host,
        "netmon.rank": iteration.rank,
        "netmon.source": iteration.source.name.lower(),
        "netmon.error_ns": iteration.error_ns,
        "netmon.dl_tx_bytes": tally.dl_tx_bytes,
        "netmon.dl_rx_bytes": tally.dl_rx_bytes,
        "netmon.cross_tx_bytes": tally.cross_tx_bytes,
        "netmon.cross_rx_bytes": tally.cross_rx_bytes,
        **{name: value for name, value in known.items() if value >= 0},
    }


def _of_verdict(verdict: Verdict) -> dict[str, Any]:
    attributes = {
        "netmon.cause": verdict.cause.name.lower(),
        "netmon.culprit": verdict.culprit,
        "host.name": verdict.host,
        "netmon.interface": verdict.interface,
        "netmon.bytes": verdict.bytes,
        "netmon.excess_ns": verdict.excess_ns,
        "netmon.baseline_ns": verdict.baseline_ns,
        "netmon.confidence": verdict.confidence,
    }
    return {name: value for name, value in attributes.items() if value != ""}


class _Said(SpanExporter):
    """An exporter that says once that nobody takes its spans, and once that somebody does again."""

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        self._exporter, self._where, self._failed = exporter, where, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            result = SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failed:
            _log.warning("cannot send spans to %s: they are dropped until something there accepts them", self._where)
        elif self._failed and not failed:
            _log.warning("%s takes spans again", self._where)
        self._failed = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def open_spans(url: str, security: Security, timeout_s: float = _TIMEOUT_S) -> Spans:
    """Sends to http://HOST:4318/v1/traces; each time waits at most so long. Raises UsageError."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"cannot send spans to {url}: give a URL such as http://localhost:4318/v1/traces")
    host = url.partition("://")[2].partition("/")[0]
    if url.startswith("http://") and not (security.insecure or is_local(host if ":" in host else f"{host}:80")):
        raise UsageError(f"cannot send spans to {url} without encryption: give https://…, or --insecure")
    return Spans(OTLPSpanExporter(endpoint=url, timeout=timeout_s), url, timeout_s)
