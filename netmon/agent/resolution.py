# SPDX-License-Identifier: Apache-2.0
"""Full resolution stays here, a coarser table goes out."""

import logging
from dataclasses import dataclass

from netmon.agent.pressure import Backlog, Pressure, widths
from netmon.agent.recorder import Recorder
from netmon.dl.coarse import Coarsener
from netmon.records import Table
from netmon.units import format_duration

log = logging.getLogger(__name__)

_FOR_EVER_NS = 2**63 - 1


@dataclass(frozen=True)
class Streamed:
    """What a batch is to carry."""

    buckets: Table
    bucket_ns: int
    horizon_ns: int  # every row whose bucket ended before has been given out


class Resolution:
    """One per agent."""

    def __init__(self, bucket_ns: int, stream_ns: int, recorder: Recorder | None) -> None:
        """stream_ns: a multiple of bucket_ns; equal: full resolution goes out as it is, whatever waits."""
        self._bucket_ns, self._stream_ns, self._recorder = bucket_ns, stream_ns, recorder
        self._coarsener = Coarsener(bucket_ns)
        self._pressure = Pressure(widths(bucket_ns, stream_ns))
        self._width_ns, self._horizon_ns = stream_ns, 0

    def stream(self, rows: Table, horizon_ns: int, backlog: Backlog, last: bool) -> Streamed:
        """rows: dtype BUCKET, all that ended before horizon_ns (mono) and were not here before.

        last: none will follow.
        """
        if self._recorder:
            self._recorder.add(rows, horizon_ns)
        if self._stream_ns == self._bucket_ns:
            return Streamed(rows, self._bucket_ns, horizon_ns)
        width = self._pressure.width(backlog, horizon_ns)
        if width != self._width_ns:
            log.warning("streaming buckets of %s %s", format_duration(width), self._why(width, backlog))
            self._width_ns = width
        self._horizon_ns = max(self._horizon_ns, horizon_ns // width * width)
        until = _FOR_EVER_NS // width * width if last else horizon_ns // width * width
        return Streamed(self._coarsener.take(rows, width, until), width, self._horizon_ns)

    def _why(self, width: int, backlog: Backlog) -> str:
        if width < self._width_ns:
            return "again: the collector has caught up"
        if width <= backlog.requested_ns:
            return "until the collector, which has asked for it, can take more"
        return f"until the collector catches up ({backlog.late_s:.0f} s behind, spool {backlog.full:.0%} full)"
