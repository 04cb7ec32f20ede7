# SPDX-License-Identifier: Apache-2.0
"""The agent's own /metrics: also while there is no collector.

The names are other ones than those by which a collector reports its agents, so that both can be scraped.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from netmon.records import AgentCost, ClockSample, LedgerSample
from netmon.telemetry.endpoint import Condition, Endpoint, counter, gauge, own_families, used, used_by
from netmon.wire.security import Role, Security

if TYPE_CHECKING:
    from netmon.agent.recorder import Recorder
    from netmon.agent.spool import Spool
    from netmon.agent.stream import Stream
    from netmon.service import LoopWatchdog

_LINK = ("interface", "direction")
_STUCK_S = 15.0
"""An agent whose loop has made no batch for so long does not work any more; on an idle host it makes one a second."""


@dataclass
class AgentNews:
    """What the agent's loop leaves behind with each batch. Written by one thread, each attribute at once."""

    names: Mapping[int, str]  # of the interfaces, by number
    links: dict[tuple[int, int], LedgerSample] = field(default_factory=dict)
    clock: ClockSample = field(default_factory=lambda: ClockSample(0, 0, 0))
    cost: AgentCost = field(default_factory=AgentCost)
    bucket_ns: int = 0
    sequence: int = 0
    rows: int = 0  # streamed, since the start
    sent_s: float = field(default_factory=time.monotonic)

    def sent(
        self,
        sequence: int,
        rows: int,
        bucket_ns: int,
        clock: ClockSample,
        cost: AgentCost,
        ledger: Sequence[LedgerSample],
    ) -> None:
        """A batch has gone to the spool; bucket_ns: of its rows."""
        self.links = self.links | {(sample.interface, sample.direction): sample for sample in ledger}
        self.sequence, self.rows, self.bucket_ns, self.clock, self.cost = (
            sequence,
            self.rows + rows,
            bucket_ns,
            clock,
            cost,
        )
        self.sent_s = time.monotonic()


class AgentMetrics:
    """Reads what the agent's parts say; called by the endpoint's threads."""

    def __init__(
        self,
        host: str,
        news: AgentNews,
        spool: "Spool",
        stream: "Stream",
        recorder: "Recorder | None",
        helper: int,
        watchdog: "LoopWatchdog",
    ) -> None:
        """helper: the pid of the part that keeps capabilities."""
        self._host, self._news, self._spool, self._stream = host, news, spool, stream
        self._recorder, self._helper, self._watchdog = recorder, helper, watchdog

    def condition(self) -> Condition:
        """Whether batches are made, and somebody takes them."""
        still_s = time.monotonic() - self._news.sent_s
        if still_s > _STUCK_S:
            return Condition(unwell=f"no batch was made for {still_s:.0f} s: start the agent again")
        return Condition(
            unready="" if self._stream.connected else f"no connection to {self._stream.where}; batches wait"
        )

    def families(self) -> Iterator[Metric]:
        """All of them: their number depends on the interfaces only."""
        yield InfoMetricFamily("netmon_agent_host", "As which the host is known", {"host": self._host})
        yield from own_families("agent", used())
        yield from self._links()
        yield from self._batches()
        yield from self._time()
        yield from self._recording()
        yield from _of_helper(self._helper)

    def _links(self) -> Iterator[Metric]:
        samples = {
            (self._news.names.get(sample.interface, str(sample.interface)), "tx" if sample.direction else "rx"): sample
            for sample in self._news.links.values()
        }
        series: tuple[tuple[str, str, Callable[[LedgerSample], int]], ...] = (
            ("nic_bytes", "Bytes as the NIC counts them", lambda s: s.nic_bytes),
            ("wire_bytes", "Wire bytes that were counted, with a flow or not", lambda s: s.wire_bytes),
            ("packets", "Segments of those", lambda s: s.packets),
        )
        for name, help_, value in series:
            values = ((link, float(value(sample))) for link, sample in samples.items())
            yield counter(f"netmon_agent_link_{name}", f"{help_}, since the agent's start", _LINK, values)
        lost = (
            ((*link, index), float(getattr(sample, f"{index}_wire_bytes")))
            for link, sample in samples.items()
            for index in ("overflow", "lost_kernel", "lost_agent")
        )
        yield counter("netmon_agent_link_lost_bytes", "Wire bytes without a flow, by place", (*_LINK, "place"), lost)

    def _batches(self) -> Iterator[Metric]:
        spool, news = self._spool, self._news
        yield GaugeMetricFamily(
            "netmon_agent_stream_connected", "Whether a collector or bus answers", self._stream.connected
        )
        yield CounterMetricFamily("netmon_agent_batches", "Batches that were made", news.sequence)
        yield CounterMetricFamily(
            "netmon_agent_batches_spooled", "Batches that the end of the agent does not take", spool.spooled
        )
        yield CounterMetricFamily("netmon_agent_rows", "Rows in them", news.rows)
        yield CounterMetricFamily("netmon_agent_batches_acknowledged", "Batches that are stored", spool.acknowledged)
        yield CounterMetricFamily("netmon_agent_batches_given_up", "Batches that are lost, whole", spool.given_up)
        yield GaugeMetricFamily("netmon_agent_spool_depth_bytes", "What waits to be stored", spool.size)
        help_ = "Of these, what is in memory until the disk takes it: the end of the agent would take it"
        yield GaugeMetricFamily("netmon_agent_spool_memory_bytes", help_, spool.memory_bytes)
        yield GaugeMetricFamily("netmon_agent_spool_limit_bytes", "What may wait at most", spool.limit_bytes)
        silent = spool.silent_s
        yield CounterMetricFamily("netmon_agent_spool_silent_seconds", "For which its disk did not answer", silent)
        yield GaugeMetricFamily(
            "netmon_agent_stream_bucket_seconds", "Width of the rows that it streams", news.bucket_ns / 1e9
        )
        yield CounterMetricFamily("netmon_agent_unusable", "Marks and messages that led to nothing", news.cost.warnings)

    def _time(self) -> Iterator[Metric]:
        clock = self._news.clock
        yield GaugeMetricFamily(
            "netmon_agent_clock_read_error_seconds", "Bound of reading both clocks", clock.error_ns / 1e9
        )
        bounds = ((((clock.discipline or "none"),), clock.utc_error_ns / 1e9),) if clock.utc_error_ns else ()
        help_ = "How far the host's UTC may be off, as who keeps it says"
        yield gauge("netmon_agent_utc_error_seconds", help_, ("discipline",), bounds)
        yield GaugeMetricFamily(
            "netmon_agent_last_batch_seconds", "Since the last batch", time.monotonic() - self._news.sent_s
        )

        still = self._watchdog.still_s
        yield CounterMetricFamily(
            "netmon_agent_still_seconds", "For which its loop was stalled, of more than 5 s", still
        )
        asleep = self._watchdog.suspended_s
        yield CounterMetricFamily("netmon_agent_suspended_seconds", "For which the host was suspended", asleep)

        help_ = "How often this host's clock was set by more than a second"
        yield CounterMetricFamily("netmon_agent_clock_jumps", help_, self._watchdog.jumps.count)

    def _recording(self) -> Iterator[Metric]:
        if self._recorder:
            kept, seconds = self._recorder.depth()
            yield GaugeMetricFamily("netmon_agent_recorder_bytes", "Full resolution that is kept here", kept)
            yield GaugeMetricFamily("netmon_agent_recorder_seconds", "Of how long", seconds)
            lost = self._recorder.lost_rows
            yield CounterMetricFamily("netmon_agent_recorder_lost_rows", "Rows that its disk would not take", lost)


def _of_helper(pid: int) -> Iterator[Metric]:
    """Of the part that keeps capabilities: its CPU time is that of all who look things up in the kernel."""
    if now := used_by(pid):
        yield CounterMetricFamily("netmon_agent_helper_cpu_seconds", "CPU time of its privileged part", now[0])
        yield GaugeMetricFamily("netmon_agent_helper_resident_bytes", "Memory of the same", now[1])


def serve_agent_metrics(address: str, security: Security, metrics: AgentMetrics) -> Endpoint:
    """At HOST:PORT until it is closed. Raises UsageError, UnsupportedError, CertificateError."""
    return Endpoint(address, security, metrics.families, metrics.condition, Role.AGENT)
