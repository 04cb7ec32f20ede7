# SPDX-License-Identifier: Apache-2.0
"""A moment of a collector's past at full resolution: from the agents' recorders, else from the dataset's rows."""

import logging
import time
from collections.abc import Iterable, Sequence

import pyarrow as pa

from netmon.errors import NetmonError
from netmon.past import RowQuery
from netmon.web.grid import ROW_COLUMNS, SERIES, RowReader, in_bins
from netmon.web.source import Rates
from netmon.wire.full import get_full
from netmon.wire.past_rows import CollectorRows
from netmon.wire.security import Security

_log = logging.getLogger(__name__)
MOMENT_NS = 2_100_000_000
"""The longest time that is requested."""

_MOST_HOSTS_NS = 8_000_000_000  # a time × hosts that are requested
_REST_S = 5.0  # after nobody could be asked


class RecorderQueries:
    """Of one collector, or of several workers. May be asked on several threads at once."""

    def __init__(self, addresses: str, security: Security) -> None:
        self._addresses, self._security = addresses, security
        self._rows = CollectorRows(addresses, security)
        self._rest_until_s = 0.0

    def within(self, hosts: int, length_ns: int) -> bool:
        """Whether so much can be requested."""
        return length_ns <= MOMENT_NS and length_ns * hosts <= _MOST_HOSTS_NS

    def rates(
        self, known: Rates, hosts: Sequence[str], connected: Iterable[str], begin_ns: int, width_ns: int, bins: int
    ) -> Rates:
        """What hosts carried, as well as it can be had; blocks. known: without asking; connected: hosts with an agent.

        Of a host whose agent has no answer it is what the dataset has, else what is known.
        """
        if time.monotonic() < self._rest_until_s:
            return Rates(known.wire_bytes, known.resolution_ns, pending=True)
        found = _Found(known, hosts, begin_ns, width_ns, bins)
        end_ns = begin_ns + width_ns * bins
        try:
            with_recorder = sorted({*connected} & {*hosts})
            for part in (
                get_full(self._addresses, with_recorder, begin_ns, end_ns, self._security) if with_recorder else ()
            ):
                if part.rows.num_rows or not part.gap:
                    found.take([part.host], part.rows)
            if rest := found.missing():
                wanted = RowQuery("buckets", ROW_COLUMNS, begin_ns, end_ns, {"host": rest})
                batches = list(self._rows.batches(wanted))
                if batches:
                    found.take(rest, pa.Table.from_batches(batches))
        except NetmonError as error:  # an agent has gone, or the role does not reach: what is known is shown
            _log.info("no full resolution: %s", error)
            self._rest_until_s = time.monotonic() + _REST_S
            return found.rates(pending=True)
        return found.rates(pending=False)


class _Found:
    """What has come so far."""

    def __init__(self, known: Rates, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> None:
        self._known, self._hosts = known, list(hosts)
        self._of = len(hosts) * SERIES, begin_ns, width_ns, bins
        self._total = known.wire_bytes.copy()
        self._missing = dict.fromkeys(hosts)
        self._widest = width_ns

    def take(self, hosts: Iterable[str], rows: pa.Table) -> None:
        """All rows of these hosts."""
        own = Rates.nothing(len(self._hosts), self._of[3]).wire_bytes.reshape(self._of[0], -1)
        reader = RowReader(self._hosts)
        for batch in rows.select(ROW_COLUMNS).to_batches():
            series, start, length, wire = reader.read(batch)
            own += in_bins(series, start, length, wire, self._of)
            self._widest = max(self._widest, int(length.max(initial=0)))
        of_host = own.reshape(self._total.shape)
        for host in hosts:
            if host in self._missing:
                del self._missing[host]
                self._total[self._hosts.index(host)] = of_host[self._hosts.index(host)]

    def missing(self) -> list[str]:
        """Hosts of which nothing has come."""
        return list(self._missing)

    def rates(self, pending: bool) -> Rates:
        """All of it; as coarse as the coarsest."""
        busy = self._known.wire_bytes.sum(axis=(1, 2)) > 0
        coarse = any(busy[self._hosts.index(host)] for host in self._missing)
        widest = max(self._widest, self._known.resolution_ns) if coarse else self._widest
        return Rates(self._total, widest, pending)
