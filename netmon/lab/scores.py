# SPDX-License-Identifier: Apache-2.0
"""How the sources of iterations did against each other during a run, as the collector scored them."""

import contextlib
import threading
from dataclasses import asdict
from types import TracebackType
from typing import Any

from netmon.views import Selection, Snapshot, SourceScore
from netmon.wire.watch import UnreachableError, follow, watch_once

_INTERVAL_MS = 500


class LiveScores:
    """Follows a collector while the context is open, on a thread of its own, and keeps every source's last score.

    They are nowhere else: a dataset holds the best source's iterations only.
    """

    def __init__(self, address: str) -> None:
        """address: of a collector that is ready, or of several workers."""
        self._address = address
        self._over = threading.Event()
        self._scores: dict[str, tuple[SourceScore, ...]] = {}
        self._thread = threading.Thread(target=self._follow, name="scores", daemon=True)

    def of(self, job: str) -> list[dict[str, Any]]:
        """One document for each source of the job that did not decide; times in ns."""
        return [_document(score) for score in self._scores.get(job, ())]

    def __enter__(self) -> "LiveScores":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Block until one more snapshot has come: all that the collector has received by now is in it."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(UnreachableError):  # the run itself says so
            self._keep(watch_once(self._address, Selection()))

    def _follow(self) -> None:
        try:
            for snapshot in follow(self._address, _INTERVAL_MS, Selection):
                if isinstance(snapshot, Snapshot):
                    self._keep(snapshot)
                if self._over.is_set():
                    return
        except UnreachableError:  # the run itself says so
            return

    def _keep(self, snapshot: Snapshot) -> None:
        """Sources leave one after the other; once the best has, the others are compared with the next best."""
        for job in snapshot.jobs:
            known = self._scores.get(job.job, job.scores)
            if job.scores and job.scores[0].reference <= known[0].reference:
                before = [score for score in known if score.reference == job.scores[0].reference]
                self._scores[job.job] = tuple({one.source: one for one in (*before, *job.scores)}.values())


def _document(score: SourceScore) -> dict[str, Any]:
    names = {"source": score.source.name.lower(), "reference": score.reference.name.lower()}
    return {**asdict(score), **names, "f1": score.f1}
