# SPDX-License-Identifier: Apache-2.0
"""What verdicts take of what NCCL's proxies and RDMA devices' providers have told lately."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.tables import Tables
from netmon.columnar import Columns
from netmon.dl.timemap import TimeMaps
from netmon.dl.transfers import COLUMNS, partners, process_numbers
from netmon.dl.verdict.by_transfers import SENT, PostedRow, Transfers, with_posted

_POSTED = ("session", "job", "rank", "process", "container", "rdma_device", "verb", "bytes", "start_ns", "end_ns")


class RecentTransfers(NamedTuple):
    """Of one job; times in the clocks of the hosts. It does not change."""

    rows: Columns  # `session`, `pid` and COLUMNS
    posted: Columns | None  # _POSTED, of anybody on the job's hosts
    jobs: Sequence[str]  # by their numbers in `posted`

    def in_utc(
        self, job: str, size: int, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str], error_ns: int
    ) -> Transfers:
        """there: the sessions of the maps; size: of the job; hosts: by session; error_ns: of the clocks."""
        of, rows = np.searchsorted(there, self.rows["session"]), self.rows
        known = {name: rows[name].astype(np.int64) for name in COLUMNS}
        for name in ("start_ns", "end_ns"):
            known[name] = maps.utcs(of, known[name])
        known["process"] = process_numbers(rows["session"], rows["pid"])
        known["job"] = np.zeros(len(rows), np.int64)
        known["peer_rank"] = partners(known, {0: size}).rank
        sent = np.empty(len(rows), SENT)
        for name in SENT.names or ():
            sent[name] = known["peer_rank" if name == "peer" else name]
        found = Transfers(sent, clock_error_ns=error_ns)
        return found if self.posted is None else with_posted(found, self._posted(maps, there, hosts), job)

    def _posted(self, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str]) -> "list[PostedRow]":
        assert self.posted is not None
        rows = self.posted
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


def recent_transfers(tables: Tables, job: str, sessions: Collection[int]) -> RecentTransfers | None:
    """None: nothing is known of what the job's ranks have sent by NCCL."""
    rows = tables.evidence.lately["transfers"].all(("session", "job", "pid", *COLUMNS))
    if rows is None:
        return None
    there = np.isin(rows["session"], list(sessions))
    own = rows.take(np.flatnonzero(there & (rows["job"] == tables.flows.job(job)) & (rows["rank"] >= 0)))
    if not len(own):
        return None
    posted = tables.evidence.lately["rdma"].all(_POSTED)
    if posted is not None:
        posted = posted.take(np.flatnonzero(np.isin(posted["session"], list(sessions))))
    return RecentTransfers(own, posted, tuple(tables.flows.jobs))
