# SPDX-License-Identifier: Apache-2.0
"""What verdicts take of what NCCL's proxies and RDMA devices' providers have told lately."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.tables import Lately, Tables
from netmon.dl.timemap import TimeMaps
from netmon.dl.transfers import COLUMNS, partners, process_numbers
from netmon.dl.verdict.by_nic import COUNTED, nobody_counts
from netmon.dl.verdict.by_transfers import SENT, PostedRow, Transfers, with_posted
from netmon.evidence import UNKNOWN
from netmon.records import Table

_POSTED = ("session", "job", "rank", "process", "container", "rdma_device", "verb", "bytes", "start_ns", "end_ns")


class RecentTransfers(NamedTuple):
    """Of all jobs, times in the clocks of their hosts. It does not change, and is put together when it is asked for."""

    rows: Lately = Lately()  # of `transfers`
    posted: Lately = Lately()  # of `rdma`
    host: Lately = Lately()
    jobs: Sequence[str] = ()  # by their numbers

    def in_utc(
        self, job: str, size: int, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str], error_ns: int
    ) -> Transfers | None:
        """What a job's ranks have sent; None: nothing is known of it.

        there: the sessions of the maps; size: of the job; hosts: by session; error_ns: of the clocks.
        """
        numbers = [number for number, name in enumerate(self.jobs) if name == job]
        rows = self.rows.all(("session", "pid", "queued_ns", *COLUMNS), ("job", numbers[0])) if numbers else None
        if rows is not None:
            rows = rows.take(np.flatnonzero(np.isin(rows["session"], there) & (rows["rank"] >= 0)))
        if rows is None or not len(rows):
            return None
        of = np.searchsorted(there, rows["session"])
        known = {name: rows[name].astype(np.int64) for name in ("queued_ns", *COLUMNS)}
        for name in ("start_ns", "end_ns"):
            known[name] = maps.utcs(of, known[name])
        known["queued_ns"] = np.where(known["queued_ns"] >= 0, maps.utcs(of, known["queued_ns"]), UNKNOWN)
        known["process"] = process_numbers(rows["session"], rows["pid"])
        known["job"] = np.zeros(len(rows), np.int64)
        known["peer_rank"] = partners(known, {0: size}).rank
        sent = np.empty(len(rows), SENT)
        for name in SENT.names or ():
            sent[name] = known["peer_rank" if name == "peer" else name]
        return with_posted(Transfers(sent, clock_error_ns=error_ns), self._posted(maps, there, hosts), job)

    def counted_in_utc(
        self, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str], host: str
    ) -> Table:
        """What a host's NICs have counted, dtype COUNTED."""
        names = COUNTED.names or ()
        rows = self.host.all(("session", *names), ("rank", UNKNOWN))
        sessions = [session for session in there.tolist() if hosts.get(session) == host]
        if rows is None:
            return nobody_counts(host)
        rows = rows.take(np.flatnonzero(np.isin(rows["session"], sessions)))
        of, found = np.searchsorted(there, rows["session"]), np.empty(len(rows), COUNTED)
        for name in names:
            found[name] = maps.utcs(of, rows[name].astype(np.int64)) if name in ("start_ns", "end_ns") else rows[name]
        return found

    def _posted(self, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str]) -> list[PostedRow]:
        """By anybody on the job's hosts."""
        rows = self.posted.all(_POSTED)
        if rows is None:
            return []
        rows = rows.take(np.flatnonzero(np.isin(rows["session"], there)))
        of = np.searchsorted(there, rows["session"])
        times = [maps.utcs(of, rows[name].astype(np.int64)).tolist() for name in ("start_ns", "end_ns")]
        each = zip(*(rows[name].tolist() for name in _POSTED[:-2]), *times, strict=True)
        return [
            PostedRow(
                *(hosts.get(session, ""), device, verb, self.jobs[job] if job >= 0 else "", rank),
                *(f"{process} ({container})" if container else process, start_ns, end_ns, bytes_),
            )
            for session, job, rank, process, container, device, verb, bytes_, start_ns, end_ns in each
        ]


def recent_transfers(tables: Tables) -> RecentTransfers:
    rows, posted, host = (tables.evidence.lately[name].copy() for name in ("transfers", "rdma", "host"))
    return RecentTransfers(rows, posted, host, tuple(tables.flows.jobs))
