# SPDX-License-Identifier: Apache-2.0
"""Answers to the collector's requests for full resolution, behind the live batches and no faster than a given rate."""

import threading
import time
from collections import deque
from collections.abc import Iterator

from netmon.agent.recorder import Recorder
from netmon.errors import NetmonError
from netmon.wire import netmon_pb2

MOST = 16
"""Requests that are answered at a time, in turn; one beyond them is refused."""

RATE = 4_000_000
"""Bytes per second, of all answers together."""


class Pulls:
    """One per agent. Thread-safe: one thread asks, another takes the answers."""

    def __init__(self, recorder: Recorder | None) -> None:
        """recorder: None where the agent has none."""
        self._recorder = recorder
        self._lock = threading.Lock()
        self._answers: deque[Iterator[netmon_pb2.FullAnswer]] = deque()
        self._due_s = 0.0

    def add_request(self, request: netmon_pb2.FullRequest) -> None:
        """A request has come."""
        with self._lock:
            busy = len(self._answers) >= MOST
            self._answers.append(iter((_end(request, "the agent answers others"),)) if busy else self._answer(request))

    def take(self) -> bytes | None:
        """The next answer, an AgentMessage; None where none is due."""
        with self._lock:
            while self._answers and time.monotonic() >= self._due_s:
                answer = next(self._answers[0], None)
                if answer is None:
                    self._answers.popleft()
                    continue
                self._answers.rotate(-1)
                message: bytes = netmon_pb2.AgentMessage(full=answer).SerializeToString()
                self._due_s = time.monotonic() + len(message) / RATE
                return message
        return None

    def patience(self) -> float | None:
        """For how many seconds one may wait for other things until an answer is due; None: nothing was asked."""
        with self._lock:
            return max(0.0, self._due_s - time.monotonic()) if self._answers else None

    def clear(self) -> None:
        """The connection is over, and with it everything that was asked."""
        with self._lock:
            self._answers.clear()

    def _answer(self, request: netmon_pb2.FullRequest) -> Iterator[netmon_pb2.FullAnswer]:
        if self._recorder is None:
            yield _end(request, "the agent records nothing (--record off)")
            return
        since_ns, until_ns, rows = request.since_ns, request.until_ns, 0
        # What the recorder forgets meanwhile is still sent: it is held.
        gap = self._recorder.gap(since_ns, until_ns)
        try:
            for buckets in self._recorder.read(since_ns, until_ns):
                rows += buckets.rows
                if rows > request.most_rows:
                    yield _end(request, _joined(gap, f"there are more than {request.most_rows} rows"))
                    return
                yield netmon_pb2.FullAnswer(number=request.number, buckets=buckets)
        except NetmonError as error:
            gap = _joined(gap, str(error))
        yield _end(request, gap)


def _end(request: netmon_pb2.FullRequest, gap: str) -> netmon_pb2.FullAnswer:
    return netmon_pb2.FullAnswer(number=request.number, last=True, gap=gap)


def _joined(*gaps: str) -> str:
    return "; ".join(filter(None, gaps))
