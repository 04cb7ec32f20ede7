# SPDX-License-Identifier: Apache-2.0
"""A page of a collector: its snapshots of the last hour; full resolution of a moment by the agents' recorders."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from netmon.dl.sharing.advice_text import called
from netmon.dl.verdict.verdict_text import arithmetic, from_columns, renamed, sentence
from netmon.errors import DataError, NetmonError
from netmon.past import HOUR_NS, RowQuery
from netmon.records import CLASS_NAMES
from netmon.views import JobView, Selection, Snapshot, Verdict
from netmon.web.grid import Floats
from netmon.web.hours import STEP_COLUMNS
from netmon.web.lanes import Catalogue
from netmon.web.live_history import LiveHistory
from netmon.web.recorder_queries import RecorderQueries
from netmon.web.source import Rates, State
from netmon.web.steps import Lanes
from netmon.wire.advice import get_advice
from netmon.wire.past_rows import CollectorRows
from netmon.wire.security import Security
from netmon.wire.watch import Outage, follow, split

_log = logging.getLogger(__name__)
_STEPS_NS = 8_000_000_000  # of iterations in each snapshot; its series are of ten seconds
_FEW_HOSTS, _INTERVAL_MS, _SLOW_MS = 64, 1_000, 3_000
_RETRY_S = 1.0
_AROUND_NS = 300_000_000_000  # an iteration is not longer
_FLOWS = 200


class Live:
    """One collector, or several workers. A thread of its own follows it, also when it goes away and comes back."""

    synthetic = False

    def __init__(self, addresses: str, security: Security, title: str = "") -> None:
        """Begin to follow; does not wait for an answer. title: on the page; else the address.

        Raises UsageError for no address.
        """
        split(addresses)
        self.title = title or addresses
        self._addresses, self._security = addresses, security
        self._history = LiveHistory()
        self._snapshot: Snapshot | None = None
        self._moments = RecorderQueries(addresses, security)
        self._looked_back = False
        self._trouble = f"connecting to {addresses}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"snapshots of {addresses}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow no more; the thread ends with the process."""
        self._over.set()

    def state(self) -> State:
        """How it stands."""
        seen = self._snapshot
        return State(
            generation=self._history.catalogue.generation,
            end_ns=self._history.end_ns,
            live=True,
            verdicts=self._history.verdict_count,
            trouble=self._trouble,
            warnings=seen.warnings if seen else (),
        )

    def catalogue(self) -> Catalogue:
        """Its lanes."""
        return self._history.catalogue

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        """What the last hour has; of a moment, where agents may be asked, what their recorders have."""
        known = self._history.rates(hosts, begin_ns, width_ns, bins)
        end_ns = begin_ns + width_ns * bins
        unheard = any(begin_ns < end and begin < end_ns for begin, end in self._history.catalogue.unheard_ns)
        something = unheard or known.wire_bytes.any()  # else there is nothing to ask about
        few = self._moments.within(len(hosts), end_ns - begin_ns)
        if not (full and few and something and end_ns < self._history.end_ns):
            return known
        seen = self._snapshot
        connected = [view.host for view in seen.hosts if view.connected] if seen else []
        return self._moments.rates(known, hosts, connected, begin_ns, width_ns, bins)

    def totals(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Floats:
        """Of all hosts."""
        found: Floats = self._history.rates(hosts, begin_ns, width_ns, bins).wire_bytes.sum(axis=0)
        return found

    def steps(self, begin_ns: int, end_ns: int) -> tuple[list[Lanes], bool]:
        """All of the last hour."""
        return self._history.steps(begin_ns - _AROUND_NS, end_ns), False

    def verdicts(self) -> list[Verdict]:
        """Those that were heard."""
        return self._history.verdicts()

    def explain(self, job: str, iteration: int) -> dict[str, Any]:
        """The verdict on an iteration, if the collector has published one. Raises DataError."""
        names = self.catalogue().job_names
        for verdict in reversed(self.verdicts()):
            if verdict.iteration == iteration and verdict.job in (job, names.get(job)):
                return {"sentence": sentence(verdict), "arithmetic": list(arithmetic(verdict)), "path": "", "ranks": []}
        raise DataError("it did not stand out; a collector's dataset (--data) explains every iteration")

    def advice(self) -> dict[str, Any]:
        """The collector's. Raises UnreachableError."""
        return called(get_advice(self._addresses, "", self._security))

    def flows(self, host: str, begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
        """The largest of the last second, whatever time is requested."""
        snapshot = self._snapshot
        if snapshot is None:
            raise DataError("the collector has not answered yet")
        rows = []
        for view in snapshot.flows:
            if view.host == host:
                flow, owner = view.flow, view.flow.owner
                ends = {name: getattr(flow, name) for name in ("src", "src_port", "dst", "dst_port", "protocol")}
                whose = {name: getattr(owner, name) for name in ("process", "container", "user", "job", "rank")}
                flows = {
                    "direction": flow.direction.name.lower(),
                    "class": CLASS_NAMES[view.class_],
                    "flow_id": flow.flow_id,
                }
                rows.append({**ends, **whose, **flows, "wire_bytes": view.wire_bps / 8e9 * (end_ns - begin_ns)})
        return rows

    def _selection(self) -> Selection:
        return Selection(flows=_FLOWS, steps_ns=_STEPS_NS)

    def _interval_ms(self) -> int:
        return _INTERVAL_MS if len(self.catalogue().capacity_bps) <= _FEW_HOSTS else _SLOW_MS

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                interval = self._interval_ms()
                for update in follow(self._addresses, interval, self._selection, _RETRY_S, self._security):
                    if self._over.is_set():
                        return
                    if isinstance(update, Outage):
                        self._trouble = update.reason
                        continue
                    self._take(update)
                    if interval != self._interval_ms():
                        break
            except NetmonError as error:  # it does not answer yet
                self._trouble = str(error)
            except Exception as error:
                _log.exception("what the collector tells")
                self._trouble = f"{type(error).__name__}: {error}"
            self._over.wait(_RETRY_S)

    def _take(self, snapshot: Snapshot) -> None:
        self._trouble = ""
        self._snapshot = snapshot
        names = {job.job: job.name or job.job for job in snapshot.jobs}
        self._history.add(replace(snapshot, jobs=tuple(_named(job, names) for job in snapshot.jobs)), time.time_ns())
        if not self._looked_back and self._history.end_ns:
            self._looked_back = True
            back = threading.Thread(target=self._look_back, args=(names,), name="the hour before", daemon=True)
            back.start()

    def _look_back(self, names: dict[str, str]) -> None:
        """Iterations and verdicts of the hour before the first snapshot, where the collector reports its dataset."""
        rows, end = CollectorRows(self._addresses, self._security), self._history.end_ns
        try:
            for batch in rows.batches(RowQuery("iterations", STEP_COLUMNS, end - HOUR_NS, end)):
                self._history.remember(batch)
            for batch in rows.batches(RowQuery("verdicts", (), end - HOUR_NS, end)):
                self._history.remember_verdicts([renamed(from_columns(row), names) for row in batch.to_pylist()])
        except NetmonError as error:  # of an earlier version, or of a viewer who sees jobs only
            _log.info("nothing of the hour before: %s", error)


def _named(job: JobView, names: dict[str, str]) -> JobView:
    return replace(job, verdicts=tuple(renamed(verdict, names) for verdict in job.verdicts))
